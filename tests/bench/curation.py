"""What curation costs: the table at UnED's size, and near-duplicates.

python tests/bench/curation.py [table] [hashes] [cells] [pairs] [--hashes 1000000] [--radius 10]

Everything is drawn, so it needs no data. Each part runs in a process of its own, whose peak memory is its
own. `table` reads a manifest, applies every rule on class sizes, splits and writes. `hashes` searches as
cleaning does up to a million images, and by faiss' flat index for a sample of the queries. `cells` searches
k-means cells, as cleaning does above three million hashes, among half of the hashes and among all, and
estimates more from both. `pairs` counts those of growing parts of `data/mini-uned` below `GUIE_REAL`, or of
drawn toy images without it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from common import (
    arguments,
    forget_peak,
    in_own_process,
    peak_gb,
    show,
    wall_and_cpu,
)

import toydomains
from guie.config import real_root
from guie.config.data import OversampleConfig
from guie.curation.classes import cap, drop_rare, oversample, split_validation
from guie.curation.duplicates import pairs
from guie.curation.duplicates.pairs import close_pairs
from guie.data.manifest import load_manifest, save_manifest
from guie.rows.checks import Checks
from guie.rows.fingerprints import FINGERPRINTS

DOMAINS = ("landmarks", "nature", "food", "products", "art", "retail", "clothes", "cars")
ROWS, CLASSES = 2_830_000, 316_446  # of UnED
MIN_IMAGES, MAX_IMAGES = 3, 100
OVERSAMPLE = OversampleConfig(target=20)
COMPARED = 8192  # queries that the flat index is timed on
PLANTED_BITS = 12  # neighbours are planted at 0 to 12 bits
FACTORS = 48  # on which the bits of drawn hashes depend: one pair of 50,000 is within 12 bits
GROWING = (1000, 2000, 4000, 8000, 16_000, 24_000)  # images
ESTIMATED = (10_000_000, 40_000_000)  # hashes


def draw_table() -> pd.DataFrame:
    """Train rows whose classes are of very different size, each of one image at least."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(sigma=1.5, size=CLASSES)
    more = rng.choice(CLASSES, size=ROWS - CLASSES, p=share / share.sum())
    number = rng.permutation(np.concatenate([np.arange(CLASSES), more]))
    domain = pd.Series(np.array(DOMAINS, object)[number % len(DOMAINS)])
    image = pd.Series(np.arange(ROWS)).map("{:08d}".format)
    return pd.DataFrame(
        {
            "image_path": domain + "/images/" + image.str[:3] + "/" + image + ".jpg",
            "label": domain + "/" + pd.Series(number).astype(str),
            "domain": domain,
            "split": "train",
            "role": "train",
            "width": rng.integers(200, 1000, ROWS),
            "height": rng.integers(200, 1000, ROWS),
        }
    )


def draw_hashes(count: int) -> np.ndarray:
    """Hashes with dependent bits; from the end on, each differs in a few bits from its mirror place."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(FACTORS, 64)).astype(np.float32)
    blocks = [min(100_000, count - start) for start in range(0, count, 100_000)]
    drawn = [rng.normal(size=(size, FACTORS)).astype(np.float32) @ factors > 0 for size in blocks]
    hashes = np.concatenate([np.packbits(bits, axis=1) for bits in drawn]).view(np.uint64)[:, 0]
    for number in range(min(count // 2, 10_000)):
        bits = rng.choice(64, size=number % (PLANTED_BITS + 1), replace=False)
        hashes[-1 - number] = hashes[number] ^ np.uint64(sum(1 << int(bit) for bit in bits))
    return hashes


def measure_table(args: argparse.Namespace, folder: Path) -> None:
    """Curate the drawn manifest of the folder, in both formats."""
    heads = ["", "s", "of CPU", "peak GB so far"]
    show(heads, table_steps(folder), f"{ROWS:,} rows, {CLASSES:,} classes")


def table_steps(folder: Path) -> Iterator[tuple]:
    spent = {"csv": np.zeros(2), "parquet": np.zeros(2)}
    table = pd.DataFrame()

    def step(name: str, make: Callable[[], object], *suffixes: str) -> tuple:
        nonlocal table
        began = wall_and_cpu()
        made = make()
        taken = wall_and_cpu() - began
        for suffix in suffixes:
            spent[suffix] += taken
        table = made if isinstance(made, pd.DataFrame) else table
        return name, *taken, peak_gb()

    for suffix in spent:
        source = folder / f"drawn.{suffix}"
        yield step(f"load {suffix}", lambda s=source: load_manifest(s).table, suffix)
    yield step("min", lambda: drop_rare(table, MIN_IMAGES), *spent)
    yield step("cap", lambda: cap(table, MAX_IMAGES), *spent)
    yield step("split", lambda: split_validation(table, 0.1, seed=0), *spent)
    yield step("oversample", lambda: oversample(table, OVERSAMPLE), *spent)
    for suffix in spent:
        path = folder / f"mix.{suffix}"
        yield step(f"write {suffix}", lambda p=path: save_manifest(table, p), suffix)
    for suffix, taken in spent.items():
        yield f"all, {suffix}", *taken, ""


def draw_prints(count: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Drawn hashes, and images that have them."""
    hashes = draw_hashes(count)
    digits = [f"{value:016x}" for value in hashes.tolist()]
    return hashes, pd.DataFrame({"whole": digits, "content": digits, "centre": ""})


def measure_hashes(args: argparse.Namespace, folder: Path) -> None:
    hashes, prints = draw_prints(args.hashes)
    began = wall_and_cpu()
    found = close_pairs(prints, args.radius, mirrored=False)
    taken, most_gb = wall_and_cpu() - began, peak_gb()
    index = faiss.IndexBinaryFlat(64)
    index.add(hashes[:, None].view(np.uint8))
    queries = hashes[: min(COMPARED, len(hashes)), None].view(np.uint8)
    began = wall_and_cpu()
    for start in range(0, len(queries), pairs.BLOCK):
        index.range_search(queries[start : start + pairs.BLOCK], args.radius + 1)
    flat = (wall_and_cpu() - began) * len(hashes) / len(queries)
    rows = [
        ("as cleaning does", *taken),
        (f"flat, estimated from {len(queries):,} queries", *flat),
        ("flat / cleaning", *(flat / taken)),
    ]
    title = f"{len(hashes):,} hashes, {args.radius} bits, {most_gb:.2f} GB, {len(found):,} pairs"
    show(["", "s", "of CPU"], rows, title)


def measure_cells(args: argparse.Namespace, folder: Path) -> None:
    rows, seconds, held_gb = [], [], []
    for count in (args.hashes // 2, args.hashes):
        _, prints = draw_prints(count)
        exact = close_pairs(prints, args.radius, mirrored=False)
        forget_peak()
        began, whole = wall_and_cpu(), pairs.EXACT
        pairs.EXACT = 0
        found = close_pairs(prints, args.radius, mirrored=False)
        pairs.EXACT = whole
        taken = wall_and_cpu() - began
        seconds.append(taken[1])
        held_gb.append(peak_gb())
        share = len(found.merge(exact)) / len(exact)
        rows.append((f"{count:,}", *taken, held_gb[-1], share))
    growth = np.log2(seconds[1] / seconds[0])
    for count in ESTIMATED:
        cpu = seconds[1] * (count / args.hashes) ** growth
        more_gb = 2 * (held_gb[1] - held_gb[0]) * (count / args.hashes - 1)
        how = f"estimated: time by a power of {growth:.2f}, memory by a line"
        rows.append((f"{count:,}, {how}", "", cpu, held_gb[1] + more_gb, ""))
    show(["hashes", "s", "of CPU", "GB", "pairs found"], rows, f"within {args.radius} bits")


def measure_pairs(args: argparse.Namespace, folder: Path) -> None:
    """Growing parts of a data set: all pairs, and those that images propose."""
    if real := real_root():
        manifest = load_manifest(real / "data/mini-uned/manifest.csv")
    else:
        manifest = load_manifest(toydomains.draw(folder / "toys", images=8000, seed=7))
    checks = Checks(FINGERPRINTS, manifest.root, manifest.table["image_path"].unique())
    checks.fill(os.cpu_count() or 1, "hashes")
    prints = checks.table().drop_duplicates("pixels").sample(frac=1, random_state=0)
    show(["images", "all pairs", "s of CPU", "proposed", "an image", "s of CPU"], growth(prints))


def growth(prints: pd.DataFrame) -> Iterator[tuple]:
    nearest = pairs.NEAREST
    for count in GROWING:
        if count <= len(prints):
            part = prints.iloc[:count].sort_index()
            measured = []
            for pairs.NEAREST in (count, nearest):
                began = time.process_time()
                found = close_pairs(part, 12, mirrored=False)
                measured.append((len(found), time.process_time() - began))
            (all_pairs, all_s), (own, own_s) = measured
            yield f"{count:,}", all_pairs, all_s, own, own / count, own_s


PARTS = {
    "table": measure_table,
    "hashes": measure_hashes,
    "cells": measure_cells,
    "pairs": measure_pairs,
}


def main() -> None:
    args = arguments(__doc__, parts=list(PARTS), hashes=1_000_000, radius=10)
    for part in args.parts:
        with tempfile.TemporaryDirectory() as name:
            if part == "table":  # drawn here: its memory is no part of the peak
                drawn = draw_table()
                for suffix in ("csv", "parquet"):
                    save_manifest(drawn, Path(name) / f"drawn.{suffix}")
            in_own_process(PARTS[part], args, Path(name))


if __name__ == "__main__":
    main()
