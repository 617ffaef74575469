"""Export two CLIP ViT-H/14 to one file of 5 GB, and compare its embeddings in PyTorch 1.11.

python tests/torch111/two_vit_h.py --cache .cache/torch-1.11 --out runs/bench [--half]

The weights are random, and each head has 32 dimensions. Export and comparison are separate processes. It
prints the file's size and the largest difference. Needs 8 GB of memory, 6 GB of disk, g++.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from check import TOLERANCE, answers, difference_to, noise
from runtime import compiled, fetched

from guie.config.ensemble import CompositionConfig, MemberConfig
from guie.config.model import ModelConfig
from guie.data.preprocess import Inputs, ViewSpec
from guie.export.operators import check_operators
from guie.export.torchscript import downgrade, package
from guie.models.embedder import build_embedder
from guie.models.ensemble import Ensemble
from guie.models.opening import ExportModule

SIZE_PX = 224
MODEL = {
    "backbone": {"library": "open_clip", "name": "ViT-H-14"},
    "image": {"size_px": SIZE_PX},
    "head": {"norm": "bn", "dim": 32},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder of PyTorch 1.11")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--half", action="store_true", help="matrices in fp16")
    parser.add_argument("--export", action="store_true", help="only export, in this process")
    args = parser.parse_args()
    path, answered = args.out / "saved_model.pt", args.out / "answers.pt"
    if args.export:
        export(path, answered, args.half)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, *sys.argv, "--export"], check=True)
    expected_ND = torch.load(answered, weights_only=True)
    loader = compiled(fetched(args.cache))
    difference = difference_to(expected_ND, loader, path, noise(SIZE_PX))
    print(f"{path}: {path.stat().st_size:,} bytes")
    print(f"PyTorch 1.11: {tuple(expected_ND.shape)} embeddings differ by {difference:.1e}")
    path.unlink()
    sys.exit(int(not difference <= TOLERANCE))


def export(path: Path, answered: Path, half: bool) -> None:
    torch.manual_seed(0)
    config = ModelConfig.model_validate(MODEL)
    members = [build_embedder(config).eval() for _ in range(2)]
    backbone = members[0].backbone
    look = ViewSpec(SIZE_PX, tuple(backbone.mean), tuple(backbone.std))
    both = CompositionConfig(members=[MemberConfig(source="random", model=config)] * 2)
    composition = Ensemble(both, members, [[look], [look]]).eval()
    preprocess = Inputs(composition.looks)
    package(composition, preprocess, path, half)
    torch.save(answers(ExportModule(preprocess, composition), noise(SIZE_PX)), answered)
    downgrade(path)
    problems = check_operators(path)
    if problems:
        sys.exit(problems[0])


if __name__ == "__main__":
    main()
