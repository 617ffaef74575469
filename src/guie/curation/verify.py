"""Open and decode every image, in parallel, and say which cannot be used and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd
from PIL import Image
from tqdm import tqdm

from guie.errors import UserError

OpenImage = Callable[[Path], Image.Image]
Verdict = tuple[int, int, str]  # width, height, reason; no reason: the image is good
CHUNK = 64  # images handed to a worker at once


def drop_unusable(
    table: pd.DataFrame, root: Path, open_image: OpenImage, workers: int, name: str
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """The rows whose image can be decoded, with width and height as opened, and what cannot.

    The files dropped come as {"file", "split", "reason"}. `name` labels the progress bar.
    Raises UserError if no image can be decoded at all.
    """
    verdicts = verify(table["image_path"].unique(), root, open_image, workers, name)
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
    sizes = verdicts[["width", "height"]].reindex(table["image_path"]).set_axis(table.index)
    return table.assign(**sizes)[~unusable].reset_index(drop=True), files


def verify(
    paths: Sequence[str], root: Path, open_image: OpenImage, workers: int, name: str
) -> pd.DataFrame:
    """Decode `root / path` for each path; columns width and height in px, reason ("" if good).

    `open_image` raises UserError on a file it cannot decode. Indexed by path, in the given order
    whatever the number of workers.
    """
    decode = partial(_decode, os.path.realpath(root), open_image)
    with tqdm(total=len(paths), desc=name, unit="img", disable=None) as bar:
        verdicts = []
        for verdict in _mapped(decode, paths, workers):
            verdicts.append(verdict)
            bar.update()
    return pd.DataFrame(verdicts, index=list(paths), columns=["width", "height", "reason"])


def _mapped(
    decode: Callable[[str], Verdict], paths: Sequence[str], workers: int
) -> Iterator[Verdict]:
    if workers <= 1:
        yield from map(decode, paths)
        return
    # Processes, not threads: silencing Pillow's warnings is not thread-safe.
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(decode, paths, chunksize=CHUNK)


def _decode(root: str, open_image: OpenImage, image_path: str) -> Verdict:
    path = os.path.join(root, image_path)
    try:
        real = os.path.realpath(path)
        if os.path.commonpath([root, real]) != root:
            return 0, 0, "a link that leaves the source's folder"
        if os.path.exists(real) and not os.path.isfile(real):
            return 0, 0, "not a regular file"  # opening a pipe would wait for ever
        width, height = open_image(Path(path)).size
    except (UserError, ValueError) as error:  # ValueError: a NUL in the path
        return 0, 0, str(error).replace(f"{path}: ", "", 1).replace(path, image_path)
    return width, height, ""
