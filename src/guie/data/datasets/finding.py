"""Find the data sets in `input/` (on Kaggle in `/kaggle/input`)."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from guie.base.errors import UserError
from guie.config.data import DatasetSource, Source
from guie.data.datasets import DATASETS, Dataset

ROOTS = (Path("input"), Path("/kaggle/input"))
MAX_WRAPPING = 20  # more sibling folders than this are classes, not wrappers made by an archive
DEPTH = 2  # wrapping folders that an archive or Kaggle may add around a data set's own


def find(dataset: Dataset, roots: Sequence[str | Path]) -> Path | None:
    """Return a data set's folder below the first of the roots that has it, or None.

    A folder is a data set's if it has one of its names, ignoring case, and contains one of its marker
    files at most two folders deep.
    """
    for root in filter(os.path.isdir, roots):
        folders = sorted(folder for folder in Path(root).iterdir() if folder.is_dir())
        present = {_bare(folder.name): folder for folder in folders}
        for name in dataset.folders:
            folder = present.get(_bare(name))
            if folder and (marked := _marked(dataset, folder)):
                return marked
    return None


def located(name: str, roots: Sequence[str | Path] | None = None) -> Path:
    """Return a data set's folder, below `ROOTS` by default. Raises UserError if no root has it."""
    dataset, roots = DATASETS[name], roots or ROOTS
    if folder := find(dataset, roots):
        return folder
    where, markers = " or ".join(map(str, roots)), " or ".join(dataset.markers)
    raise UserError(
        f"{dataset.title} is not in {where}: no folder {', '.join(dataset.folders)} with {markers}; get"
        f" it from {dataset.homepage}, or name its folder with path: (see input/README.md)"
    )


def listing(roots: Sequence[str | Path] | None = None) -> str:
    """Return the text of `curate.py --list`: one line per data set, with its folder or homepage."""
    roots = roots or ROOTS
    folders = {name: find(dataset, roots) for name, dataset in DATASETS.items()}
    found = sum(folder is not None for folder in folders.values())
    lines = [f"{found} of {len(folders)} datasets found in {', '.join(map(str, roots))}"]
    name_width = max(map(len, DATASETS))
    title_width = max(len(dataset.title) for dataset in DATASETS.values())
    for name, dataset in DATASETS.items():
        where = folders[name] or f"-  {dataset.homepage}"
        lines.append(f"{name:{name_width}}  {dataset.title:{title_width}}  {where}")
    return "\n".join(lines)


def _marked(dataset: Dataset, folder: Path) -> Path | None:
    level = [folder]
    for _ in range(DEPTH + 1):
        for candidate in level:
            if any((candidate / marker).exists() for marker in dataset.markers):
                return candidate
        level = [below for candidate in level for below in _subfolders(candidate)]
    return None


def _subfolders(folder: Path) -> list[Path]:
    with suppress(PermissionError), os.scandir(folder) as entries:
        below = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        return [folder / name for name in below] if len(below) <= MAX_WRAPPING else []
    return []


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def with_path(source: Source) -> Source:
    """Return a data set source with its folder filled in, any other unchanged. Raises UserError."""
    if not isinstance(source, DatasetSource):
        return source
    return source.model_copy(update={"path": str(folder_of(source))})


def folder_of(source: DatasetSource) -> Path:
    """Return a data set source's folder. Raises UserError if it is not found."""
    if source.path is None:
        return located(source.kind)
    folder = Path(source.path)  # or a folder above
    return _marked(DATASETS[source.kind], folder) or folder
