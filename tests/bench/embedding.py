"""How fast embed.py is, against a plain DataLoader and timm loop; what a loader process makes.

python tests/bench/embedding.py [commands] [worker] [--images 5000] [--rounds 3]

`commands` needs the real images and weights (GUIE_REAL). Both ways are whole commands, from the start
of Python to the .npz, with the same model, images, size and batch; they take turns. The model alone, on
random numbers, is the limit: the speed if loading images took no time.
`worker` is one core's rate of loading photographs to embed, in CPU time, over decoding alone.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
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

EMBED = Path(__file__).resolve().parents[2] / "src/embed.py"
SIZE_PX, BATCH = 112, 128
SIDE = 500  # of the drawn photographs
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


def run(*words: object) -> None:
    quiet = subprocess.DEVNULL
    command = [sys.executable, *map(str, words)]
    subprocess.run(command, check=True, stdout=quiet, stderr=quiet)


def commands(folder: Path, images: int, rounds: int) -> None:
    """Whole commands in turn, and how near their embeddings are."""
    manifest, model = real_benchmark()
    listed, script = folder / "manifest.csv", folder / "plain.py"
    manifest.table.sample(images, random_state=0).to_csv(listed, index=False)
    script.write_text(PLAIN)
    _, name, weights = model.split(":")
    root, sizes = manifest.root, (SIZE_PX, BATCH)

    def ours(precision: str) -> None:
        # Each round checks anew that every image can be decoded
        os.environ["GUIE_CACHE"] = tempfile.mkdtemp(dir=folder)
        words = ["--model", model, "--manifest", listed, "--root", root, "--precision", precision]
        words += ["--size-px", SIZE_PX, "--batch-size", BATCH, "--out", folder / f"{precision}.npz"]
        run(EMBED, *words)

    ways = {
        "plain loop": lambda: run(
            script, name, weights, listed, root, *sizes, folder / "plain.npz"
        ),
        "embed.py": lambda: ours("no"),
        "embed.py --precision bf16": lambda: ours("bf16"),
        "the model alone": lambda: run("-c", ALONE, name, images, *sizes),
    }
    taken = in_turn(ways, rounds, children, warm_up=False)
    embedded = [np.load(folder / f"{file}.npz")["embedding"] for file in ("plain", "no", "bf16")]
    cosines = [float((emb_ND * embedded[0]).sum(axis=1).mean()) for emb_ND in embedded]
    rows = [
        (way, *np.median(taken[way], axis=0), *ratio(taken, "plain loop", way), cosine)
        for way, cosine in zip(ways, [*cosines, ""], strict=True)
    ]
    heads = ["", "s, wall", "s, CPU", "speed, wall", "speed, CPU", "cosine to plain"]
    show(heads, rows, f"{images:,} images of {SIZE_PX} px")


def worker(folder: Path) -> None:
    """Images per second of CPU time that one loader process makes of photographs."""
    files = photographs(folder, 32, SIDE)
    torch.set_num_threads(1)  # as in a loader
    dataset = EvalDataset(files, Preprocess(224, [0.5] * 3, [0.5] * 3))
    raw, places = RawImages(dataset), range(len(files))
    pieces = [places[start : start + PIECE] for start in places[::PIECE]]
    ways = {
        "decoding alone": lambda: [open_as_host(file).tobytes() for file in files],
        "for a CPU: resized and normalised": lambda: [dataset[place] for place in places],
        "for a GPU: decoded": lambda: [packed([raw[n] for n in own]) for own in pieces],
    }
    with patch.object(loader, "get_worker_info"):  # into shared memory, as in a loader
        taken = in_turn(ways, 7, time.process_time)
    rates = {way: len(files) / np.median(seconds) for way, seconds in taken.items()}
    rows = [(way, rate, rate / rates["decoding alone"]) for way, rate in rates.items()]
    title = f"loading photographs of {SIDE * 4 // 3} x {SIDE} px, of one core"
    show(["", "images/s", "of decoding"], rows, title)


def main() -> None:
    args = arguments(__doc__, parts=("commands", "worker"), images=5000, rounds=3)
    with tempfile.TemporaryDirectory() as name:
        if "worker" in args.parts:
            worker(Path(name))
        if "commands" in args.parts:
            commands(Path(name), args.images, args.rounds)


if __name__ == "__main__":
    main()
