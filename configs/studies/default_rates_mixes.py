"""Make three of the four data sets of default_rates.yaml: two cut from mini-uned, one drawn.

python configs/studies/default_rates_mixes.py --out input/default_rates

`products.csv` has 150 training classes of 7 images and `twenty.csv` 20 classes with all their images. Both
have at most 7 images of each val and test class, and the five domains that have so many. Their images stay
in `$GUIE_REAL/data/mini-uned`. `drawn/` has about 10,000 toy classes of 4 images, and others for val and
test. The recorded results had ten toy domains, three of which are gone: `drawn/` is another data set today.
The same arguments give the same files. Drawing takes about 10 minutes on one core.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from toydomains.dataset import ClassPlan, draw_class
from toydomains.domains import DOMAINS

DRAWN = {"train": 1429, "val": 71, "test": 214}  # classes of each of the seven toy domains
VIEWS = 4  # images of a drawn class
MOST = 7  # images of a class, as few as small shops have


def cut(table: pd.DataFrame, classes: int, images: int | None, seed: int = 0) -> pd.DataFrame:
    """Return a manifest of fewer training images, and of at most 7 per class and role in val and test.

    Args:
        table: the manifest to cut.
        classes: training classes, as evenly over the domains as their numbers of classes allow.
        images: images of each; None: all, of classes with 7 or more.
    """
    rng = np.random.default_rng(seed)
    table = table.sort_values("image_path").sample(frac=1, random_state=rng)
    train = table[table["split"] == "train"]
    train = train[train.groupby("label")["label"].transform("size") >= MOST]
    names = train.drop_duplicates("label")
    turn = names.groupby("domain").cumcount()  # first one class of each domain, then a second
    chosen = names.assign(turn=turn).sort_values(["turn", "domain"])["label"].head(classes)
    train = train[train["label"].isin(chosen)].groupby("label").head(images or len(train))
    others = table[(table["split"] != "train") & table["domain"].isin(train["domain"])]
    others = others.groupby(["label", "role"]).head(MOST)
    return pd.concat([train, others]).sort_values("image_path")


def draw(folder: Path) -> pd.DataFrame:
    """Draw the toy classes into `folder`, and return the manifest."""
    plans, first = [], 0
    for split, count in DRAWN.items():
        roles = ("train" if split == "train" else "both",) * VIEWS
        numbers = range(first, first := first + count)
        plans += [ClassPlan(0, "benchmark", d, n, split, roles) for d in DOMAINS for n in numbers]
    rows: list[dict] = []
    with ProcessPoolExecutor() as pool, tqdm(total=len(plans), unit="class") as bar:
        for new in pool.map(partial(draw_class, folder), plans, chunksize=8):
            rows += new
            bar.update()
    return pd.DataFrame(rows)


def main() -> None:
    """Write the data sets."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, default=Path("input/default_rates"), help="their folder"
    )
    out: Path = parser.parse_args().out
    real = Path(os.environ.get("GUIE_REAL", "../shared")) / "data/mini-uned/manifest.csv"
    table = pd.read_csv(real, keep_default_na=False)
    out.mkdir(parents=True, exist_ok=True)
    cut(table, 150, MOST).to_csv(out / "products.csv", index=False)
    cut(table, 20, None).to_csv(out / "twenty.csv", index=False)
    draw(out / "drawn").to_csv(out / "drawn/manifest.csv", index=False)


if __name__ == "__main__":
    main()
