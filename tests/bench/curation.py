"""What curation costs: the table at UnED's size, prints of an image, near-duplicates of a million.

python tests/bench/curation.py [table] [images] [hashes] [cells] [pairs] [--rows 2830000] [--classes 316446]
                               [--images 300] [--side 500] [--hashes 1000000] [--sample 500] [--radius 10]

Everything is drawn, so it needs no data. Each part runs in a process of its own, whose peak memory
is its own. `table` reads a manifest, applies every rule on class sizes, splits and writes. `images`
is one worker, against plain decoding of the same JPEGs by Pillow, and what the cache of checks spares.
`hashes` searches as cleaning does up to a million images, against faiss' flat index on a sample of the
queries, and holds a sample of the answers against counting bits by numpy. `cells` searches the same
hashes as cleaning does above a million images, and vectors of 64 numbers in as many cells. `pairs` counts
the pairs of growing parts of `data/mini-uned` below `GUIE_REAL`, or of drawn toy images without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from math import isqrt
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from common import (
    DOMAINS,
    apart,
    arguments,
    in_turn,
    peak_gb,
    photographs,
    ratio,
    show,
    wall_and_cpu,
)
from PIL import Image

import toydomains
from guie.config import real_root
from guie.config.data import OversampleConfig
from guie.curation.classes import cap, drop_rare, oversample
from guie.curation.duplicates import pairs
from guie.curation.duplicates.pairs import close_pairs
from guie.curation.splits import split_validation
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest, save_manifest
from guie.rows.checks import FINGERPRINTS, Checks, decode, fingerprint, pixel_digest

MIN_IMAGES, MAX_IMAGES = 3, 100
OVERSAMPLE = OversampleConfig(target=20)
COMPARED = 8192  # queries that the flat index is timed on
PLANTED_BITS = 12  # neighbours are planted at 0 to so many bits
FACTORS = 48  # on which the bits of drawn hashes depend: one pair of 50,000 is within 12 bits
GROWING = (1000, 2000, 4000, 8000, 16_000, 24_000)  # images
FULL = 1_000_000  # hashes
BITS_SET = np.array([word.bit_count() for word in range(2**16)], np.uint8)


def draw_table(rows: int, classes: int) -> pd.DataFrame:
    """Train rows whose classes are of very different size, each of one image at least."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(sigma=1.5, size=classes)
    more = rng.choice(classes, size=rows - classes, p=share / share.sum())
    number = rng.permutation(np.concatenate([np.arange(classes), more]))
    domain = pd.Series(np.array(DOMAINS, object)[number % len(DOMAINS)])
    image = pd.Series(np.arange(rows)).map("{:08d}".format)
    return pd.DataFrame(
        {
            "image_path": domain + "/images/" + image.str[:3] + "/" + image + ".jpg",
            "label": domain + "/" + pd.Series(number).astype(str),
            "domain": domain,
            "split": "train",
            "role": "train",
            "width": rng.integers(200, 1000, rows),
            "height": rng.integers(200, 1000, rows),
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


def prints_of(hashes: np.ndarray) -> pd.DataFrame:
    """The table that `close_pairs` takes."""
    digits = [f"{value:016x}" for value in hashes.tolist()]
    return pd.DataFrame({"whole": digits, "content": digits, "centre": ""})


def measure_table(args: argparse.Namespace, folder: Path) -> None:
    """`folder` holds the drawn manifest, in both formats."""
    heads = ["", "s", "of CPU", "peak GB so far"]
    show(heads, table_steps(folder), f"{args.rows:,} rows, {args.classes:,} classes")


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
    share = (table["split"] == "val").mean()
    yield f"{len(table):,} rows are left; {share:.1%} of them val", "", "", ""


def measure_images(args: argparse.Namespace, folder: Path) -> None:
    files = photographs(folder, args.images, args.side * 3 // 4)
    names = [file.name for file in files]

    def hashed(path: Path) -> Image.Image:
        image = open_as_seen(path)
        pixel_digest(image)
        return image

    def plain() -> None:
        for file in files:  # kept in a list, the pictures would take new memory, which is slow
            Image.open(file).convert("RGB")

    os.environ["GUIE_CACHE"] = str(folder / "cache")

    def looked(open_image, look) -> None:
        for name in names:
            look(str(folder), open_image, name)

    def kept() -> None:
        checks = Checks(FINGERPRINTS, folder, names)
        checks.fill(1, "kept")
        checks.table()

    def first() -> None:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        kept()

    ways = {
        "plain decoding": plain,
        "decode check": lambda: looked(open_as_seen, decode),
        "and content hash": lambda: looked(hashed, decode),
        "all that cleaning compares": lambda: looked(open_as_seen, fingerprint),
        "the same, cached": first,
        "from the cache": kept,
    }
    taken = in_turn(ways, 5, wall_and_cpu, warm_up=False)
    rows = (
        (
            name,
            *(1e3 * np.median(rounds, axis=0) / args.images),
            *ratio(taken, name, "plain decoding"),
        )
        for name, rounds in taken.items()
    )
    size_kb = statistics.mean(file.stat().st_size for file in files) / 1e3
    title = f"{args.images} JPEGs of {args.side} px and {size_kb:.0f} kB, one worker, {peak_gb():.2f} GB"
    show(["", "ms", "ms of CPU", "x plain", "of CPU"], rows, title)


def measure_hashes(args: argparse.Namespace, folder: Path) -> None:
    hashes = draw_hashes(args.hashes)
    prints = prints_of(hashes)
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
    title = (
        f"{len(hashes):,} hashes, radius {args.radius} bits, {most_gb:.2f} GB, {len(found):,} pairs"
    )
    show(["", "s", "of CPU"], rows, title)
    sample = np.r_[: min(args.sample, len(hashes))]  # the first are those with planted neighbours
    known = set(zip(found["first"], found["second"], found["distance"], strict=True))
    expected = missed = 0
    for number in sample:
        near = close_by_counting(hashes, number, args.radius)
        near = near[np.lexsort([near[:, 1], near[:, 2]])][: pairs.NEAREST].tolist()
        expected += len(near)
        missed += sum((min(i, j), max(i, j), bits) not in known for i, j, bits in near)
    print(
        f"{len(sample)} of them against all by counting bits: {expected} nearest neighbours,"
        f" {missed} missed or wrong"
    )


def measure_cells(args: argparse.Namespace, folder: Path) -> None:
    heads = ["", "s", "of CPU", "peak GB so far", "pairs", "planted pairs found"]
    show(heads, cells_of(args), f"{args.hashes:,} rows in k-means cells, radius {args.radius} bits")


def cells_of(args: argparse.Namespace) -> Iterator[tuple]:
    hashes = draw_hashes(args.hashes)
    prints = prints_of(hashes)
    pairs.EXACT = 0
    began = wall_and_cpu()
    found = close_pairs(prints, args.radius, mirrored=False)
    taken = wall_and_cpu() - began
    planted = np.arange(min(len(hashes) // 2, 10_000))
    planted = planted[planted % (PLANTED_BITS + 1) <= args.radius]
    known = set(zip(found["first"], found["second"], strict=True))
    share = np.mean([(one, len(hashes) - 1 - one) in known for one in planted.tolist()])
    yield "hashes", *taken, peak_gb(), len(found), float(share)
    began = wall_and_cpu()
    vectors = np.random.default_rng(0).normal(size=(len(hashes), 64)).astype(np.float32)
    cells = isqrt(len(vectors))
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatL2(64), 64, cells, faiss.ScalarQuantizer.QT_fp16
    )
    index.nprobe, index.cp.niter = pairs.PROBES, pairs.ROUNDS
    index.train(vectors[: pairs.SAMPLED * cells])
    index.add(vectors)
    for start in range(0, len(vectors), 4096):
        index.search(vectors[start : start + 4096], pairs.NEAREST + 1)
    yield "vectors of 64 numbers", *(wall_and_cpu() - began), peak_gb(), "", ""


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


def close_by_counting(hashes: np.ndarray, number: int, radius_bits: int) -> np.ndarray:
    """(N, 3): `number`, each other position within the radius, and the distance in bits."""
    words = (hashes ^ hashes[number]).view(np.uint16).reshape(-1, 4)
    distance = BITS_SET[words].sum(axis=1, dtype=np.int64)
    near = np.flatnonzero(distance <= radius_bits)
    near = near[near != number]
    return np.column_stack([np.full_like(near, number), near, distance[near]])


PARTS = {"table": measure_table, "images": measure_images, "hashes": measure_hashes}
PARTS |= {"cells": measure_cells, "pairs": measure_pairs}


def main() -> None:
    args = arguments(
        __doc__,
        parts=list(PARTS),
        rows=2_830_000,
        classes=316_446,
        images=300,
        side=500,
        hashes=FULL,
        sample=500,
        radius=10,
    )
    for part in args.parts:
        with tempfile.TemporaryDirectory() as name:
            if part == "table":  # drawn here: it is no part of the peak
                drawn = draw_table(args.rows, args.classes)
                for suffix in ("csv", "parquet"):
                    save_manifest(drawn, Path(name) / f"drawn.{suffix}")
            apart(PARTS[part], args, Path(name))


if __name__ == "__main__":
    main()
