"""Where each loss, sampler and layout lands on mini-uned at the study budget: one table.

python tests/bench/study.py [NAME ...] [--list] [--seeds 1] [--out runs/study]

Needs $GUIE_REAL. ViT-Ti at 80 px, 3 epochs, batch 128, everything trained from the start; minutes a
run on two cores. What is there already is not run again. Val chooses; test is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml
from tqdm import tqdm

from guie.base.errors import UserError, run
from guie.config import real_root
from guie.training.run.record import read_metrics

REPOSITORY = Path(__file__).parents[2]
MANIFEST = "data/mini-uned/manifest.csv"
RATES = {"backbone": 3e-4, "head": 3e-3, "classes": 1e-1}
STUDY = {
    "model": {"image": {"size_px": 80}},
    "stages": [
        {
            "name": "full",
            "epochs": 3,
            "lr": RATES,
            "warmup": "40 steps",
        }
    ],
}
# 32 classes x 4 images of one domain
PK = {"name": "dataset_size", "images_per_class": 4, "rare_classes": "repeat"}


def loss(name: str, sampler: object = None, **settings: object) -> dict:
    """Overrides of a run with that loss."""
    changed = {"task": {"loss": {"name": name, **settings}}}
    return changed | ({"train": {"sampler": sampler}} if sampler else {})


def stage(**settings: object) -> dict:
    """Overrides of a run whose stage differs."""
    return {"train": settings}


L2 = {"model": {**STUDY["model"], "head": {"norm": "l2"}}}


def rate(of: dict, **rates: float) -> dict:
    """The same run at other rates."""
    return of | stage(**of.get("train", {}), lr=RATES | rates)


VARIANTS: dict[str, dict] = {
    "arcface": {},
    "softmax, scale 16": loss("softmax", scale=16),
    "softmax, scale 30": loss("softmax"),
    "cosface .35": loss("cosface"),
    "curricularface, scalar": loss("curricularface"),
    "curricularface, per class": loss("curricularface", running_mean="class"),
    "sub-center arcface, 3": loss("arcface", margin_rad=0.3, centers=3),
    "arcface, margin by class size": loss("arcface", margin_rad={"least": 0.05, "most": 0.5}),
    "arcface, margin by epoch": loss(
        "arcface", margin_rad={"start": 0.1, "rise_per_epoch": 0.1, "limit": 0.4}
    ),
    "arcface, a classifier per domain": loss("arcface", margin_rad=0.3, classifier="separate"),
    "softmax 16, a classifier per domain": loss("softmax", scale=16, classifier="separate"),
    "triplet, semi-hard": loss("triplet", PK),
    "margin loss": loss("margin", PK),
    "multi-similarity": loss("multi_similarity", PK),
    "multi-similarity, memory 2048": loss("multi_similarity", PK, memory=2048),
    "supcon": loss("supcon", PK),
    "proxy-anchor": loss("proxy_anchor"),
    "proxynca++": loss("proxy_nca"),
    "softtriple": loss("soft_triple"),
    "batch-all triplet": loss("batch_all", PK),
    "hyperbolic": loss("hyperbolic", PK),
    "sampler mixed, temperature 2": stage(sampler={"name": "mixed", "temperature": 2}),
    "sampler mixed, domains alike": stage(sampler={"name": "mixed", "temperature": float("inf")}),
    "sampler dataset size": stage(sampler="dataset_size"),
    "sampler balanced": stage(sampler="balanced"),
    "sampler round robin": stage(sampler="round_robin"),
    "sampler loss-driven": stage(sampler={"name": "loss_driven", "period": "30 steps"}),
    "sampler 32 x 4": stage(sampler=PK),
    "layer decay .75": stage(layer_decay=0.75),
    "EMA .99": stage(ema_decay=0.99),
    "SAM .05": stage(sam_rho=0.05),
    "arcface, L2 ahead of the head": L2,
}
# Losses with class weights or proxies, all from rows of length 1: each at four rates of them.
for name in ("arcface", "softtriple", "proxy-anchor", "proxynca++"):
    VARIANTS |= {
        f"{name}, classes {lr:g}": rate(VARIANTS[name], classes=lr) for lr in (0.03, 0.3, 1)
    }
for name in ("arcface", "arcface, L2 ahead of the head"):
    VARIANTS |= {f"{name}, head {lr:g}": rate(VARIANTS[name], head=lr) for lr in (1e-3, 1e-2)}


def folder_of(name: str, seed: int, out: Path) -> Path:
    return out / ("".join(c if c.isalnum() else "_" for c in name) + f"_{seed}")


def train_and_test(name: str, seed: int, out: Path) -> None:
    """Train, and score the test split by the best weights, into the run's folder."""
    folder = folder_of(name, seed, out)
    report, emb = folder / "report.json", folder / "E.npz"
    if report.exists():
        return
    config = {"base": str(REPOSITORY / "configs/real_vit_tiny.yaml")}
    config |= {"name": folder.name, "out": str(out), "seed": seed}
    changed = dict(VARIANTS[name])
    one = STUDY["stages"][0] | changed.pop("train", {})
    config |= {**STUDY, "stages": [one], **changed}
    out.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    script("train.py", "--config", path, "--resume")
    manifest = real_root() / MANIFEST
    test = ("--manifest", manifest, "--split", "test")
    script("embed.py", "--model", folder, *test, "--out", emb)
    script("validate.py", "--embeddings", emb, *test, "--index", "merged", "--out", report)
    emb.unlink()


def scores(folder: Path) -> dict[str, float]:
    """Val scores of the best weights, and test scores: means over domains, merged index."""
    mean = json.loads((folder / "report.json").read_text(encoding="utf-8"))["mean"]
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "val_r_at_1" in line]
    best = max(lines, key=lambda line: line["val_r_at_1"])
    val = {f"val {key}": best[f"val_{key}"] for key in ("r_at_1", "mmp_at_5")}
    return val | {f"test {key}": mean[key] for key in ("r_at_1", "mmp_at_5")}


def collected(out: Path, seeds: int) -> pd.DataFrame:
    """Of all that is there, means over seeds."""
    rows = [
        {"run": name, **scores(folder)}
        for name in VARIANTS
        for folder in (folder_of(name, seed, out) for seed in range(seeds))
        if (folder / "report.json").exists()
    ]
    return pd.DataFrame(rows).groupby("run", sort=False).mean()


def script(name: str, *words: object) -> None:
    """Run one of the scripts. Raises UserError where it fails."""
    command = [sys.executable, str(REPOSITORY / "src" / name), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{name}: {(done.stderr or done.stdout).strip().splitlines()[-1]}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--list", action="store_true", help="the names")
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(VARIANTS))
        return
    if real_root() is None:
        raise UserError("no real images and weights: set GUIE_REAL to a folder that holds them")
    unknown = sorted(set(args.names) - set(VARIANTS))
    if unknown:
        raise UserError(f"no variant {', '.join(unknown)}; --list shows them")
    for name in tqdm(args.names or VARIANTS, "study"):
        for seed in range(args.seeds):
            train_and_test(name, seed, args.out)
            table = collected(args.out, args.seeds)
            table.to_csv(args.out / "table.csv")
    print(table.to_string(float_format=lambda value: f"{value:.3f}"))


if __name__ == "__main__":
    run(main)
