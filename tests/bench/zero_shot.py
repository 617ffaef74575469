"""Precision and coverage of zero-shot domains, by the small CLIP on the toy benchmark.

python tests/bench/zero_shot.py --clip runs/clip_demo/model_clip.safetensors \\
    --names input/toy_pretrain/manifest.csv --manifest input/toy/manifest.csv

A domain is named by captions of the pretraining part: no class of it is in the benchmark, whose test
images are the ones that are told apart. One half of them calibrates, the other half is measured.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, show

from guie.base.devices import make_accelerator
from guie.base.errors import run
from guie.config.data import ClipConfig
from guie.curation.pseudo_labels import fit_scale, guess, least_confidence, precision_curve
from guie.data.manifest import load_manifest
from guie.evaluation.text import class_texts
from guie.models import open_model
from guie.rows.embedding import embed_files


def domain_names(path: Path, captions: int) -> dict[str, list[str]]:
    """So many captions of each domain's train images, of classes all different."""
    train = load_manifest(path).split("train").drop_duplicates("label")
    return {
        domain: rows["caption"].sample(min(captions, len(rows)), random_state=0).tolist()
        for domain, rows in train.groupby("domain")
    }


def calibration_error(confidence_N: np.ndarray, right_N: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error over equal bins of confidence (Guo et al. 2017, eq. 3)."""
    bin_N = np.minimum((confidence_N * bins).astype(int), bins - 1)
    table = pd.DataFrame({"gap": right_N - confidence_N.astype(np.float64), "bin": bin_N})
    return float(table.groupby("bin")["gap"].sum().abs().sum() / len(table))


def measure(emb_ND: np.ndarray, truth_N: np.ndarray, text_CD: np.ndarray, scale: float) -> None:
    """Print accuracy, calibration, and what thresholds chosen on one half keep of the other."""
    half_N = np.random.default_rng(0).random(len(emb_ND)) < 0.5
    places = range(len(text_CD))
    fitted = fit_scale(emb_ND[half_N] @ text_CD.T, truth_N[half_N], scale)
    for name, value in (("CLIP's own", scale), ("calibrated", fitted)):
        found = guess(emb_ND[~half_N], text_CD, value, places)
        right_N = (found["label"] == truth_N[~half_N]).to_numpy()
        error = calibration_error(found["confidence"].to_numpy(), right_N)
        print(f"{name} scale {value:.1f}: accuracy {right_N.mean():.3f}, its error {error:.3f}")
    sample = guess(emb_ND[half_N], text_CD, fitted, places)
    right = (sample["label"] == truth_N[half_N]).to_numpy()
    curve = precision_curve(sample["confidence"].to_numpy(), right)
    rows = []
    for wanted in (0.6, 0.7, 0.8, 0.9, 0.95):
        least = least_confidence(curve, wanted)
        if least is not None:
            kept_N = (found["confidence"] >= least).to_numpy()
            rows.append((wanted, least, right_N[kept_N].mean(), kept_N.mean()))
    show(["wanted", "min_confidence", "precision", "coverage"], rows)


def main(_: object = None) -> None:
    args = arguments(
        __doc__, clip=str, names=Path, manifest=Path, captions=100, cache="input/.cache/text"
    )
    names = domain_names(args.names, args.captions)
    name = f"open_clip:guie-tiny:{args.clip}"
    texts = class_texts(ClipConfig(model=name, templates=["{}"], cache=args.cache), names)
    model, accelerator = open_model(name), make_accelerator()
    manifest = load_manifest(args.manifest)
    rows = manifest.split("test")
    files = [manifest.file(path) for path in rows["image_path"]]
    embedder = model.embedder.to(accelerator.device)
    emb_ND = embed_files(accelerator, embedder, model.preprocess, files)
    truth_N = rows["domain"].map({name: place for place, name in enumerate(names)}).to_numpy()
    print(f"{len(rows)} images, {len(names)} domains")
    measure(emb_ND, truth_N, texts.emb_CD, texts.scale)


if __name__ == "__main__":
    run(main)
