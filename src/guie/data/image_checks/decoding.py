"""Decode every image once before it is needed, in parallel, and report unusable images with reasons."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import PIL
from accelerate import Accelerator
from PIL import Image
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from guie.base.arguments import CHECK_CONTENT
from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import refuse_foreign_list, replacing
from guie.base.processes import follow_parent, usable_cores
from guie.data.image_checks.stored import StoredTable, save_in_pieces, stored_folder
from guie.data.images import OpenImage, difference, open_as_seen, whole_px
from guie.data.manifest import Manifest, queries_without_positive
from guie.data.manifest.reading import class_names
from guie.data.shards.cached import open_places
from guie.data.shards.index import is_index
from guie.data.shards.opening import decoded_in_shards, states_in_shards
from guie.data.shards.storage import content_hash

# Another Pillow version may read fewer files, so it decodes all again. Raise the number with images.py.
VERSION = f"2, Pillow {PIL.__version__}"
TYPES = {"file": str, "decoder": str, "size_bytes": int, "mtime_ns": int, "version": str}
KEY = list(TYPES)
STATE = ["size_bytes", "mtime_ns"]  # of a file: what changes with its content
STAT_THREADS, STAT_FILES = 32, 500  # threads that ask for states, and files that one takes at once


class Decoded:
    """The good files in a folder's `StoredTable`, by path, size, modification time and decoder.

    Bad files are not stored, so they are checked on every run until they are repaired.
    """

    def __init__(self, folder: str | Path):
        self.stored = StoredTable(folder)
        own = [rows[rows["version"] == VERSION] for rows in self.stored.read(KEY)]
        self._known = pd.concat([pd.DataFrame(columns=KEY), *own]).astype(TYPES)

    def are_known(self, states: pd.DataFrame) -> pd.Series:
        """Return a boolean per row of `states`: this unchanged file was decoded before."""
        known = self._known.drop_duplicates()
        merged = states.merge(known, "left", on=KEY, indicator="found")
        found = (merged["found"] == "both") & (merged["size_bytes"] >= 0)
        return found.set_axis(states.index)

    def add(self, states: pd.DataFrame) -> None:
        """Store good files, on disk too. Raises UserError if that cannot be written."""
        self.stored.add(states[KEY])
        self._known = pd.concat([self._known, states[KEY]])


def decoded_folder(manifest: Path) -> Path:
    """Return the folder for `Decoded` of the manifests in one folder, shared by all runs."""
    return stored_folder("decoded", manifest.parent)


def absolute(root: str | Path, paths: Sequence[str]) -> list[str]:
    """Return the files of image paths under the names that caches use."""
    inside = os.path.join(os.path.abspath(root), "")
    names = np.asarray(paths, object).tolist()  # a column of Arrow strings is slow to iterate over
    return [path if path.startswith(os.sep) else inside + path for path in names]


def file_states(files: Sequence[str], decoder: str, by_content: bool | None = None) -> pd.DataFrame:
    """Return the current KEY of each file; size and time are -1 if it cannot be read at all.

    An image in a shard has a number in place of the time that changes with its bytes, and so has any file
    with `by_content`, by default with `--check-content`.
    """
    by_content = bool(os.environ.get(CHECK_CONTENT)) if by_content is None else by_content
    in_shard_N, size_N, time_N = states_in_shards(files)
    loose = np.flatnonzero(~in_shard_N)
    parts = np.split(loose, range(STAT_FILES, len(loose), STAT_FILES))
    # A network disk takes milliseconds for each file
    with ThreadPoolExecutor(STAT_THREADS) as pool:
        answers = pool.map(
            lambda part: [_size_and_time(files[row], by_content) for row in part], parts
        )
        for part, found in zip(parts, answers, strict=True):
            size_N[part], time_N[part] = np.reshape(found, (-1, 2)).T
    states = pd.DataFrame({"file": files, "size_bytes": size_N, "mtime_ns": time_N})
    return states.assign(decoder=decoder, version=VERSION)[KEY].astype(TYPES)


def _size_and_time(file: str, by_content: bool) -> tuple[int, int]:
    try:
        state = os.stat(file)
        if by_content and stat.S_ISREG(state.st_mode):
            data = Path(file).read_bytes()
            return len(data), content_hash(data) >> 1  # as an int64
        # A good file that has become unreadable keeps its size and time, so read access is tested.
        readable = os.access(file, os.R_OK)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return -1, -1
    return (state.st_size, state.st_mtime_ns) if readable else (-1, -1)


T = TypeVar("T")
R = TypeVar("R")
Verdict = tuple[int, int, str, str]  # width, height, reason ("": the image is good), `difference`
# Maps a root, a decoder and an image_path to a row that begins with a Verdict.
CheckImage = Callable[[str, OpenImage, str], tuple[Any, ...]]
CHUNK = 64  # images given to a worker at once


def opened(root: str, open_image: OpenImage, image_path: str) -> Image.Image | str:
    """Return an image of a folder, or the reason that it cannot be used."""
    path = os.path.join(root, image_path)
    try:
        if _leaves(root, image_path):
            return "a link that leaves the source's folder"
        return open_image(Path(path))
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return str(error).replace(f"{path}: ", "", 1).replace(path, image_path)


def decode(root: str, open_image: OpenImage, image_path: str) -> Verdict:
    """Decode one image of a folder; return its verdict."""
    image = opened(root, open_image, image_path)
    return (
        (0, 0, image, "") if isinstance(image, str) else (*whole_px(image), "", difference(image))
    )


def _leaves(root: str, image_path: str) -> bool:
    """Return whether a file's link leads out of the root, and of every folder on the way to it.

    A data set's folder may be a link out of the root; a single file inside it may not.
    """
    real = os.path.realpath(os.path.join(root, image_path))
    folders = (os.path.realpath(os.path.join(root, f)) for f in reversed(Path(image_path).parents))
    return not any(os.path.commonpath([folder, real]) == folder for folder in folders)


class Check(NamedTuple):
    """What curation finds out about each image: `VERIFY` or `hashes.FINGERPRINTS`."""

    name: str
    check_image: CheckImage
    columns: tuple[str, ...]
    version: str  # rows of another version are computed again


VERIFY = Check("verified", decode, ("width", "height", "reason", "differs"), VERSION)


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


def check_all(
    paths: Sequence[str],
    root: Path,
    open_image: OpenImage,
    workers: int,
    name: str,
    check_image: CheckImage = decode,
) -> Iterator[tuple[Any, ...]]:
    """Yield the row of each path as soon as it is known, in order, with a progress bar."""
    one = partial(check_image, os.path.realpath(root), open_image)
    with tqdm(total=len(paths), desc=name, unit="img", disable=None) as bar:
        for row in mapped(one, paths, workers):
            yield row
            bar.update()


def mapped(
    look: Callable[[T], R], asked: Sequence[T], workers: int, chunk: int = CHUNK
) -> Iterator[R]:
    """Run `map` in `workers` processes of one thread each, in order; each takes `chunk` items at once.

    Raises UserError if one of them was killed.
    """
    with threadpool_limits(1):  # before the fork, and here too, so that all sums have one order
        if workers <= 1 or len(asked) <= chunk:
            yield from map(look, asked)
            return
        # Processes, not threads: silencing Pillow's warnings is not thread-safe.
        with ProcessPoolExecutor(workers, initializer=follow_parent) as pool:
            try:
                yield from pool.map(look, asked, chunksize=chunk)
            except BrokenProcessPool:
                raise UserError(
                    f"a process that decodes images was killed, perhaps because memory ran out; use"
                    f" fewer than {workers} workers"
                ) from None


SHOWN = 20  # files listed; the rest are counted
LISTED = ["image_path", "split", "reason"]  # columns of such a list


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
    cache = decoded_folder(manifest.path)
    states = _states(rows, manifest.root) if accelerator.is_main_process else None
    asked = (rows, manifest.root, cache, usable_cores(), manifest.open_image, states)
    look = partial(find_unreadable, *asked)
    bad = from_main(accelerator, look)
    if states is not None and not indexed:
        known = states[STATE].reindex(table["image_path"], fill_value=-1)
        manifest = replace(manifest, table=table.assign(**known.set_axis(table.index)))
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
    decoder: OpenImage = open_as_seen,
    states: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the rows of a manifest whose image does not decode.

    Of the images decoded here, those that `seen` and `host` differ on are counted, in a line.

    Args:
        table: rows with image_path and split.
        root: folder that image_path starts from.
        cache: folder of a `Decoded`: a file is decoded again only after a change.
        workers: decoding processes.
        decoder: the function that will open them.
        states: `file_states` of the files, by image_path; None: they are read here.

    Returns:
        Columns image_path, split and reason, indexed like `table`.

    Raises:
        UserError: the cache cannot be written.
    """
    known = Decoded(cache)
    # Before the files are opened, so that a file that changes meanwhile is decoded again next time.
    states = _states(table, root) if states is None else states
    found = _verdicts(states, root, decoder, known, workers)
    if line := differing(found["differs"], len(states)):
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
            raise UserError(
                f"{manifest.path}: none of {len(before):,} {split} images can be read;"
                f" is {manifest.root} the folder that image_path starts from?"
            )
        lines.append(f"{split}: {'; '.join(_changes(split, before, after))}")
    return replace(manifest, table=table.reset_index(drop=True)), lines


def _states(table: pd.DataFrame, root: Path) -> pd.DataFrame:
    """Return `file_states` of the images of a manifest's rows, by image_path."""
    paths = table["image_path"].unique()
    return file_states(absolute(root, paths), "").set_axis(pd.Index(paths, name="path"))


def _verdicts(
    states: pd.DataFrame, root: Path, decoder: OpenImage, known: Decoded, workers: int
) -> pd.DataFrame:
    """Return reason and differs by path of the files that are not known to be good; store the good ones."""
    states = states.assign(decoder=decoder.__name__).reset_index()
    states = states[~decoded_in_shards(states["file"].tolist(), VERSION)]
    # The host reads whatever `open_as_seen` reads
    for done in (decoder.__name__, open_as_seen.__name__):
        states = states[~known.are_known(states.assign(decoder=done))]
    found = []
    name = decoder.__name__.replace("_", " ")
    verdicts = check_all(states["path"].tolist(), root, decoder, workers, name)

    def good() -> Iterator[int]:
        for row, (_, _, reason, differs) in zip(states.index, verdicts, strict=True):
            found.append((reason, differs))
            if not reason:
                yield row

    save_in_pieces(good(), lambda rows: known.add(states.loc[rows]))
    return pd.DataFrame(found, states["path"].tolist(), ["reason", "differs"], dtype=str)


def _listed(bad: pd.DataFrame) -> list[str]:
    rows = zip(bad["image_path"], bad["split"], bad["reason"], strict=True)
    lines = [f"{path} ({split}): {reason}" for path, split, reason in list(rows)[:SHOWN]]
    return lines + ([f"and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else [])


def _changes(split: str, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[str]:
    """Yield what a split lost: images, classes, and queries that the metrics now skip."""
    yield f"{len(before) - len(after):,} of {len(before):,} images dropped"
    lost = sorted(class_names(before["label"]) - class_names(after["label"]))
    if lost:
        more = ", ..." if len(lost) > SHOWN else ""
        yield f"{len(lost):,} classes lost with their last image: {', '.join(lost[:SHOWN])}{more}"
    if split != "train":
        alone = queries_without_positive(after)
        newly = alone & ~queries_without_positive(before)[alone.index]
        if newly.any():
            yield f"{int(newly.sum()):,} queries lost their last positive"
        yield "scores are not comparable with those on the whole set"
