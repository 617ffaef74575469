"""Datasets come as archives: inspected member by member, then unpacked whole or not at all."""

from guie.archives.inspection import Limits
from guie.archives.unpacking import unpack, unpacked

__all__ = ["Limits", "unpack", "unpacked"]
