"""Read plain image folders: `<class>/<image>`, as in torchvision's ImageFolder and on Kaggle."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.base.files import CONTROL
from guie.data.datasets.base import IMAGE_SUFFIXES

COLUMNS = ("image_path", "label", "domain", "split", "role")


def read_folder(folder: str | Path, domain: str, split: str) -> tuple[pd.DataFrame, Counter[str]]:
    """Return manifest rows of every image below `folder`, by path, and skipped files by reason.

    `a/b/x.jpg` has class `a/b` and label `<domain>/a/b`. In val and test every image is both query
    and index. Files are recognised by extension and not opened. Links to folders are not followed, as
    they may form loops, nor links to files outside `folder`. Raises UserError if the folder does not
    exist or has no image.
    """
    images, skipped = _parted(
        (file, reason or _why_no_class(file)) for file, reason in _looked_through(Path(folder))
    )
    if not images:
        raise UserError(f"{folder}: no <class>/<image> in it{_skipped_text(skipped)}")
    role = "train" if split == "train" else "both"
    rows = [(file, f"{domain}/{file.rpartition('/')[0]}", domain, split, role) for file in images]
    return pd.DataFrame(rows, columns=COLUMNS, dtype=str), skipped


def image_files(folder: str | Path) -> tuple[list[str], Counter[str]]:
    """Return paths of every image below `folder`, with or without classes, and skipped files by reason.

    Links, extensions and errors are handled as in `read_folder`.
    """
    images, skipped = _parted(_looked_through(Path(folder)))
    if not images:
        raise UserError(f"{folder}: no image in it{_skipped_text(skipped)}")
    return images, skipped


def _parted(files: Iterable[tuple[str, str | None]]) -> tuple[list[str], Counter[str]]:
    """Split (file, reason or None) pairs into the accepted files, in order, and counts by reason."""
    images, skipped = [], Counter[str]()
    for file, reason in files:
        if reason:
            skipped[reason] += 1
        else:
            images.append(file)
    return sorted(images), skipped


def _looked_through(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield every file below, with the reason it is no image, or None. Raises UserError if no folder."""
    if why := why_unreadable(folder, "folder"):
        raise UserError(why)
    real = os.path.realpath(folder)
    for file, entry in walk(folder):
        yield file, _why_not(file, entry, real)


def walk(folder: Path) -> Iterator[tuple[str, os.DirEntry]]:
    """Yield (path relative to `folder`, entry) of everything below except folders to enter.

    Hidden folders and links to folders, which may form loops, are not entered. Raises UserError.
    """
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_dir(follow_symlinks=False) and not is_hidden(entry.name):
                        pending.append(path)
                    else:
                        yield path, entry
        except FileNotFoundError:
            raise UserError(f"{folder / below}: no such folder") from None
        except NotADirectoryError:
            raise UserError(f"{folder / below}: not a folder; unpack the archive first") from None
        except PermissionError:
            raise UserError(f"{folder / below}: permission denied; allow reading it") from None


def is_hidden(name: str) -> bool:
    """Return whether a file is hidden or the system's (`._x`, Thumbs.db)."""
    return name.startswith(".") or name == "Thumbs.db"


def _why_not(file: str, entry: os.DirEntry, folder: str) -> str | None:
    """Return why an entry is no image below `folder`, a real path; None if it is one."""
    suffix = Path(entry.name).suffix.lower()
    if is_hidden(entry.name):
        return "hidden or system file"
    if not entry.is_file():  # opening a pipe would block
        return "link to a folder or to nowhere" if entry.is_symlink() else "not a regular file"
    if entry.is_symlink():
        file_there = os.path.realpath(entry.path)
        if os.path.commonpath([folder, file_there]) != folder:
            return "link that leaves the folder"
    # a tab does no harm; surrogates represent bytes that are not UTF-8, which a manifest cannot store
    if re.search(f"(?!\t){CONTROL}|[\ud800-\udfff]", file):
        return "name with a control character or not in UTF-8"
    if suffix not in IMAGE_SUFFIXES:
        return f"no image by its extension ({suffix or 'none'})"
    return None


def _why_no_class(file: str) -> str | None:
    """Return why an image has no class; None if it has one."""
    class_name = file.rpartition("/")[0]
    if not class_name:
        return "not in a class folder"
    return "class name with |, which joins several labels" if "|" in class_name else None


def _skipped_text(skipped: Counter[str]) -> str:
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    return f"; found: {listed}" if listed else ""
