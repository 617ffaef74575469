"""What the benchmarks share: command line, timing in turn, tables, peak memory, drawn data.

A benchmark is its set-up and the ways that it compares, as functions without arguments.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image

from guie.base.errors import UserError
from guie.config import real_root
from guie.config.stages import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import TrainDataset
from guie.data.loader import TrainLoader
from guie.data.manifest import Manifest, load_manifest
from guie.data.preprocess import Preprocess
from guie.data.sampling import RankBatches, Sampler

GRAIN = 4.0  # grey levels of noise: 2.5 bits a pixel, as photographs of quality 85 to 90 have
BATCH = 64  # images of the loaders that are measured
AUGMENT = AugmentConfig(flip=0.5, color=0.2, erase=0.2)
MEAN, STD = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
RATES = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}

Way = Callable[[], object]


def arguments(doc: str, *, parts: Sequence[str] = (), **options: Any) -> argparse.Namespace:
    """Parse the command line.

    Args:
        doc: the benchmark's docstring, which --help shows.
        parts: what can be measured alone; by default all, in this order.
        options: by name the default. A type is required, `T | None` may be left out, False is a switch, a
            list takes several values, an empty list one at each repetition.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[], metavar="PART")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_settings(default))
    args = parser.parse_args()
    if parts:
        args.parts = args.parts or parts
    return args


def _settings(default: Any) -> dict[str, Any]:
    """The settings of argparse for an option with this default."""
    if default is False:
        return {"action": "store_true"}
    if default == []:
        return {"action": "append", "default": []}
    if isinstance(default, UnionType):
        return _settings(default.__args__[0]) | {"required": False}
    if isinstance(default, GenericAlias):
        return {"type": default.__args__[0], "nargs": "+", "required": True}
    if isinstance(default, type):
        return {"type": default, "required": True}
    if isinstance(default, list):
        return {"type": type(default[0]), "nargs": "+", "default": default}
    return {"type": type(default), "default": default}


def in_turn(
    ways: dict[Any, Way],
    rounds: int,
    clock: Callable[[], Any] = time.perf_counter,
    warm_up: bool = True,
) -> dict[Any, np.ndarray]:
    """Return the seconds of each way in each round: in turn, so that all meet the same machine.

    Args:
        clock: `time.process_time` where other work would disturb; `wall_and_cpu`.
        warm_up: leave a first round out.
    """
    taken: dict[Any, list[Any]] = {name: [] for name in ways}
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


def ratio(seconds: dict[Any, np.ndarray], way: str, over: str) -> Any:
    """Median over the rounds of one way's time over that of another."""
    return np.median(seconds[way] / seconds[over], axis=0)


def show(heads: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table, in Markdown, each row as soon as it is there."""
    if title:
        print(f"\n{title}\n")
    widths = [max(len(head), 8 if place else 28) for place, head in enumerate(heads)]
    print_row(heads, widths)
    print_row(["-" * width for width in widths], widths)
    for row in rows:
        print_row([shown(value) for value in row], widths)


def show_frame(table: pd.DataFrame, title: str = "") -> None:
    """Print a table whose index is the first column."""
    rows = ([name, *row] for name, row in zip(table.index, table.to_numpy(object), strict=True))
    show(["", *map(str, table)], rows, title)


def print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    print("| " + " | ".join(map(str.ljust, cells, widths)) + " |", flush=True)


def shown(value: Any) -> str:
    """A cell: numbers with about three digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return str(value)
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    size = abs(value)
    if 0 < size < 1e-3:
        return f"{value:.0e}"
    return f"{value:,.{3 if size < 10 else int(size < 1000)}f}"


def in_own_process(function: Callable, *args: Any) -> Any:
    """Call a function in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


def peak_gb() -> float:
    """This process's peak memory, from Linux: rusage would count the parent's memory too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(peak) * 1024 / 1e9


def forget_peak() -> None:
    """Let the peak start again from the memory held now."""
    Path("/proc/self/clear_refs").write_text("5")


def photographs(folder: Path, count: int, side: int) -> list[Path]:
    """Write JPEG files of random pictures with grain, 4:3, with this shorter side."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    files = []
    for number in range(count):
        coarse = rng.integers(0, 256, (side // 24, side // 18, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
        grain = rng.normal(0, GRAIN, (side, side * 4 // 3, 1))
        pixels = (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(pixels).save(files[-1], quality=90)
    return files


def manifest_of(files: Sequence[Path]) -> Manifest:
    """Write a manifest of training images of one class in the folder of the files, and read it."""
    rows = pd.DataFrame({"image_path": [file.name for file in files], "label": "d/l"})
    path = files[0].with_name("m.csv")
    rows.assign(domain="d", split="train", role="train").to_csv(path, index=False)
    return load_manifest(path)


def train_loader(manifest: Manifest, size_px: int) -> TrainLoader:
    """The loader that train.py uses, without processes; its `.loader` does what a process does."""
    rows = manifest.table
    preprocess, augment = Preprocess(size_px, MEAN, STD), Augment(AUGMENT)
    dataset = TrainDataset(rows, ["d/l"], manifest.root, augment, preprocess, (0, 0))
    sampler = Sampler(rows["domain"], "mixed", BATCH, (0, 0))
    return TrainLoader(dataset, RankBatches(sampler, 0, len(rows) // BATCH, 0, 1), workers=0)


def exhaust(made: Iterable) -> None:
    for _ in made:
        pass


def timm_model(name: str, size_px: int) -> dict[str, Any]:
    """The `model` section of a config, with random weights."""
    return {"backbone": {"library": "timm", "name": name}, "image": {"size_px": size_px}}


def real_benchmark() -> tuple[Manifest, str]:
    """The real images, and the name of a pretrained ViT-Ti/16. Raises UserError if there are none."""
    root = real_root()
    if root is None:
        raise UserError("no real images and weights: set GUIE_REAL to a folder that holds them")
    weights = root / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"
    manifest = load_manifest(root / "data/mini-uned/manifest.csv")
    return manifest, f"timm:vit_tiny_patch16_224:{weights}"
