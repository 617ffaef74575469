"""How fast embed.py is, against a plain DataLoader and timm loop; what a loader process makes.

python tests/bench/embedding.py [commands] [worker] [--images 5000] [--size-px 112] [--side 500]

`commands` needs the real images and weights (GUIE_REAL). Both ways are whole commands, from the start
of Python to the .npz, with the same model, images, size and batch; they take turns. The model alone, on
random numbers, is the limit: what loading images for nothing would give.
`worker` is one core's rate of loading photographs to embed, in CPU time, beside decoding alone.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import arguments, in_turn, photographs, ratio, real_benchmark, show

from guie.data import loader
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_host
from guie.data.loader import RawImages, packed
from guie.data.preprocess import Preprocess
from guie.rows.embedding import PIECE

SRC = Path(__file__).resolve().parents[2] / "src"
PLAIN = """
import sys
import numpy as np
import pandas as pd
import timm
import torch
from PIL import Image
from timm.data import create_transform
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, files, transform):
        self.files, self.transform = files, transform

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.transform(Image.open(self.files[index]).convert("RGB"))


name, weights, manifest, root, size, batch, out = sys.argv[1:]
size, paths = int(size), pd.read_csv(manifest)["image_path"]
model = timm.create_model(
    name, pretrained=True, num_classes=0, img_size=size, pretrained_cfg_overlay={"file": weights}
).eval()
transform = create_transform(
    (3, size, size),
    interpolation="bicubic",
    mean=(0.5,) * 3,
    std=(0.5,) * 3,
    crop_mode="squash",
    crop_pct=1.0,
)
loader = DataLoader(Images([f"{root}/{path}" for path in paths], transform), int(batch), num_workers=2)
with torch.inference_mode():
    rows = [torch.nn.functional.normalize(model(images)) for images in loader]
np.savez(out, image_path=paths.to_numpy(str), embedding=torch.cat(rows).numpy())
"""
ALONE = """
import sys
import timm
import torch

name, images, size, batch = sys.argv[1], *map(int, sys.argv[2:])
model = timm.create_model(name, num_classes=0, img_size=size).eval()
drawn = torch.randn(batch, 3, size, size)
with torch.inference_mode():
    for start in range(0, images, batch):
        model(drawn[: images - start])
"""


def children() -> np.ndarray:
    """Wall clock, and CPU time of the processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def commands(folder: Path, images: int, size_px: int, rounds: int, batch: int) -> None:
    """Whole commands in turn, and how near their embeddings are."""
    manifest, model = real_benchmark()
    listed, script = folder / "manifest.csv", folder / "plain.py"
    manifest.table.sample(images, random_state=0).to_csv(listed, index=False)
    script.write_text(PLAIN)
    _, name, weights = model.split(":")
    root, number = str(manifest.root), itertools.count()
    said = ["--size-px", str(size_px), "--batch-size", str(batch), "--root", root]

    def ours(precision: str) -> None:
        # A cache of its own: the check that every image can be decoded is part of each round.
        caches = os.environ | {"GUIE_CACHE": str(folder / f"cache_{next(number)}")}
        words = ["--model", model, "--manifest", str(listed), "--precision", precision, *said]
        out = ["--out", str(folder / f"{precision}.npz")]
        _run([str(SRC / "embed.py"), *words, *out], env=caches)

    def plain() -> None:
        out = str(folder / "plain.npz")
        _run([str(script), name, weights, str(listed), root, str(size_px), str(batch), out])

    ways = {
        "plain loop": plain,
        "embed.py": lambda: ours("no"),
        "embed.py --precision bf16": lambda: ours("bf16"),
        "the model alone": lambda: _run(["-c", ALONE, name, str(images), str(size_px), str(batch)]),
    }
    taken = in_turn(ways, rounds, children, warm_up=False)
    rows = [
        (way, *np.median(taken[way], axis=0), *ratio(taken, "plain loop", way), cosine)
        for way, cosine in zip(ways, [*_cosines(folder), ""], strict=True)
    ]
    heads = ["", "s, wall", "s, CPU", "speed, wall", "speed, CPU", "cosine to plain"]
    show(heads, rows, f"{images:,} images of {size_px} px")


def _run(words: list[str], **settings: Any) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run([sys.executable, *words], check=True, stdout=quiet, stderr=quiet, **settings)


def _cosines(folder: Path) -> Iterator[float]:
    """Yield the mean cosine of each way's embeddings to those of the plain loop."""
    rows = [np.load(folder / f"{way}.npz")["embedding"] for way in ("plain", "no", "bf16")]
    yield from (float((own_ND * rows[0]).sum(axis=1).mean()) for own_ND in rows)


def worker(folder: Path, side: int, size_px: int, rounds: int) -> None:
    """Images per second of CPU time that one loader process makes of photographs."""
    files = photographs(folder, 32, side)
    torch.set_num_threads(1)  # as in a loader
    dataset = EvalDataset(files, Preprocess(size_px, [0.5] * 3, [0.5] * 3))
    raw, places = RawImages(dataset), range(len(files))
    pieces = [places[start : start + PIECE] for start in places[::PIECE]]
    ways = {
        "decoding alone": lambda: [open_as_host(file).tobytes() for file in files],
        "for a CPU: resized and normalised": lambda: [dataset[place] for place in places],
        "for a GPU: decoded": lambda: [packed([raw[n] for n in own]) for own in pieces],
    }
    with patch.object(loader, "get_worker_info"):  # into shared memory, as in a loader
        taken = in_turn(ways, rounds, time.process_time)
    rates = {way: len(files) / np.median(seconds) for way, seconds in taken.items()}
    rows = [(way, rate, rate / rates["decoding alone"]) for way, rate in rates.items()]
    title = f"loading photographs of {side * 4 // 3} x {side} px, of one core"
    show(["", "images/s", "of decoding"], rows, title)


if __name__ == "__main__":
    parts = ("commands", "worker")
    args = arguments(__doc__, parts=parts, images=5000, size_px=112, side=500, batch=128, rounds=3)
    with tempfile.TemporaryDirectory() as temporary:
        if "worker" in args.parts:
            worker(Path(temporary), args.side, 224, 7)
        if "commands" in args.parts:
            commands(Path(temporary), args.images, args.size_px, args.rounds, args.batch)
