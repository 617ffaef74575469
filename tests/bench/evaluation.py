"""validate.py's scoring against pytorch-metric-learning's calculator, on the same embeddings, in one run.

python tests/bench/evaluation.py --embeddings E.npz --manifest M [--split test]

Both score R@1, R-precision and MAP@R of every query over one index; each in a process of its own, so
that memory is its own. Queries that stand in the index are placed first, as the calculator wants it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from common import apart, arguments, peak_gb, show

from guie.data.manifest import load_manifest
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import unit_vectors
from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.evaluating import score_part

KEYS = ("r_at_1", "r_precision", "map_at_r")


def ours(embeddings_TD: np.ndarray, table: pd.DataFrame) -> list[float]:
    report, _ = score_part(Part("merged", "merged", KEYS), embeddings_TD, table)
    return [report["pooled"][key] for key in KEYS]


def theirs(embeddings_TD: np.ndarray, table: pd.DataFrame) -> list[float]:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    unit_TD = torch.from_numpy(unit_vectors(embeddings_TD, table["image_path"].to_numpy()))
    labels = torch.from_numpy(pd.factorize(table["label"])[0])
    role = table["role"].to_numpy()
    order = np.concatenate([np.flatnonzero(role == "both"), np.flatnonzero(role == "index")])
    asked, index = order[: (role == "both").sum()], order
    found = AccuracyCalculator(include=names, device=torch.device("cpu")).get_accuracy(
        unit_TD[asked], labels[asked], unit_TD[index], labels[index], ref_includes_query=True
    )
    return [found[name] for name in names]


def measured(
    score: Callable[[np.ndarray, pd.DataFrame], list[float]],
    embeddings_TD: np.ndarray,
    table: pd.DataFrame,
) -> tuple[float, float, list[float]]:
    """Seconds, the memory that the scoring added, in GB, and the scores."""
    score(embeddings_TD[:50], table.head(50))  # what is imported and started once
    before_gb, begun = peak_gb(), time.perf_counter()
    values = score(embeddings_TD, table)
    return time.perf_counter() - begun, peak_gb() - before_gb, values


def main() -> None:
    args = arguments(__doc__, embeddings=Path, manifest=Path, split="test")
    table = load_manifest(args.manifest).split(args.split)
    table = table[table["role"] != "query"].reset_index(drop=True)
    embeddings_TD = load_embeddings(args.embeddings, table)
    ways = {"PML": theirs, "validate.py": ours}
    found = {name: apart(measured, score, embeddings_TD, table) for name, score in ways.items()}
    peer_s = found["PML"][0]
    rows = ((n, s, s / peer_s, gb, *values) for n, (s, gb, values) in found.items())
    show(["", "s", "/ PML", "more GB", *KEYS], rows)


if __name__ == "__main__":
    main()
