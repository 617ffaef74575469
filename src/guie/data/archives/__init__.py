"""Datasets come as archives: inspected member by member, then unpacked whole or not at all."""

from guie.data.archives.inspection import Limits
from guie.data.archives.unpacking import unpack, unpacked

__all__ = ["Limits", "unpack", "unpacked"]
