"""Readers of datasets as they lie on disk: a path in, manifest rows and an account out."""

from guie.datasets.folder import read_folder

READERS = {"folder": read_folder}

__all__ = ["READERS", "read_folder"]
