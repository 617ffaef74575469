"""Which datasets lie in `input/`, or on Kaggle in `/kaggle/input`, and in which folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, Dataset

ROOTS = (Path("input"), Path("/kaggle/input"))
MAX_WRAPPING = 20  # more folders side by side are classes, not what an archive puts around
DEPTH = 2  # folders that an archive or Kaggle may put around a dataset's own


def find(root: str | Path) -> list[tuple[Dataset, Path | None]]:
    """Every known dataset with its folder below `root`, or None, in the registry's order.

    A folder is a dataset's if it bears one of its names, whatever the case, and one of its marker
    files is in it or at most two folders deeper.
    """
    present = _folders(Path(root))
    return [(dataset, _locate(dataset, present)) for dataset in DATASETS.values()]


def located(name: str, roots: Sequence[str | Path] | None = None) -> Path:
    """The folder of one dataset, below `ROOTS` by default. Raises UserError if no root holds it."""
    dataset, searched = DATASETS[name], [Path(root) for root in roots or ROOTS]
    for root in searched:
        folder = _locate(dataset, _folders(root))
        if folder:
            return folder
    raise UserError(
        f"{dataset.title} is not in {' or '.join(map(str, searched))}: no folder"
        f" {', '.join(dataset.folders)} with {' or '.join(dataset.markers)}; get it from"
        f" {dataset.homepage}, or name its folder with path: (see input/README.md)"
    )


def inside(dataset: Dataset, folder: str | Path) -> Path:
    """`folder`, or the one within that holds the dataset's marker; `folder` if none does."""
    return _marked(dataset, Path(folder)) or Path(folder)


def listing(roots: Sequence[str | Path] | None = None) -> str:
    """What `curate.py --list` prints: a line a dataset, with its folder or where to get it."""
    roots = roots or ROOTS
    present = {root: _folders(Path(root)) for root in roots}
    lines = []
    for dataset in DATASETS.values():
        folders = (_locate(dataset, below) for below in present.values())
        folder = next((found for found in folders if found), None)
        where = str(folder) if folder else f"-  {dataset.homepage}"
        lines.append((dataset.name, dataset.title, where))
    name_width, title_width = (max(len(line[column]) for line in lines) for column in (0, 1))
    found = sum(not where.startswith("-") for _, _, where in lines)
    head = f"{found} of {len(lines)} datasets found in {', '.join(map(str, roots))}"
    rows = [f"{name:{name_width}}  {title:{title_width}}  {where}" for name, title, where in lines]
    return "\n".join([head, *rows])


def _folders(root: Path) -> dict[str, Path]:
    """Folders in `root` by their name without case and punctuation."""
    if not root.is_dir():
        return {}
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir())
    return {_bare(name): root / name for name in names}


def _locate(dataset: Dataset, present: dict[str, Path]) -> Path | None:
    candidates = (present.get(_bare(name)) for name in dataset.folders)
    marked = (_marked(dataset, folder) for folder in candidates if folder)
    return next((folder for folder in marked if folder), None)


def _marked(dataset: Dataset, folder: Path) -> Path | None:
    level = [folder]
    for _ in range(DEPTH + 1):
        for candidate in level:
            if any((candidate / marker).exists() for marker in dataset.markers):
                return candidate
        level = [below for candidate in level for below in _subfolders(candidate)]
    return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
    except PermissionError:
        return []
    return [folder / name for name in below] if len(below) <= MAX_WRAPPING else []


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
