"""What a batch costs the process that draws it, at the size of a large mix.

python tests/bench/sampling.py [--rows 2800000] [--classes 5000] [--domains 8] [--batch 128]

Domains halve in size from the first to the last. Per kind: time to set up, median and worst time of
200 steps in a row, and of 5 steps far apart, each of which has to shuffle the passes it falls into.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from common import arguments, seconds_of, show

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


def main() -> None:
    args = arguments(__doc__, rows=2_800_000, classes=5_000, domains=8, batch=128)
    rows = table(args.rows, args.classes, args.domains)
    print(f"{len(rows)} rows, {rows['label'].nunique()} classes, batch {args.batch}; in ms")
    show(
        ["", "set-up", "median", "worst", "far"],
        (measured(name, rows, args.batch) for name in KINDS),
    )


def measured(kind: str, rows: pd.DataFrame, batch: int) -> tuple:
    weight = pd.Series(np.random.default_rng(1).uniform(0.5, 5, size=len(rows)))
    made: list[Sampler] = []
    setup = seconds_of(
        lambda: made.append(
            Sampler(
                rows["domain"],
                KINDS[kind],
                batch,
                (0, 0),
                label_of_row=rows["label"],
                weight_of_row=weight if "weights" in kind else None,
            )
        )
    )
    sampler = made[0]
    row = [1e3 * seconds_of(partial(sampler.batch, step)) for step in range(200)]
    far = "-"
    if not sampler.learns:
        steps = range(10**6, 6 * 10**6, 10**6)
        far = 1e3 * np.median([seconds_of(partial(sampler.batch, step)) for step in steps])
    return kind, 1e3 * setup, np.median(row), max(row), far


if __name__ == "__main__":
    main()
