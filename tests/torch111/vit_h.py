"""CLIP ViT-H/14 whole: train two steps, export, compare in PyTorch 1.11, score a few images.

python tests/torch111/vit_h.py --cache .cache/torch-1.11 --out runs/bench [--steps export runtime]

The backbone is random and frozen, the images are toys. Each step is a process of its own; printed
are its seconds, how many of them a core was busy, its peak memory, and the sizes of the files made.
On the CPU; needs 8 GB of memory, 16 GB of disk, g++ and Linux.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from resource import struct_rusage

import toydomains
from guie.config import RunConfig, config_from
from guie.config.loading import to_yaml
from guie.data.manifest import load_manifest, save_manifest

ROOT = Path(__file__).parents[2]
STEPS = ("train", "export", "runtime", "score")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder of PyTorch 1.11")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    args = parser.parse_args()
    manifest, config = prepared(args.out)
    run, submission = args.out / "vit_h", args.out / "submission"
    zipped, root = submission / "submission.zip", args.out / "toy"
    commands = {
        "train": ["src/train.py", "--config", config, "--overwrite"],
        "export": ["src/export.py", "--run", run, "--out", submission],
        "runtime": ["tests/torch111/check.py", "--cache", args.cache, zipped],
        "score": ["src/score.py", "--submission", zipped, "--manifest", manifest]
        + ["--root", root, "--out", submission / "score.json"],
    }
    for step in args.steps:
        script, *words = commands[step]
        seconds, usage = timed([sys.executable, ROOT / script, *words])
        cpu_seconds, peak_gb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9
        message = f"{seconds:.0f} s, {cpu_seconds:.0f} s of a core, peak {peak_gb:.1f} GB"
        print(f"== {step}: {message}", flush=True)
    for file in sorted(file for folder in (run, submission) for file in folder.rglob("*")):
        if file.stat().st_size > 1e6:
            print(f"== {file.relative_to(args.out)}: {file.stat().st_size:,} bytes")


def prepared(folder: Path) -> tuple[Path, Path]:
    """A manifest of two classes to train on and two to score, two images each, and the config."""
    table = load_manifest(toydomains.draw(folder / "toy", images=80)).table
    save_manifest(table[table["domain"] == "toys"], folder / "few.csv")
    config = {
        "name": "vit_h",
        "out": str(folder),
        "data": {"manifest": str(folder / "few.csv"), "root": str(folder / "toy"), "workers": 0},
        "model": {
            "backbone": {"library": "open_clip", "name": "ViT-H-14"},
            "image": {"size_px": 224},
            "head": {"norm": "none", "dropout": 0.2, "dim": 64},
        },
        "train": {"epochs": 1, "batch_size": 2, "lr": {"head": 1e-3, "classes": 1e-3}},
    }
    config_from(config, RunConfig)
    path = folder / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    return folder / "few.csv", path


def timed(command: list[str | Path]) -> tuple[float, struct_rusage]:
    """Seconds of a command, and what it used. Leaves with its exit code where it fails."""
    began = time.monotonic()
    process = os.posix_spawn(command[0], [str(word) for word in command], os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(os.waitstatus_to_exitcode(status))
    return time.monotonic() - began, usage


if __name__ == "__main__":
    main()
