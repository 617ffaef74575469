"""What the benchmarks share: the command line, ways that take turns, tables, peak memory, drawn data.

A benchmark is its set-up and the ways that it compares, as functions without arguments.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.config import real_root
from guie.data.manifest import Manifest, load_manifest
from guie.evaluation.search import Images

GRAIN = 4.0  # grey levels of noise: 2.5 bits a pixel, as photographs of quality 85 to 90 have
DOMAINS = ("landmarks", "nature", "food", "products", "art", "retail", "clothes", "cars")

Way = Callable[[], object]


def arguments(
    doc: str, *positional: str, parts: Sequence[str] = (), **options: Any
) -> argparse.Namespace:
    """Parse the command line.

    Args:
        doc: the benchmark's docstring, which --help shows.
        positional: paths that have to be given.
        parts: what can be measured alone; by default all, in this order.
        options: by name the default. A type has to be given, `T | None` may be left out, False is
            a switch, a list or `list[T]` takes several values, an empty list one at each repetition.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in positional:
        parser.add_argument(name, type=Path)
    if parts:
        parser.add_argument(
            "parts", nargs="*", metavar="part", help=f"{', '.join(parts)}; default: all"
        )
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_words(default))
    args = parser.parse_args()
    if parts and (unknown := sorted(set(args.parts) - set(parts))):
        parser.error(f"no part {', '.join(unknown)}; choose of {', '.join(parts)}")
    if parts:
        args.parts = args.parts or parts
    return args


def _words(default: Any) -> dict[str, Any]:
    """What argparse is to know of an option with this default."""
    if default is False:
        return {"action": "store_true"}
    if default == []:
        return {"action": "append", "default": []}
    if isinstance(default, UnionType):
        return _words(default.__args__[0]) | {"required": False}
    if isinstance(default, GenericAlias):
        return {"type": default.__args__[0], "nargs": "+", "required": True}
    if isinstance(default, type):
        return {"type": default, "required": True}
    if isinstance(default, list):
        return {"type": type(default[0]), "nargs": "+", "default": default}
    return {"type": type(default), "default": default}


def in_turn(
    ways: dict[str, Way],
    rounds: int,
    clock: Callable[[], Any] = time.perf_counter,
    warm_up: bool = True,
) -> dict[str, np.ndarray]:
    """Return the seconds of each way in each round: in turn, so that all meet the same machine.

    Args:
        clock: `time.process_time` where neighbours on the machine would disturb; `wall_and_cpu`.
        warm_up: leave a first round out.
    """
    taken: dict[str, list[Any]] = {name: [] for name in ways}
    for _ in range(rounds + warm_up):
        for name, way in ways.items():
            taken[name].append(seconds_of(way, clock))
    return {name: np.array(seconds[warm_up:]) for name, seconds in taken.items()}


def seconds_of(way: Way, clock: Callable[[], Any] = time.perf_counter) -> Any:
    began = clock()
    way()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


def wall_and_cpu() -> np.ndarray:
    """Wall clock and CPU time of all threads: on a busy machine only the second compares."""
    return np.array([time.perf_counter(), time.process_time()])


def ratio(seconds: dict[str, np.ndarray], way: str, over: str) -> Any:
    """Median over the rounds of what one way takes of another."""
    return np.median(seconds[way] / seconds[over], axis=0)


def show(heads: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table, in Markdown, each row as soon as it is there."""
    if title:
        print(f"\n{title}\n")
    widths = [max(len(head), 8 if place else 28) for place, head in enumerate(heads)]
    for row in (heads, ["-" * width for width in widths]):
        _print_row(row, widths)
    for row in rows:
        _print_row([shown(value) for value in row], widths)


def save_table(path: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as JSON, numbers rounded to four digits."""
    said = [
        {head: round(float(v), 4) if isinstance(v, float) else v for head, v in pairs}
        for pairs in (zip(heads, row, strict=True) for row in rows)
    ]
    write_text(path, json.dumps(said, indent=1) + "\n")


def show_frame(table: pd.DataFrame, title: str = "") -> None:
    """Print a table whose index is the first column."""
    rows = ([name, *row] for name, row in zip(table.index, table.to_numpy(object), strict=True))
    show(["", *map(str, table)], rows, title)


def _print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    print("| " + " | ".join(map(str.ljust, cells, widths)) + " |", flush=True)


def shown(value: Any) -> str:
    """A cell: numbers with about three digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    size = abs(value)
    return (
        f"{value:.0e}" if 0 < size < 1e-3 else f"{value:,.{3 if size < 10 else int(size < 1000)}f}"
    )


def apart(function: Callable, *args: Any) -> Any:
    """Call a function of the benchmark in a process of its own, whose peak memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


def peak_gb() -> float:
    """Linux's account of this process; rusage would count the parent's memory too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e9


def forget_peak() -> None:
    """Let the peak start anew from what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def photographs(folder: Path, count: int, side: int) -> list[Path]:
    """JPEG files of random pictures with grain, 4:3, the shorter side as asked."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = rng.integers(0, 256, (side // 24, side // 18, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        grain = rng.normal(0, GRAIN, (side, side * 4 // 3, 1))
        pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


def unit_vectors(count: int, dim: int, twins: float) -> tuple[np.ndarray, np.ndarray]:
    """Random vectors [count, dim], a share of them copies of others, and the places of these."""
    rng = np.random.default_rng(0)
    emb_ND = rng.standard_normal((count, dim), dtype=np.float32)
    emb_ND /= np.linalg.norm(emb_ND, axis=1, keepdims=True)
    copied = rng.permutation(count)[: int(twins * count)]
    emb_ND[copied] = emb_ND[rng.integers(count, size=len(copied))]
    return emb_ND, copied


def timm_model(name: str, size_px: int) -> dict[str, Any]:
    """The `model` section of a config, with random weights."""
    return {"backbone": {"library": "timm", "name": name}, "image": {"size_px": size_px}}


def real_benchmark() -> tuple[Manifest, str]:
    """The real images, and the name of a pretrained ViT-Ti/16. Raises UserError where there are none."""
    root = real_root()
    if root is None:
        raise UserError("no real images and weights: set GUIE_REAL to a folder that holds them")
    weights = root / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"
    return load_manifest(
        root / "data/mini-uned/manifest.csv"
    ), f"timm:vit_tiny_patch16_224:{weights}"


def queries_of(table: pd.DataFrame, domains: Sequence[str]) -> Images:
    """Return the images of a split, with queries in these domains only, if any is named."""
    images = Images.of(table)
    if not any(domains):
        return images
    asked_T = images.is_query_T & table["domain"].isin(domains).to_numpy()
    return replace(images, is_query_T=asked_T)
