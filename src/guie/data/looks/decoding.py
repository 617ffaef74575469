"""Open and decode every image, in parallel, and say which cannot be used and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd
from PIL import Image
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from guie.base.children import follow_parent
from guie.base.errors import UserError

OpenImage = Callable[[Path], Image.Image]
T = TypeVar("T")
R = TypeVar("R")
Verdict = tuple[int, int, str]  # width, height, reason; no reason: the image is good
CHUNK = 64  # images handed to a worker at once


def drop_unusable(
    table: pd.DataFrame,
    root: Path,
    open_image: OpenImage,
    workers: int,
    name: str,
    look: Callable[..., pd.DataFrame] | None = None,
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """The rows whose image can be decoded, with what was seen of it, and the files that cannot.

    The files dropped come as {"file", "split", "reason"}. `name` labels the progress bar. `look` is
    `verify`, which sees width and height, or looks closer: see `fingerprints`.
    Raises UserError if no image can be decoded at all.
    """
    verdicts = (look or verify)(table["image_path"].unique(), root, open_image, workers, name)
    bad = verdicts.loc[verdicts["reason"] != "", "reason"]
    if len(bad) == len(verdicts):
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
    seen = verdicts.drop(columns="reason").reindex(table["image_path"]).set_axis(table.index)
    return table.assign(**seen)[~unusable].reset_index(drop=True), files


def verify(
    paths: Sequence[str], root: Path, open_image: OpenImage, workers: int, name: str
) -> pd.DataFrame:
    """Decode `root / path` for each path; columns width and height in px, reason ("" if good).

    `open_image` raises UserError on a file it cannot decode. Indexed by path, in the given order
    whatever the number of workers.
    """
    verdicts = list(decode_all(paths, root, open_image, workers, name))
    return pd.DataFrame(verdicts, index=list(paths), columns=["width", "height", "reason"])


def decode_all(
    paths: Sequence[str], root: Path, open_image: OpenImage, workers: int, name: str
) -> Iterator[Verdict]:
    """The verdict on each path as soon as it is known, in order, under a progress bar."""
    look = partial(decode, os.path.realpath(root), open_image)
    with tqdm(total=len(paths), desc=name, unit="img", disable=None) as bar:
        for verdict in mapped(look, paths, workers):
            yield verdict
            bar.update()


def mapped(look: Callable[[T], R], asked: Sequence[T], workers: int) -> Iterator[R]:
    """`map` in so many processes of one thread each, in order.

    Raises UserError where one of them was killed.
    """
    with threadpool_limits(1):  # set before they are forked, and here alike: one order of all sums
        if workers <= 1 or len(asked) <= CHUNK:
            yield from map(look, asked)
            return
        # Processes, not threads: silencing Pillow's warnings is not thread-safe.
        with ProcessPoolExecutor(workers, initializer=follow_parent) as pool:
            try:
                yield from pool.map(look, asked, chunksize=CHUNK)
            except BrokenProcessPool:
                raise UserError(
                    f"a process that decodes images was killed, for want of memory perhaps; use"
                    f" fewer than {workers} workers"
                ) from None


def decode(root: str, open_image: OpenImage, image_path: str) -> Verdict:
    path = os.path.join(root, image_path)
    try:
        if _leaves(root, image_path):
            return 0, 0, "a link that leaves the source's folder"
        width, height = open_image(Path(path)).size
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return 0, 0, str(error).replace(f"{path}: ", "", 1).replace(path, image_path)
    return width, height, ""


def _leaves(root: str, image_path: str) -> bool:
    """Whether a file leads out of the root, and out of every folder on the way to it too.

    A data set may be linked into the root as a folder; one file of it may not lead elsewhere.
    """
    real = os.path.realpath(os.path.join(root, image_path))
    folders = (os.path.realpath(os.path.join(root, f)) for f in reversed(Path(image_path).parents))
    return not any(os.path.commonpath([folder, real]) == folder for folder in folders)
