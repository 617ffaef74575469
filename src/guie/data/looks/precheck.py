"""Before training: every image that it will open is decoded once, so that no epoch ends on one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from accelerate import Accelerator

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import replacing
from guie.data.images import decoder_key, open_as_host, open_as_host_once_seen, open_as_seen
from guie.data.looks.decoded import Decoded, absolute, decoded_folder, file_states
from guie.data.looks.decoding import OpenImage, decode_all
from guie.data.manifest import Manifest, queries_without_positive

# By split, as data.py opens what is trained on, and what is embedded.
DECODERS = {"train": open_as_seen, "val": open_as_host, "test": open_as_host}
TO_EMBED = dict.fromkeys(DECODERS, open_as_host)
SHOWN = 20  # files listed; the rest are counted
SAVE_EVERY_S = 60.0


def readable(
    accelerator: Accelerator,
    manifest: Manifest,
    splits: Sequence[str],
    *,
    fallback: Path,
    drop_bad: bool,
    dropped: Path,
    decoders: Mapping[str, OpenImage] | None = None,
) -> Manifest:
    """The manifest; refused, or with `drop_bad` shortened, where an image cannot be decoded.

    Every process must call it; the main one looks, and its manifest has the `states` of the files.

    Args:
        splits: whose images will be opened.
        fallback: folder that remembers good files where none can be written beside the manifest.
        dropped: file that lists what is left out.
        decoders: how the images of a split will be opened; None: as in training.

    Raises UserError.
    """
    rows = manifest.table[manifest.table["split"].isin(splits)]
    cache = decoded_folder(manifest.path, fallback)
    states = _states(rows, manifest.root) if accelerator.is_main_process else None
    cores = os.cpu_count() or 1
    look = partial(find_unreadable, rows, manifest.root, cache, cores, decoders, states)
    bad = from_main(accelerator, look)
    if states is not None:
        manifest = replace(manifest, states=states[["size_bytes", "mtime_ns"]])
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
    cache: str | Path,
    workers: int,
    decoders: Mapping[str, OpenImage] | None = None,
    states: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Rows of a manifest whose image cannot be decoded as its split will be.

    Args:
        table: rows with image_path and split.
        root: folder that image_path starts from.
        cache: folder for `decoded.parquet`: a file is decoded again only after a change.
        workers: decoding processes.
        decoders: by split; None: as in training.
        states: of the files, as of `Manifest`; None: they are asked for here.

    Returns:
        Columns image_path, split and reason, indexed as `table`.

    Raises:
        UserError: the cache cannot be written.
    """
    known, unreadable = Decoded(cache), []
    # Before they are opened: a file that changes meanwhile is then decoded again next time.
    states = _states(table, root) if states is None else states
    used = table["split"].map(decoders or DECODERS)
    for decoder in (open_as_seen, open_as_host):
        rows = table[used == decoder]
        states_of_rows = states.loc[rows["image_path"].unique()]
        reasons = _reasons(states_of_rows, root, decoder, known, workers)
        bad = rows.loc[rows["image_path"].isin(reasons.keys()), ["image_path", "split"]]
        unreadable.append(bad.assign(reason=bad["image_path"].map(reasons)))
    return pd.concat(unreadable).sort_index()


def refuse_unreadable(bad: pd.DataFrame, manifest: Manifest) -> None:
    """Raise one UserError that lists the images of `find_unreadable`, if there are any."""
    if bad.empty:
        return
    remedy = "mend them, curate again (src/curate.py leaves them out) or pass --drop-bad"
    if len(bad) == manifest.table["split"].isin(bad["split"]).sum():  # not one can be read
        remedy = f"is {manifest.root} the folder that image_path starts from?"
    first = f"{manifest.path}: {len(bad):,} rows have an image that cannot be read; {remedy}"
    raise UserError("\n".join([first, *_listed(bad)]))


def drop_unreadable(manifest: Manifest, bad: pd.DataFrame) -> tuple[Manifest, list[str]]:
    """The manifest without the rows of `find_unreadable`, and what that changes, line by line.

    Raises UserError if a split loses all of its images.
    """
    table = manifest.table.drop(bad.index)
    lines = [f"dropped {line}" for line in _listed(bad)]
    for split in bad["split"].unique():
        before = manifest.table[manifest.table["split"] == split]
        after = table[table["split"] == split]
        if after.empty:
            raise UserError(
                f"{manifest.path}: none of {len(before):,} {split} images can be read;"
                f" is {manifest.root} the folder that image_path starts from?"
            )
        lines.append(f"{split}: {'; '.join(_changes(split, before, after))}")
    return replace(manifest, table=table.reset_index(drop=True)), lines


def _states(table: pd.DataFrame, root: Path) -> pd.DataFrame:
    """`file_states` of the images of a manifest's rows, by image_path."""
    paths = table["image_path"].unique()
    return file_states(absolute(root, paths), "").set_axis(pd.Index(paths, name="path"))


def _reasons(
    states: pd.DataFrame, root: Path, decoder: OpenImage, known: Decoded, workers: int
) -> dict[str, str]:
    """{path: why it cannot be read}, without decoding what is known."""
    states = states.assign(decoder=decoder_key(decoder)).reset_index()
    states = states[~known.are_known(states)]
    if decoder is not open_as_host:
        return _decoded(states, root, decoder, known, workers)
    seen = known.are_known(states.assign(decoder=decoder_key(open_as_seen)))
    return _decoded(states[seen], root, open_as_host_once_seen, known, workers) | _decoded(
        states[~seen], root, decoder, known, workers
    )


def _decoded(
    states: pd.DataFrame, root: Path, decoder: OpenImage, known: Decoded, workers: int
) -> dict[str, str]:
    """`_reasons` of files that are decoded now; the good ones are known from here on."""
    reasons, good, saved_at = {}, [], time.monotonic()
    name = decoder_key(decoder).replace("_", " ")
    verdicts = decode_all(states["path"].tolist(), root, decoder, workers, name)
    try:
        for row, path, (_, _, reason) in zip(states.index, states["path"], verdicts, strict=True):
            if reason:
                reasons[path] = reason
            else:
                good.append(row)
            if time.monotonic() - saved_at > SAVE_EVERY_S:
                known.add(states.loc[good].drop(columns="path"))
                good, saved_at = [], time.monotonic()
    finally:  # after Ctrl-C too, the next run goes on from here
        known.add(states.loc[good].drop(columns="path"))
    return reasons


def _listed(bad: pd.DataFrame) -> list[str]:
    rows = zip(bad["image_path"], bad["split"], bad["reason"], strict=True)
    lines = [f"{path} ({split}): {reason}" for path, split, reason in list(rows)[:SHOWN]]
    return lines + ([f"and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else [])


def _changes(split: str, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[str]:
    """What became of a split: images, classes, and queries that the metrics will pass over."""
    yield f"{len(before) - len(after):,} of {len(before):,} images dropped"
    lost = sorted(_classes(before) - _classes(after))
    if lost:
        more = ", ..." if len(lost) > SHOWN else ""
        yield f"{len(lost):,} classes lost with their last image: {', '.join(lost[:SHOWN])}{more}"
    if split != "train":
        alone = queries_without_positive(after)
        newly = alone & ~queries_without_positive(before)[alone.index]
        if newly.any():
            yield f"{int(newly.sum()):,} queries lost their last positive"
        yield "scores do not compare with those on the whole set"


def _classes(rows: pd.DataFrame) -> set[str]:
    return set(rows["label"].str.split("|").explode())
