"""Greedy selection on the domains of mini-uned, and whether its proxy ranks mixes as full training does.

python tests/bench/selection.py proxy                  # the greedy order, domains as data sets
python tests/bench/selection.py full --mixes 12        # train whole models on random mixes (hours)
python tests/bench/selection.py compare                # rank correlation of the two on those mixes

Needs $GUIE_REAL. All scores are R@1 on val, merged index, mean over all seven domains. Full training is the
study budget: ViT-Ti at 80 px, 3 epochs, one seed. `full` resumes where it was stopped. --directions backward
forward starts from all domains.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common import arguments, real_benchmark, show_frame
from scipy.stats import kendalltau, spearmanr
from tqdm import tqdm

from guie.base.devices import make_accelerator
from guie.base.errors import UserError, run
from guie.base.files import replacing, write_json
from guie.config.data import ProxyEvaluatorConfig, SelectionRule
from guie.curation.evaluators import Proxy, Score
from guie.curation.selection import (
    Candidate,
    Evaluations,
    Mix,
    candidates_of,
    gains,
    mix_name,
    mix_rows,
    search,
)
from guie.data.manifest import Manifest, save_manifest
from guie.models import open_model
from guie.rows.embedding import embed_files
from guie.training.run_folder import read_metrics

REPOSITORY = Path(__file__).parents[2]
SIZE_PX = 112  # of the proxy's features
STUDY = {
    "model.image.size_px": "80",
    "stages": "[{name: full, epochs: 3, lr: {backbone: 3e-4, head: 3e-3, classes: 3e-2},"
    " warmup: 40 steps}]",
}


def build_proxy(out: Path) -> Proxy:
    """The proxy on features of train and val, which are computed once."""
    manifest, name = real_benchmark()
    config = ProxyEvaluatorConfig(model=name, size_px=SIZE_PX, fit="pad")
    table = manifest.table[manifest.table["split"] != "test"].reset_index(drop=True)
    file = out / "features.npy"
    if not file.exists():
        model = open_model(config.model, SIZE_PX, config.fit)
        files = [manifest.file(path) for path in table["image_path"]]
        accelerator = make_accelerator()
        embedder = model.embedder.to(accelerator.device)
        emb_ND = embed_files(accelerator, embedder, model.preprocess, files)
        with replacing(file) as temporary:
            np.save(temporary, emb_ND.astype(np.float16))
    return Proxy(np.load(file), table, config)


def evaluations_of(proxy: Proxy, path: Path, rule: SelectionRule) -> Evaluations:
    def evaluate(mix: Mix, seed: int) -> Score:
        return proxy.score(mix_rows(proxy.table, mix, "domain", seed=0), seed)

    return Evaluations(path, proxy.identity, evaluate, rule)


def run_proxy(args: argparse.Namespace) -> None:
    """Greedy search by proxy: order and gains."""
    proxy = build_proxy(args.out)
    rule = SelectionRule(directions=args.directions)
    evaluations = evaluations_of(proxy, args.out / "proxy.jsonl", rule)
    candidates = candidates_of(proxy.table, "domain", [None])
    steps = search(candidates, evaluations, args.out / "steps.json")
    everything = frozenset(candidates)
    show_frame(gains(steps).drop(columns="mix"))
    for name, mix in (("selected", steps[-1].mix), ("everything", everything)):
        score_S = evaluations.scores(mix, range(1000, 1005))  # seeds that no step has seen
        print(f"{name}: {mix_name(mix)}: {score_S.mean():.4f} +- {score_S.std(ddof=1):.4f}")
    print(f"{len(evaluations.used)} trainings in {evaluations.seconds:.0f} s")


def sample_mixes(domains: list[str], count: int, seed: int = 0) -> list[Mix]:
    """All domains, then distinct random subsets of two and more, as many of each size."""
    draw = np.random.default_rng(seed)
    mixes = [frozenset(map(Candidate, domains))]
    while len(mixes) < count:
        size = 2 + len(mixes) % (len(domains) - 2)
        mix = frozenset(map(Candidate, draw.choice(domains, size, replace=False).tolist()))
        mixes += [mix] if mix not in mixes else []
    return mixes


def run_full(args: argparse.Namespace) -> None:
    """Train a whole model on each mix; every result is written as it comes."""
    (manifest, _), file = real_benchmark(), args.out / "full.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    domains = sorted(manifest.table["domain"].unique())
    for mix in tqdm(sample_mixes(domains, args.mixes), "full trainings"):
        if mix_name(mix) not in results:
            results[mix_name(mix)] = train(manifest, mix, args.out)
            write_json(file, results)


def train(manifest: Manifest, mix: Mix, out: Path) -> dict[str, float]:
    """Val scores of the best checkpoint of train.py on the mix's train rows and all val rows."""
    name = mix_name(mix).replace("+", "-")
    table = manifest.table
    rows = [mix_rows(table, mix, "domain", seed=0), table[table["split"] == "val"]]
    path = out / f"{name}.csv"
    save_manifest(pd.concat(rows, ignore_index=True), path)
    settings = STUDY | {"name": name, "out": out / "runs"}
    settings |= {"data.manifest": path, "data.root": manifest.root}
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    script = [sys.executable, REPOSITORY / "src/train.py", "--overwrite"]
    config = ["--config", REPOSITORY / "configs/real_vit_tiny.yaml"]
    subprocess.run([*script, *config, *overrides], check=True)
    lines = read_metrics(out / "runs" / name / "metrics.jsonl")
    best = max(lines, key=lambda line: line.get("val_r_at_1", -1.0))
    return {key: value for key, value in best.items() if key.startswith("val_")}


def run_compare(args: argparse.Namespace) -> None:
    """Rank correlation of the proxy's score and that of full training over the mixes."""
    file = args.out / "full.json"
    if not file.exists():
        raise UserError(f"{file}: no full trainings yet; run this script with `full` first")
    proxy = build_proxy(args.out)
    evaluations = evaluations_of(proxy, args.out / "proxy.jsonl", SelectionRule())
    results = pd.DataFrame.from_dict(json.loads(file.read_text(encoding="utf-8")), orient="index")
    full = results["val_r_at_1"]
    mixes = {name: frozenset(map(Candidate, name.split("+"))) for name in full.index}
    scores = {name: evaluations.scores(mix, range(3)).mean() for name, mix in mixes.items()}
    table = pd.DataFrame({"full": full, "proxy": pd.Series(scores)}).sort_values("full")
    show_frame(table)
    rho, tau = spearmanr(table["full"], table["proxy"]), kendalltau(table["full"], table["proxy"])
    print(f"{len(table)} mixes: Spearman {rho.statistic:.3f}, Kendall {tau.statistic:.3f}")


PARTS = {"proxy": run_proxy, "full": run_full, "compare": run_compare}


def main(_: object = None) -> None:
    given = {"out": Path("runs/selection"), "mixes": 12, "directions": ["forward", "backward"]}
    args = arguments(__doc__, parts=list(PARTS), **given)
    torch.set_num_threads(1)
    for part in args.parts:
        PARTS[part](args)


if __name__ == "__main__":
    run(main)
