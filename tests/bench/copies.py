"""Copies among look-alikes: how many planted copies are found, and how many look-alikes with them.

python tests/bench/copies.py [found] [time] [--manifest FILE] [--each 40] [--curve FILE.svg]
                             [--sheet FILE.png] [--pairs 100000] [--workers 2] [--mirrored]

`found` plants altered copies of a manifest's images, each under a label of its own: the real
benchmark below `GUIE_REAL` by default (../shared where that is unset), or else the toy domains.
Negatives are the candidates of the hash across the manifest's own labels, which say that they are
none; the few that are copies all the same were found by looking, and are listed. Told by domain,
alteration and evidence; `--curve` draws precision over recall, `--sheet` the pairs that were
nearest to being taken for copies, for eyes alone. `time` compares pairs of pictures of 224 px.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from common import arguments, peak_gb, photographs, seconds_of, show, show_frame
from copy_evidence import (
    OLD_BITS,
    OTHERS,
    PROMISED,
    Outcome,
    compared,
    evidences,
    looked_at,
    planted,
    read,
)
from PIL import Image, ImageDraw

import toydomains
from guie.config import real_root
from guie.curation.duplicates.evidence import CROSS, UNLIKE
from guie.curation.duplicates.pixels import Pixels
from guie.data.images import open_as_seen
from guie.rows.comparison import cut


def tell(outcome: Outcome, promised: bool) -> None:
    pairs, copies = outcome.pairs, outcome.planted
    true = looked_at(pairs)
    negative = (pairs["how"] == "") & (pairs["labels"] == UNLIKE) & ~true
    rows = {}
    for name, taken in evidences(outcome).items():
        found = pairs[taken & (pairs["how"] != "")]
        recall = found.groupby("domain").size() / copies.groupby("domain").size()
        false = pairs[taken & negative].groupby("domain").size()
        for domain in [*copies["domain"].unique(), CROSS]:
            hits, wrong = (found["domain"] == domain).sum(), false.get(domain, 0)
            rows[name, domain] = {
                "planted": (copies["domain"] == domain).sum(),
                "recall": recall.get(domain, np.nan),
                "false": wrong,
                "precision": hits / (hits + wrong) if hits else np.nan,
                "true, of those listed": (taken & true & (pairs["domain"] == domain)).sum(),
            }
    if promised:
        by_domain = pd.DataFrame(rows).T
        by_domain.index = [f"{name}, {domain}" for name, domain in by_domain.index]
        show_frame(by_domain, "by evidence and domain; false: candidates across labels")
        show_frame(outcome.limits.set_index("domain"), "limits")
    for name in ("and thumbnails (before)", "pixels: beyond doubt"):
        found = pairs[evidences(outcome)[name] & (pairs["how"] != "")]
        keys = ["how", "domain"]
        recall = found.groupby(keys).size().div(copies.groupby(keys).size(), fill_value=0)
        by_way = recall.unstack().reindex(copies["how"].unique())
        show_frame(by_way, f"recall by alteration, {name}")


def draw_curve(outcome: Outcome, path: Path) -> None:
    """Precision over recall of what is promised, by domain: before, and by pixels."""
    pairs = outcome.pairs
    negative = (pairs["how"] == "") & (pairs["labels"] == UNLIKE) & ~looked_at(pairs)
    domains = sorted(outcome.planted["domain"].unique())
    lines = -(-len(domains) // 4)
    figure, axes = plt.subplots(lines, 4, figsize=(11, 2.7 * lines), sharex=True, sharey=True)
    ways = {
        "thumbnails (before)": (-pairs["similarity"]).where(pairs["distance"] <= OLD_BITS, np.inf),
        "pixels": pairs["difference"].where(pairs["similarity"] >= outcome.least["new"], np.inf),
    }
    limit = outcome.limits[outcome.limits["labels"] == UNLIKE].set_index("domain")["sure_limit"]
    for axis, domain in zip(axes.flat, domains, strict=False):
        total = (outcome.planted["domain"] == domain).sum()
        own = pairs["domain"] == domain
        for (name, score), colour in zip(ways.items(), ("#999999", "#2a73b8"), strict=True):
            positive = np.sort(score[own & (pairs["how"] != "")])
            positive = positive[np.isfinite(positive)]
            wrong = np.searchsorted(np.sort(score[own & negative]), positive, side="right")
            hits = np.arange(1, len(positive) + 1)
            axis.plot(hits / total, hits / (hits + wrong), color=colour, label=name)
            if name == "pixels" and domain in limit:
                at = np.searchsorted(positive, limit[domain], side="right") - 1
                axis.plot(hits[at] / total, hits[at] / (hits[at] + wrong[at]), "o", color=colour)
        axis.set_title(domain, fontsize=10)
    for axis in axes.flat[len(domains) :]:
        axis.set_axis_off()
    axes.flat[0].legend(loc="lower left", fontsize=8)
    axes.flat[0].set(xlim=(0.5, 1.01), ylim=(0, 1.03))
    figure.supxlabel("recall of planted copies", fontsize=10)
    figure.supylabel("precision among look-alikes", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_sheet(outcome: Outcome, path: Path, side_px: int = 96, rows: int = 12) -> None:
    """The natural pairs across labels that differ least, by domain: for eyes alone."""
    pairs = outcome.pairs
    natural = pairs[(pairs["how"] == "") & (pairs["labels"] == UNLIKE)]
    shown = natural.sort_values("difference").groupby("domain").head(rows)
    domains = sorted(shown["domain"].unique())
    width, height = 2 * side_px + 12, side_px + 16
    sheet = Image.new("RGB", (width * len(domains), height * rows), "white")
    pen = ImageDraw.Draw(sheet)
    for column, domain in enumerate(domains):
        own = shown[shown["domain"] == domain]
        for row, pair in enumerate(own.itertuples()):
            place = column * width, row * height
            pen.text(
                place, f"{pair.difference:.3f} {Path(pair.one).parent.name}"[:34], fill="black"
            )
            for number, end in enumerate((pair.one, pair.other)):
                image = open_as_seen(end)
                image.thumbnail((side_px, side_px))
                sheet.paste(image, (place[0] + number * side_px, place[1] + 14))
    sheet.save(path)


def measure_found(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = args.manifest
        if manifest is None and (real := real_root()):
            manifest = real / "data/mini-uned/manifest.csv"
        manifest = manifest or toydomains.draw(folder / "toy", images=3000, seed=7)
        images = read(manifest, args.workers)
        print(
            f"{len(images):,} images of {images['domain'].nunique()} domains, {args.each} copies each"
        )
        for what, ways in {"promised": PROMISED, "beyond what is promised": OTHERS}.items():
            (folder / what).mkdir()
            copies = planted(images, folder / what, ways, args.each, args.workers)
            print(f"\n{what}: {len(copies):,} planted copies")
            outcome = compared(images, copies, args.workers, args.mirrored)
            tell(outcome, ways is PROMISED)
            if ways is PROMISED and args.curve:
                draw_curve(outcome, args.curve)
            if ways is PROMISED and args.sheet:
                draw_sheet(outcome, args.sheet)


def measure_time(args: argparse.Namespace) -> None:
    """Pairs of pictures 224 px high: any two of them, and each with a copy that was cut."""
    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), max(args.pairs // 50, 2)
        names = [file.name for file in photographs(folder, count, 224)]
        for file in names:
            cut(open_as_seen(folder / file), 0.04).save(folder / f"cut-{file}", quality=50)
        rng = np.random.default_rng(0)
        first = np.sort(rng.integers(0, count, args.pairs))  # as candidates come
        second = rng.integers(0, count, args.pairs)
        strangers = [(names[one], names[other]) for one, other in zip(first, second, strict=True)]
        copies = [(file, f"cut-{file}") for file in names]
        rows = []
        for what, asked in {"strangers": strangers, "copies": copies}.items():
            pixels = Pixels(folder, args.workers)
            taken = seconds_of(lambda p=pixels, a=asked: p.between(a, False))
            rows.append((what, len(asked), taken, 1e3 * taken / len(asked), peak_gb()))
        show(["pairs of", "", "s", "ms each", "GB here"], rows, f"time, {args.workers} workers")


PARTS = {"found": measure_found, "time": measure_time}


def main() -> None:
    args = arguments(
        __doc__,
        parts=list(PARTS),
        manifest=Path | None,
        each=40,
        mirrored=False,
        curve=Path | None,
        sheet=Path | None,
        pairs=100_000,
        workers=os.cpu_count(),
    )
    plt.switch_backend("Agg")
    for part in args.parts:
        PARTS[part](args)


if __name__ == "__main__":
    main()
