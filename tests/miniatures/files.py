"""What datasets in small are made of: empty images, lists, MATLAB arrays."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np


def touch(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write(path, json.dumps(value))


def removed(*names: str) -> Callable[[Path], None]:
    """Return a change that deletes files below a folder."""

    def change(root: Path) -> None:
        for name in names:
            (root / name).unlink()

    return change


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return a change that replaces text, which must occur, in a file below a folder."""

    def change(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def cells(values: Sequence[object]) -> np.ndarray:
    """A MATLAB cell array."""
    array = np.empty((1, len(values)), dtype=object)
    array[0] = values
    return array


def struct(columns: dict[str, Sequence[object]]) -> np.ndarray:
    """A MATLAB struct array, a field a column."""
    rows = list(zip(*columns.values(), strict=True))
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in columns])
    array[0] = rows
    return array
