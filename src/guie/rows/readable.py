"""Report unusable images with reasons before they are needed, and drop them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import refuse_foreign_list, replacing
from guie.base.processes import usable_cores
from guie.data.images import OpenImage, open_as_seen
from guie.data.manifest import Manifest, queries_without_positive
from guie.data.manifest.reading import class_names
from guie.data.shards.index import is_index, open_places
from guie.data.shards.opening import decoded_in_shards
from guie.rows.checks import VERIFY, VERSION, Checks
from guie.rows.states import States, absolute, states

STATE = ["size_bytes", "mtime_ns"]  # of a file: what changes with its content
LISTED = ["image_path", "split", "reason"]  # columns of a list of dropped rows
SHOWN = 20  # files listed in a message; the rest are counted


def drop_unusable(
    table: pd.DataFrame, root: Path, checked: pd.DataFrame, name: str
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Return the rows whose image is good, with the other columns of their check, and the dropped files.

    A dropped file is {"file", "split", "reason"}.

    Args:
        root: folder that image_path starts from.
        checked: the rows of a `Check`, by image_path.
        name: of the source, for messages.

    Raises UserError if no image can be decoded at all.
    """
    bad = checked.loc[checked["reason"] != "", "reason"]
    if len(bad) == len(checked):
        raise UserError(
            f"{name}: none of {len(bad):,} images can be used; the first, under {root}:"
            f" {bad.index[0]}: {bad.iloc[0]}; is this the folder that image_path starts from?"
        )
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
    find = partial(find_unreadable, rows, manifest.root, usable_cores(), manifest.open_image, known)
    bad = from_main(accelerator, find)
    if known is not None and not indexed:
        found = pd.DataFrame(np.stack([known.size_N, known.time_N], axis=1), paths, STATE)
        of_rows = found.reindex(table["image_path"], fill_value=-1)
        columns = {name: of_rows[name].to_numpy() for name in STATE}
        manifest = replace(manifest, table=table.assign(**columns))
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
    decoder: OpenImage = open_as_seen,
    known: States | None = None,
) -> pd.DataFrame:
    """Return the rows of a manifest whose image does not decode.

    A file is decoded again only after a change. Of the images decoded here, those that `seen` and `host`
    differ on are counted, in a line.

    Args:
        table: rows with image_path and split.
        root: folder that image_path starts from.
        workers: decoding processes.
        decoder: the function that will open them.
        known: `states` of the unique image_paths; None: they are read here.

    Returns columns image_path, split and reason, indexed like `table`. Raises UserError if the store cannot
    be written.
    """
    paths = table["image_path"].unique().astype(object)
    known = states(root, paths) if known is None else known
    wanted = np.flatnonzero(~decoded_in_shards(absolute(root, paths), VERSION))
    if decoder.__name__ != open_as_seen.__name__:  # the host reads whatever `open_as_seen` reads
        seen = Checks(VERIFY, root, paths[wanted], known=known.take(wanted))
        there = np.setdiff1d(seen.readable, seen.missing())
        good = seen.store.table(seen.states.take(there), ["reason"])["reason"] == ""
        wanted = np.delete(wanted, there[good])
    checks = Checks(VERIFY, root, paths[wanted], decoder, known=known.take(wanted))
    decoded = checks.fill(workers, decoder.__name__.replace("_", " "))
    found = checks.table(["reason", "differs"])
    if line := differing(found["differs"].iloc[decoded], len(paths)):
        print(f"{root}: {line}", file=sys.stderr)
    reasons = found.loc[found["reason"] != "", "reason"]
    bad = table.loc[table["image_path"].isin(reasons.index), ["image_path", "split"]]
    return bad.assign(reason=bad["image_path"].map(reasons))


def differing(differs: pd.Series, images: int) -> str:
    """Return a line on the images that `seen` and `host` differ on; empty if there are none.

    Args:
        differs: `difference` by image path.
        images: number of images that were decoded.
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
    """Raise one UserError that lists the images of `find_unreadable`, if there are any."""
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
            more = ", ..." if len(lost) > SHOWN else ""
            named = ", ".join(lost[:SHOWN])
            changes.append(f"{len(lost):,} classes lost with their last image: {named}{more}")
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
