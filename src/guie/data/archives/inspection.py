"""What an archive may hold. Nothing in it is trusted: not a name, a link, nor a size.

One set of checks for zip and tar, before a byte is written. `tarfile.data_filter` (PEP 706) would
replace none of them: it knows no zip, and of the 26 hostile tars in the tests it refuses 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Kind = Literal["file", "folder", "symlink", "hardlink", "special"]


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive, whatever the archive's format."""

    name: str
    kind: Kind
    size_bytes: int
    link: str = ""
    encrypted: bool = False

    @property
    def path(self) -> PurePosixPath:
        """The name without `./` and `//`."""
        return PurePosixPath(self.name)


@dataclass(frozen=True)
class Limits:
    """What an archive may hold at most.

    Public image datasets stay well below. Images hardly compress and annotations about tenfold;
    a bomb, a thousandfold.
    """

    members: int = 20_000_000
    member_bytes: int = 16 * 2**30
    total_bytes: int = 4 * 2**40
    ratio: float = 100.0  # unpacked bytes to the bytes of the archive


def fault_of_sizes(count: int, total_bytes: int, archive_bytes: int, limits: Limits) -> str | None:
    """Why so many members of this size are too much; None if they are not."""
    if count > limits.members:
        return f"more than {limits.members:,} members"
    if total_bytes > limits.total_bytes:
        return f"{total_bytes:,} bytes unpacked, more than {limits.total_bytes:,}"
    if total_bytes > limits.ratio * archive_bytes:
        return f"{archive_bytes:,} bytes unpack to {total_bytes:,}, a ratio above {limits.ratio:g}"
    return None


def fault_of_member(member: Member, limits: Limits) -> str | None:
    """Why a member must not be unpacked, whatever the others are; None if it may be."""
    fault = _fault_of_name(member.name)
    if fault:
        return fault
    if member.encrypted:
        return "encrypted; unpack the archive by hand"
    if member.kind == "special":
        return "a device, a pipe or the like"
    if member.size_bytes > limits.member_bytes:
        return f"{member.size_bytes:,} bytes, more than {limits.member_bytes:,}"
    if member.kind != "folder" and not member.path.parts:
        return "no name"
    return None


def fault_of_all(members: Sequence[Member]) -> str | None:
    """Why members, each harmless by itself, must not be unpacked together; None if they may be."""
    kinds: dict[PurePosixPath, str] = {}
    for member in members:
        known = kinds.get(member.path)
        if known and not known == member.kind == "folder":
            return f"{member.name!r}: stands twice in it"
        if member.kind == "hardlink" and kinds.get(PurePosixPath(member.link)) != "file":
            return f"{member.name!r}: a hard link to no file before it, {member.link!r}"
        kinds[member.path] = member.kind
    for member in members:
        for parent in member.path.parents:
            if kinds.get(parent, "folder") != "folder":
                return f"{member.name!r}: lies below {str(parent)!r}, which is no folder"
        if member.kind == "symlink" and _leaves(member, kinds):
            return f"{member.name!r}: a link that leaves the folder, to {member.link!r}"
    return None


def alike_but_for_case(members: Sequence[Member]) -> list[str]:
    """Names that are one file on a disk that ignores case (macOS, Windows)."""
    paths = {str(member.path) for member in members}
    counts = Counter(path.casefold() for path in paths)
    return sorted(path for path in paths if counts[path.casefold()] > 1)


def _fault_of_name(name: str) -> str | None:
    if "\\" in name or "\0" in name:
        return "a name with a backslash or a NUL"
    if _absolute(name):
        return "an absolute path"
    return "leaves the folder" if ".." in name.split("/") else None


def _absolute(name: str) -> bool:
    return name.startswith("/") or (name[:1].isalpha() and name[1:2] == ":")


def _leaves(symlink: Member, kinds: dict[PurePosixPath, str]) -> bool:
    """Would the link lead out of the folder, or through another link?

    What lies behind a link is not where its path says: there, `..` may lead anywhere.
    """
    if not symlink.link or _absolute(symlink.link) or "\\" in symlink.link:
        return True
    here = symlink.path.parent
    for part in symlink.link.split("/"):
        if kinds.get(here, "folder") != "folder":
            return True
        if part == ".." and not here.parts:
            return True
        here = here.parent if part == ".." else here / part
    return False
