"""Read plain image folders: `<class>/<image>`, as in torchvision's ImageFolder and on Kaggle."""

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.data.names import (
    HEAD_BYTES,
    copies,
    foreign,
    read_head,
    refuse_splits,
    why_foreign,
    why_no_class,
    why_no_image,
)
from guie.data.shards.storage import objects_below, read_object, url_of

COLUMNS = ("image_path", "label", "domain", "split", "role")


def read_folder(folder: str | Path, domain: str, split: str) -> tuple[pd.DataFrame, Counter[str]]:
    """Return manifest rows of every image below `folder`, by path, and skipped files by reason.

    `a/b/x.jpg` has class `a/b` and label `<domain>/a/b`. In val and test every image is both query
    and index. Files are recognised by `guie.data.names`. Links to folders are not followed, as they may form
    loops, nor links to files outside `folder`. It may be in a bucket. Raises UserError if the folder does not
    exist or has no image, or if its classes are splits.
    """
    found, skipped = _images(Path(folder))
    reasons = {file: why_no_class(os.path.dirname(file)) for file in found}
    skipped.update(filter(None, reasons.values()))
    images = [file for file in found if not reasons[file]]
    if not images:
        raise UserError(f"{folder}: no <class>/<image> in it{_skipped_text(skipped)}")
    refuse_splits(str(folder), map(os.path.dirname, images))
    role = "train" if split == "train" else "both"
    rows = [(file, f"{domain}/{os.path.dirname(file)}", domain, split, role) for file in images]
    return pd.DataFrame(rows, columns=COLUMNS, dtype=str), skipped


def image_files(folder: str | Path) -> tuple[list[str], Counter[str]]:
    """Return every image below `folder`, with or without classes; all else is as in `read_folder`."""
    images, skipped = _images(Path(folder))
    if not images:
        raise UserError(f"{folder}: no image in it{_skipped_text(skipped)}")
    return images, skipped


def _images(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return the images below, sorted, and other files by reason. Raises UserError if there is no folder."""
    url = url_of(folder)
    if not url and (why := why_unreadable(folder, "folder")):
        raise UserError(why)
    reasons = dict(_listed(url) if url else _walked(folder))
    images = [file for file, reason in reasons.items() if not reason]
    skipped = Counter(reason for reason in reasons.values() if reason)
    made = copies(set(map(os.path.dirname, images)))
    skipped.update(made[parent] for file in images if (parent := os.path.dirname(file)) in made)
    return sorted(file for file in images if os.path.dirname(file) not in made), skipped


def _walked(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield each file below a folder, with the reason that it is no image."""
    real = os.path.realpath(folder)
    for file, entry in walk(folder):
        reason = why_foreign(f"{file}/" if entry.is_dir(follow_symlinks=False) else file)
        linked = entry.is_symlink()
        if not reason and not entry.is_file():  # opening a pipe would block
            reason = "link to a folder or to nowhere" if linked else "not a regular file"
        elif not reason and linked:
            if os.path.commonpath([real, os.path.realpath(entry.path)]) != real:
                reason = "link that leaves the folder"
        yield file, reason or why_no_image(file, partial(read_head, entry.path))


def _listed(url: str) -> Iterator[tuple[str, str | None]]:
    """Yield each object below a folder, with the reason that it is no image; a name with / is a folder."""
    for name in objects_below(url):
        file = name.removeprefix(f"{url}/")
        if not file.endswith("/"):
            yield file, why_no_image(file, partial(read_object, name, start=0, end=HEAD_BYTES))


def walk(folder: Path) -> Iterator[tuple[str, os.DirEntry]]:
    """Yield (path relative to `folder`, entry) of everything below except folders to enter.

    Hidden and system folders, and links to folders, are not entered. Raises UserError.
    """
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_dir(follow_symlinks=False) and not foreign(entry.name):
                        pending.append(path)
                    else:
                        yield path, entry
        except FileNotFoundError:
            raise UserError(f"{folder / below}: no such folder") from None
        except NotADirectoryError:
            raise UserError(f"{folder / below}: not a folder; unpack the archive first") from None
        except PermissionError:
            raise UserError(f"{folder / below}: permission denied; allow reading it") from None


def _skipped_text(skipped: Counter[str]) -> str:
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    return f"; found: {listed}" if listed else ""
