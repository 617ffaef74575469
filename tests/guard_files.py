"""The content of a run's files, and where two of them differ first; tests/guard.py compares them."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file

# Times and memory; what repeats the question, which may have more keys than it had; the code's version; and
# messages, which may be reworded: the numbers in them are elsewhere in the file too.
DROPPED = re.compile(
    r".*(seconds|hours|memory).*|command|config|submission|torch|device|detail|how|src|commit|dirty"
)
ODD_SIZES_HW = ((1, 1), (37, 91), (203, 64))

Content = dict[str, Any]  # of a file, by place


def content(path: Path) -> Content:
    """The content of a file, without times; of a folder, the hash of every file in it."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): digest(file) for file in files}
    match path.suffix:
        case ".safetensors":
            return load_file(path)
        case ".npz":
            with np.load(path) as arrays:
                rows = zip(arrays["image_path"].tolist(), arrays["embedding"], strict=True)
                return {image: torch.from_numpy(row) for image, row in sorted(rows)}
        case ".parquet":
            table = pd.read_parquet(path)
            cells = {f"row {n}: {key}": v for key in table for n, v in enumerate(table[key], 1)}
            return {
                k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in cells.items()
            }
        case ".tar":
            return {"sha256": digest(path)}
        case ".zip" | ".pt2":
            return answers(path)
        case ".json":
            return flat(json.loads(path.read_text(encoding="utf-8")))
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        lines = [flat(json.loads(line)) for line in lines]
        return {f"line {n}: {key}": v for n, line in enumerate(lines, 1) for key, v in line.items()}
    # The hash of a submission changes with the names of classes in its code.
    lines = [re.sub(r",[0-9a-f]{64}$", "", line) for line in lines]
    return {f"line {number}": line for number, line in enumerate(lines, 1)}


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def flat(value: Any, place: str = "") -> Content:
    """{"a": [{"b": 1}]} -> {"a.0.b": 1}, without what is dropped."""
    if not isinstance(value, dict | list):
        return {place: value}
    items = value.items() if isinstance(value, dict) else map(numbered, enumerate(value))
    kept = [(str(key), item) for key, item in items if not DROPPED.fullmatch(str(key))]
    parts = [flat(item, f"{place}.{key}" if place else key) for key, item in kept]
    return {key: item for part in parts for key, item in part.items()}


def numbered(entry: tuple[int, Any]) -> tuple[int | str, Any]:
    """An item of a list with its number; a study's result with its job, as its place depends on a hash."""
    number, item = entry
    if isinstance(item, dict) and {"row", "seed", "fold"} <= item.keys():
        return f"{item['row']}, seed {item['seed']}, fold {item['fold']}", item
    return entry


@torch.no_grad()
def answers(exported: Path) -> Content:
    """The embeddings of a submission or a program of torch.export, of images of odd sizes."""
    if exported.suffix == ".pt2":
        model = torch.export.load(exported).module()
    else:
        with zipfile.ZipFile(exported) as archive:
            model = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))
    noise = np.random.default_rng(0)
    images = {
        f"{height} x {width}": noise.integers(0, 256, (1, 3, height, width), dtype=np.uint8)
        for height, width in ODD_SIZES_HW
    }
    return {size: model(torch.from_numpy(image))[0] for size, image in images.items()}


def difference(then: Content, now: Content, names: tuple[str, str] = ("then", "now")) -> str | None:
    """The first place where two files differ, and how many there are; None where they do not."""
    unlike = [key for key in {**then, **now} if not same(then.get(key, ...), now.get(key, ...))]
    if not unlike:
        return None
    key, more = unlike[0], f" (and {len(unlike) - 1} more)" if unlike[1:] else ""
    for name, here, other in ((names[0], then, now), (names[1], now, then)):
        if key not in other:
            return f"{key}: only in {name}: {shown(here[key])}{more}"
    a, b = then[key], now[key]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
        return f"{key}: apart by {apart(a, b):.2g} at most{more}"
    return f"{key}: {shown(a)} | {shown(b)}{more}"


def pass_over(
    name: str, then: Content, now: Content, may_differ: Mapping[str, float | None]
) -> Iterator[str]:
    """Take out what may differ and does, by at most so much if a number is given; yield the pattern of each.

    A pattern is one of file names, or of `NAME: PLACE`; the dictionaries are changed.
    """
    for key in [key for key in {**then, **now} if not same(then.get(key, ...), now.get(key, ...))]:
        for pattern, limit in may_differ.items():
            named = fnmatchcase(name, pattern) or fnmatchcase(f"{name}: {key}", pattern)
            if named and (limit is None or apart(then.get(key), now.get(key)) <= limit):
                then.pop(key, None)
                now.pop(key, None)
                yield pattern
                break


def apart(a: Any, b: Any) -> float:
    """The largest difference of two numbers or tensors; of anything else, infinity."""
    try:
        a, b = (torch.as_tensor(value).double() for value in (a, b))
        return (a - b).abs().max().item() if a.shape == b.shape else float("inf")
    except (TypeError, RuntimeError):
        return float("inf")


def same(a: Any, b: Any) -> bool:
    """To the bit."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b) and a == b
    alike = a.dtype == b.dtype and a.shape == b.shape
    return alike and torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in (a, b)))


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
