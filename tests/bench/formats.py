"""Throughput of one model on the CPU in each format that export.py writes, in one run.

python tests/bench/formats.py                       # a random ViT-Ti/16
GUIE_REAL=... python tests/bench/formats.py --sizes 112 224

Two ways to ask: one picture of 480 x 640 at a time, resized inside the file, as the challenge's scorer
does, and a batch at the network's own size. The formats take turns, and time is that of the cores at
work, so that neighbours on the machine count little; told are the median, the ratio to eager and the
largest difference from it. ONNX is left out where onnxruntime is not installed (`make formats` has it in
.venv-export).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import arguments, in_turn, ratio, show

from guie.base.errors import UserError
from guie.config import real_root
from guie.export.formats import (
    check_installed,
    exported_program,
    open_onnx,
    open_program,
    write_onnx,
    write_program,
)
from guie.export.parity import Answer
from guie.export.torchscript import downgrade, package
from guie.models import open_model

WEIGHTS = "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"


def main() -> None:
    args = arguments(__doc__, sizes=[112, 224], batch=16, rounds=9, threads=1)
    torch.set_num_threads(args.threads)
    real = real_root()
    weights = f":{real / WEIGHTS}" if real and (real / WEIGHTS).is_file() else ""
    print(f"ViT-Ti/16, {'pretrained' if weights else 'random'}, {args.threads} thread(s)")
    heads = ["network", "asked", "format", "core ms an image", "ratio to eager", "difference"]
    show(heads, measured(f"timm:vit_tiny_patch16_224{weights}", args))


def measured(source: str, args: argparse.Namespace) -> Iterator[tuple]:
    """A row for each size, way to ask and format."""
    for size_px in args.sizes:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            ways = formats(source, size_px, Path(folder), args.threads)
            generator = torch.Generator().manual_seed(0)
            for asked, shape in (
                ("one of 480 x 640", (1, 3, 480, 640)),
                (f"{args.batch} of {size_px} px", (args.batch, 3, size_px, size_px)),
            ):
                images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
                found = {name: answer(images) for name, answer in ways.items()}
                calls = {name: partial(answer, images) for name, answer in ways.items()}
                taken = in_turn(calls, args.rounds, time.process_time)
                for name, seconds in taken.items():
                    each_ms = 1000 * np.median(seconds) / len(images)
                    off = (found[name] - found["eager"]).abs().max().item()
                    yield f"{size_px} px", asked, name, each_ms, ratio(taken, name, "eager"), off


def formats(source: str, size_px: int, folder: Path, threads: int) -> dict[str, Answer]:
    """The model by the name of each format that this machine can run."""
    torch.manual_seed(0)
    model = open_model(source, size_px)
    program = exported_program(model.scored, source)
    write_program(program, folder / "model.pt2")
    ways: dict[str, Answer] = {"eager": model.scored}
    ways["pt2"] = open_program(folder / "model.pt2")
    try:
        check_installed()
    except UserError as error:
        print(error)
    else:
        write_onnx(program, folder / "model.onnx")
        ways["onnx"] = open_onnx(folder / "model.onnx", threads)
    torch.manual_seed(0)  # random weights are the same ones
    again = open_model(source, size_px)  # which packaging changes
    package(again.embedder, again.preprocess, folder / "saved_model.pt")
    downgrade(folder / "saved_model.pt")
    ways["torchscript for 1.11"] = torch.jit.load(folder / "saved_model.pt").eval()
    return ways


if __name__ == "__main__":
    main()
