"""Decode every image once before it is needed; report those that cannot be used, or drop them."""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import PIL
from accelerate import Accelerator
from PIL import Image

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import refuse_foreign_list, replacing, rows_folder
from guie.base.processes import usable_cores
from guie.config.types import Decode
from guie.data.images import DECODERS, LIMIT, difference, whole_px
from guie.data.manifest import Manifest, queries_without_positive
from guie.data.manifest.reading import class_names
from guie.data.shards.index import is_index, open_places
from guie.data.shards.opening import decoded_in_shards
from guie.rows.filling import OnCores, fill
from guie.rows.states import States, absolute, states
from guie.rows.store import Store

# Another Pillow version may read fewer files, so it decodes all again. Raise the number with images.py.
VERSION = f"2, Pillow {PIL.__version__}"
# Maps a root, a decoder and an image_path to the columns of a check, which begin with those of `VERIFY`.
Look = Callable[[str, Decode, str], tuple[Any, ...]]
THUMBNAIL = "thumbnail"  # a column that is large, and so read by name alone
STATE = ["size_bytes", "mtime_ns"]  # of a file: what changes with its content
LISTED = ["image_path", "split", "reason"]  # columns of a list of dropped rows
SHOWN = 20  # files listed in a message; the rest are counted


def opened(root: str, decode: Decode, image_path: str) -> Image.Image | str:
    """Return an image of a folder, or the reason that it cannot be used."""
    path = os.path.join(root, image_path)
    try:
        if _leaves(root, image_path):
            return "a link that leaves the source's folder"
        return DECODERS[decode](Path(path))
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return str(error).replace(f"{path}: ", "", 1).replace(path, image_path)


def _leaves(root: str, image_path: str) -> bool:
    """Return whether a file's link leads out of the root, and of every folder on the way to it.

    A data set's folder may be a link out of the root; a single file inside it may not.
    """
    real = os.path.realpath(os.path.join(root, image_path))
    folders = (os.path.realpath(os.path.join(root, f)) for f in reversed(Path(image_path).parents))
    return not any(os.path.commonpath([folder, real]) == folder for folder in folders)


def verified(root: str, decode: Decode, image_path: str) -> tuple[int, int, str, str]:
    """Decode one image; return width, height, the reason that it is bad or "", and its `difference`."""
    image = opened(root, decode, image_path)
    if isinstance(image, str):
        return 0, 0, image, ""
    return *whole_px(image), "", difference(image)


class Check(NamedTuple):
    """What is found out about each image: `VERIFY` or `FINGERPRINTS`."""

    name: str
    look: Look
    columns: tuple[str, ...]
    version: str  # rows of another version are computed again


VERIFY = Check("verified", verified, ("width", "height", "reason", "differs"), VERSION)


class Checks:
    """The records of a check of images: stored in `GUIE_CACHE`, and shared by all runs.

    Files that cannot be read have none: they are looked at again each time.

    Args:
        root: folder whose images share a store.
        paths: of images below `root / prefix`, whose links may not leave it.
        known: `states` of the images; None: they are read here.
    """

    def __init__(
        self,
        check: Check,
        root: Path,
        paths: Sequence[str],
        decode: Decode = "seen",
        *,
        prefix: str = "",
        known: States | None = None,
    ):
        self.check, self.paths = check, np.asarray(paths, object)
        name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        # What decides which images are bad
        recipe = {"version": check.version, "megapixels": os.environ.get(LIMIT, "")}
        self.store = Store(rows_folder() / check.name / name, recipe)
        # Before the files are opened, so that one that changes meanwhile is checked again next time
        names = [prefix + path for path in self.paths]
        known = states(root, names) if known is None else known
        self.states = known.of(f"open_as_{decode}")
        self.readable = np.flatnonzero(self.states.readable_N)
        self._look = partial(check.look, os.path.realpath(root / prefix), decode)

    def missing(self) -> np.ndarray:
        """Return the positions of images without a record."""
        return self.readable[self.store.missing(self.states.take(self.readable))]

    def fill(self, workers: int, title: str, part: tuple[int, int] = (0, 1)) -> np.ndarray:
        """Compute the missing records of part n of m, and return their positions. Raises UserError."""
        known = self.states.take(self.readable)
        compute = OnCores(self._look, self.paths[self.readable], self.check.columns, workers)
        return self.readable[fill(self.store, known, compute, part=part, title=title)]

    def table(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the records by image path, by default without thumbnails, once all are filled."""
        columns = columns or [name for name in self.check.columns if name != THUMBNAIL]
        found = self.store.table(self.states.take(self.readable), columns)
        absent = np.setdiff1d(np.arange(len(self.paths)), self.readable)
        looked = [self._look(path) for path in self.paths[absent]]
        others = pd.DataFrame(looked, columns=list(self.check.columns))[columns]
        order = np.argsort(np.concatenate([self.readable, absent]))
        rows = pd.concat([found, others], ignore_index=True) if len(absent) else found
        return rows.take(order).set_axis(pd.Index(self.paths, dtype=object))


def drop_unusable(
    table: pd.DataFrame, root: Path, checked: pd.DataFrame, name: str
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Return the rows whose image is good, with the other columns of their check, and the dropped files.

    A dropped file is {"file", "split", "reason"}.

    Args:
        checked: the rows of a `Check`, by image_path.
        name: of the source, for messages.

    Raises UserError if no image can be decoded at all.
    """
    bad = checked.loc[checked["reason"] != "", "reason"]
    if len(bad) == len(checked):
        first = f"the first, under {root}: {bad.index[0]}: {bad.iloc[0]}"
        remedy = "is this the folder that image_path starts from?"
        raise UserError(f"{name}: none of {len(bad):,} images can be used; {first}; {remedy}")
    unusable = table["image_path"].isin(bad.index)
    splits = table[unusable].groupby("image_path")["split"].agg(",".join)
    files = [
        {"file": str(root / path), "split": splits[path], "reason": reason}
        for path, reason in bad.items()
    ]
    seen = checked.drop(columns="reason").reindex(table["image_path"]).set_axis(table.index)
    return table.assign(**seen)[~unusable].reset_index(drop=True), files


def readable(
    accelerator: Accelerator,
    manifest: Manifest,
    splits: Sequence[str],
    *,
    drop_bad: bool,
    dropped: Path,
) -> Manifest:
    """Check that all images decode: raise UserError, or with `drop_bad` drop the rows that do not.

    Every process must call it. The main process decodes, and its manifest gets the STATE of each file. An
    index of shards has it, and says which images were decoded before.

    Args:
        splits: splits whose images will be opened.
        dropped: file to write the list of dropped rows to.
    """
    if drop_bad:
        from_main(accelerator, lambda: refuse_foreign_list(dropped, LISTED))
    table = manifest.table
    used, indexed = table["split"].isin(splits), is_index(manifest.path)
    if indexed:
        from_main(accelerator, lambda: open_places(str(manifest.root)).check_shards())
        used &= table["decoded"] != VERSION
    rows = table[used]
    paths = rows["image_path"].unique()
    known = states(manifest.root, paths) if accelerator.is_main_process else None
    how = (manifest.root, usable_cores(), manifest.sidecar.decode, known)
    bad = from_main(accelerator, partial(find_unreadable, rows, *how))
    if known is not None and not indexed:
        found = pd.DataFrame(np.stack([known.size_N, known.time_N], axis=1), paths, STATE)
        of_rows = found.reindex(table["image_path"], fill_value=-1)
        manifest = replace(manifest, table=table.assign(**of_rows.set_axis(table.index)))
    if bad.empty:
        return manifest
    if not drop_bad:
        from_main(accelerator, lambda: refuse_unreadable(bad, manifest))
    manifest, report = drop_unreadable(manifest, bad)
    accelerator.print("\n".join(report))
    if accelerator.is_main_process:
        with replacing(dropped) as temporary:
            bad.to_csv(temporary, index=False)
    return manifest


def find_unreadable(
    table: pd.DataFrame,
    root: Path,
    workers: int,
    decode: Decode = "seen",
    known: States | None = None,
) -> pd.DataFrame:
    """Return image_path, split and reason of the rows whose image does not decode, indexed like `table`.

    A file is decoded again only after a change. Of the images decoded here, those that `seen` and `host`
    differ on are counted, in a line.

    Args:
        workers: decoding processes.
        known: `states` of the unique image_paths; None: they are read here.

    Raises UserError if the store cannot be written.
    """
    paths = table["image_path"].unique().astype(object)
    known = states(root, paths) if known is None else known
    wanted = np.flatnonzero(~decoded_in_shards(absolute(root, paths), VERSION))
    if decode != "seen":  # the host reads whatever `open_as_seen` reads
        seen = Checks(VERIFY, root, paths[wanted], known=known.take(wanted))
        there = np.setdiff1d(seen.readable, seen.missing())
        good = seen.store.table(seen.states.take(there), ["reason"])["reason"] == ""
        wanted = np.delete(wanted, there[good])
    checks = Checks(VERIFY, root, paths[wanted], decode, known=known.take(wanted))
    decoded = checks.fill(workers, f"open as {decode}")
    found = checks.table(["reason", "differs"])
    if line := differing(found["differs"].iloc[decoded], len(paths)):
        print(f"{root}: {line}", file=sys.stderr)
    reasons = found.loc[found["reason"] != "", "reason"]
    bad = table.loc[table["image_path"].isin(reasons.index), ["image_path", "split"]]
    return bad.assign(reason=bad["image_path"].map(reasons))


def differing(differs: pd.Series, images: int) -> str:
    """Return a line on the images that `seen` and `host` differ on; empty if there are none.

    `differs` is their `difference` by path, and `images` the number of those that were decoded.
    """
    differs = differs[differs != ""]
    if differs.empty:
        return ""
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in differs.value_counts().items())
    return (
        f"a person and the challenge's scorer see {len(differs):,} of {images:,} images differently"
        f" ({kinds}), such as {differs.index[0]}; all commands but score.py show them by the sidecar's"
        " decode: seen (default) or host"
    )


def refuse_unreadable(bad: pd.DataFrame, manifest: Manifest) -> None:
    """Raise UserError if `find_unreadable` found images: it lists them."""
    if bad.empty:
        return
    remedy = "repair them, curate again (src/curate.py leaves them out) or pass --drop-bad"
    if len(bad) == manifest.table["split"].isin(bad["split"]).sum():  # none can be read
        remedy = f"is {manifest.root} the folder that image_path starts from?"
    first = f"{manifest.path}: {len(bad):,} rows have an image that cannot be read; {remedy}"
    raise UserError("\n".join([first, *_listed(bad)]))


def drop_unreadable(manifest: Manifest, bad: pd.DataFrame) -> tuple[Manifest, list[str]]:
    """Return the manifest without the rows of `find_unreadable`, and lines that report the changes.

    Raises UserError if a split loses all of its images.
    """
    table = manifest.table.drop(bad.index)
    lines = [f"dropped {line}" for line in _listed(bad)]
    for split in bad["split"].unique():
        before = manifest.table[manifest.table["split"] == split]
        after = table[table["split"] == split]
        if after.empty:
            none = f"none of {len(before):,} {split} images can be read"
            where = f"is {manifest.root} the folder that image_path starts from?"
            raise UserError(f"{manifest.path}: {none}; {where}")
        changes = [f"{len(before) - len(after):,} of {len(before):,} images dropped"]
        if lost := sorted(class_names(before["label"]) - class_names(after["label"])):
            named = ", ".join(lost[:SHOWN]) + (", ..." if len(lost) > SHOWN else "")
            changes.append(f"{len(lost):,} classes lost with their last image: {named}")
        if split != "train":
            alone = queries_without_positive(after)
            if newly := int((alone & ~queries_without_positive(before)[alone.index]).sum()):
                changes.append(f"{newly:,} queries lost their last positive")
            changes.append("scores are not comparable with those on the whole set")
        lines.append(f"{split}: {'; '.join(changes)}")
    return replace(manifest, table=table.reset_index(drop=True)), lines


def _listed(bad: pd.DataFrame) -> list[str]:
    rows = zip(bad["image_path"], bad["split"], bad["reason"], strict=True)
    lines = [f"{path} ({split}): {reason}" for path, split, reason in list(rows)[:SHOWN]]
    return lines + ([f"and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else [])
