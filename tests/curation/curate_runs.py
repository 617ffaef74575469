"""Runs of curate.py: folders of small images, configs, and the mix that comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import curate
from guie.config.loading import to_yaml
from guie.data.manifest import load_manifest

REPOSITORY = Path(__file__).parents[2]
TOYS = {"kind": "toy", "path": "input/toy", "images": 56, "seed": 3, "part": "pretrain"}


def draw_folder(root: Path, classes: dict[str, int]) -> None:
    """`root/<class>/<n>.png`: so many small images a class."""
    random = np.random.default_rng(0)
    for name, images in classes.items():
        (root / name).mkdir(parents=True)
        for n in range(images):
            pixels = random.integers(0, 256, (4 + n, 5, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")


def run(config: dict, *arguments: str) -> tuple[pd.DataFrame, dict]:
    """Curate; return the mix's table and the summary."""
    config = {"name": "mix", "out": "input/mix.csv", **config}
    Path("mix_config.yaml").write_text(to_yaml(config))
    curate.main(["--config", "mix_config.yaml", "--workers", "1", *arguments])
    out = Path(config["out"])
    summary = json.loads(out.with_suffix(".summary.json").read_text())
    return load_manifest(out, config.get("root")).table, summary


def folder(path: str = "input/toys", domain: str = "toys", **more) -> dict:
    return {"kind": "folder", "path": path, "domain": domain, **more}


def write_manifest(path: str, rows: list[str]) -> None:
    header = "image_path,label,domain,split,role"
    Path(path).write_text("\n".join([header, *rows]) + "\n")
