"""What a batch costs the process that draws it, at the size of a large mix.

python tests/bench/sampling.py [--rows 2800000] [--classes 5000] [--domains 8] [--batch 128]

Domains halve in size from the first to the last. Per kind: time to set up, median and worst time of
200 steps in a row, and of 5 steps far apart, each of which has to shuffle the passes it falls into.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import pandas as pd

from guie.data.sampling import Sampler

KINDS = {
    "mixed": "mixed",
    "mixed, weights": {"name": "mixed", "weights": True},
    "mixed, temperature 2": {"name": "mixed", "temperature": 2.0},
    "dataset_size": "dataset_size",
    "round_robin": "round_robin",
    "loss_driven": "loss_driven",
    "dataset_size, P x 4": {"name": "dataset_size", "images_per_class": 4},
}


def table(rows: int, classes: int, domains: int) -> pd.DataFrame:
    size = 0.5 ** np.arange(domains)
    domain = np.repeat(
        np.arange(domains),
        np.diff(np.append(0, np.cumsum(size) / size.sum()) * rows).round().astype(int),
    )
    number = np.random.default_rng(0).integers(classes // domains, size=len(domain))
    names = pd.Series(domain).astype(str)
    return pd.DataFrame({"domain": names, "label": names + "/" + pd.Series(number).astype(str)})


def milliseconds(sampler: Sampler, steps: range) -> list[float]:
    taken = []
    for step in steps:
        began = time.perf_counter()
        sampler.batch(step)
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_800_000)
    parser.add_argument("--classes", type=int, default=5_000)
    parser.add_argument("--domains", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    rows = table(args.rows, args.classes, args.domains)
    weight = pd.Series(np.random.default_rng(1).uniform(0.5, 5, size=len(rows)))
    print(f"{len(rows)} rows, {rows['label'].nunique()} classes, batch {args.batch}; in ms")
    print(f"{'':<22}{'set-up':>9}{'median':>9}{'worst':>9}{'far':>9}")
    for name, config in KINDS.items():
        began = time.perf_counter()
        weights = weight if "weights" in name else None
        sampler = Sampler(
            rows["domain"],
            config,
            args.batch,
            (0, 0),
            label_of_row=rows["label"],
            weight_of_row=weights,
        )
        setup = (time.perf_counter() - began) * 1e3
        row = milliseconds(sampler, range(200))
        far = [] if sampler.learns else milliseconds(sampler, range(10**6, 6 * 10**6, 10**6))
        print(f"{name:<22}{setup:>9.0f}{statistics.median(row):>9.3f}{max(row):>9.2f}", end="")
        print(f"{statistics.median(far):>9.1f}" if far else f"{'-':>9}")


if __name__ == "__main__":
    main()
