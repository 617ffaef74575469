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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from alterations import LOOKED_AT, OTHERS, PROMISED, Alteration
from PIL import Image, ImageDraw

import toydomains
from curation import draw_images, now_s, peak_gb
from guie.config import real_root
from guie.config.cleaning import NearConfig
from guie.curation.copies.alterations import cut
from guie.curation.copies.evidence import CROSS, UNLIKE, limits
from guie.curation.copies.links import ROOM, altered, measured, similarity_of_copies
from guie.curation.copies.pixels import Pixels
from guie.data.images import open_as_seen
from guie.data.looks.difference import NONE
from guie.data.looks.fingerprints import fingerprints
from guie.data.looks.thumbnails import thumbnails
from guie.data.manifest import load_manifest

PARTS = ("found", "time")
OLD_BITS, OLD_QUANTILE = 10, 0.05  # what near pictures were confirmed by before
ROOT = Path("/")  # of all paths here


def read(manifest: Path, workers: int) -> pd.DataFrame:
    """The images of a manifest, each picture once, with the columns of `fingerprints`."""
    loaded = load_manifest(manifest)
    table = loaded.table.drop_duplicates("image_path").sort_values("image_path")
    table["image_path"] = f"{os.path.abspath(loaded.root)}/" + table["image_path"]
    return known(table[["image_path", "label", "domain"]].assign(how="", original=""), workers)


def known(table: pd.DataFrame, workers: int) -> pd.DataFrame:
    paths = table["image_path"].tolist()
    prints = fingerprints(paths, ROOT, open_as_seen, workers, "images").set_axis(table.index)
    return table.assign(**prints).drop_duplicates("pixels").reset_index(drop=True)


def planted(
    images: pd.DataFrame, folder: Path, ways: dict[str, Alteration], each: int, workers: int
) -> pd.DataFrame:
    """Copies, `each` of every domain and alteration, all of other images.

    Columns original and how; the labels are their own, so that each pair is across labels.
    """
    rows = []
    for _, own in images.groupby("domain"):
        drawn = own.sample(min(each * len(ways), len(own)), random_state=0)
        rows.append(drawn.assign(how=np.resize([*ways], len(drawn)), original=drawn["image_path"]))
    table = pd.concat(rows, ignore_index=True)
    table["image_path"] = [f"{folder}/{number:05d}.png" for number in table.index]
    table["label"] = [f"planted/{number}" for number in table.index]
    for row in table.itertuples():
        ways[row.how](open_as_seen(row.original)).save(row.image_path)
    return known(table[["image_path", "label", "domain", "how", "original"]], workers)


class Outcome(NamedTuple):
    """All candidates of the hash among images, and of copies with their originals."""

    pairs: pd.DataFrame  # one, other, how, domain, labels, distance, similarity, difference
    planted: pd.DataFrame
    limits: pd.DataFrame  # from the images alone
    least: dict[str, float]  # similarity that was asked for, and that is
    mirrored: bool  # then nothing is asked of similarity


def compared(
    images: pd.DataFrame, copies: pd.DataFrame, workers: int, mirrored: bool = False
) -> Outcome:
    """Every step of evidence, none of them filtering."""
    table = pd.concat([images, copies], ignore_index=True)
    pixels = Pixels(ROOT, workers)
    embed = partial(thumbnails, root=ROOT, workers=workers)
    own = images["image_path"].to_numpy(object)
    least = {
        "old": similarity_of_copies(own, embed, OLD_QUANTILE),
        "new": 1 - ROOM * (1 - similarity_of_copies(own, embed)),
    }
    pairs = measured(table, NearConfig(similarity_min=-1, mirrored=mirrored), embed, pixels)
    first, second = (table.iloc[pairs[end]].reset_index(drop=True) for end in ("first", "second"))
    pairs = pairs.assign(one=first["image_path"], other=second["image_path"], how=second["how"])
    # of a copy and another image than its original nothing is known
    known = (pairs["how"] == "") | (second["original"] == pairs["one"])
    pairs = pairs[known].reset_index(drop=True)
    natural = pairs[(pairs["how"] == "") & (pairs["similarity"] >= least["new"])]
    sizes = images.groupby("domain").size()
    # a domain without any candidate has its limit too, for the copies that come into it
    apart = pd.DataFrame({"domain": sizes.index, "labels": UNLIKE, "difference": NONE})
    natural = pd.concat([natural, apart])
    found = limits(natural, sizes, altered(images, pixels), NearConfig())
    return Outcome(pairs, copies, found, least, mirrored)


def evidences(outcome: Outcome) -> dict[str, pd.Series]:
    """By name of the evidence, which pairs it takes for copies."""
    pairs, least = outcome.pairs, outcome.least
    limit = outcome.limits[outcome.limits["labels"] == UNLIKE].set_index("domain")
    alike = pairs["similarity"] >= (-1 if outcome.mirrored else least["new"])
    within = lambda name: alike & (pairs["difference"] <= pairs["domain"].map(limit[name]))  # noqa: E731
    return {
        f"hash, {OLD_BITS} bits": pairs["distance"] <= OLD_BITS,
        "and thumbnails (before)": (pairs["distance"] <= OLD_BITS)
        & (pairs["similarity"] >= least["old"]),
        "hash, 12 bits": pairs["distance"] <= 12,
        "pixels: near": within("reach"),
        "pixels: beyond doubt": within("sure_limit"),
    }


def looked_at(pairs: pd.DataFrame) -> pd.Series:
    """Natural pairs that are copies under two labels, as was found by looking."""
    ends = zip(pairs["one"], pairs["other"], strict=True)
    names = (
        frozenset("/".join(Path(end).with_suffix("").parts[-3:]) for end in pair) for pair in ends
    )
    return pd.Series([name in LOOKED_AT for name in names], pairs.index)


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
        print("\nby evidence and domain; false: candidates across labels")
        print(pd.DataFrame(rows).T.to_string(float_format="{:.3f}".format))
        print("\nlimits")
        print(outcome.limits.to_string(float_format="{:.3f}".format, index=False))
    for name in ("and thumbnails (before)", "pixels: beyond doubt"):
        found = pairs[evidences(outcome)[name] & (pairs["how"] != "")]
        keys = ["how", "domain"]
        recall = found.groupby(keys).size().div(copies.groupby(keys).size(), fill_value=0)
        print(f"\nrecall by alteration, {name}")
        print(
            recall.unstack().reindex(copies["how"].unique()).to_string(float_format="{:.2f}".format)
        )


def draw_curve(outcome: Outcome, path: Path) -> None:
    """Precision over recall of what is promised, by domain: before, and by pixels."""
    import matplotlib.pyplot as plt

    pairs = outcome.pairs
    negative = (pairs["how"] == "") & (pairs["labels"] == UNLIKE) & ~looked_at(pairs)
    domains = sorted(outcome.planted["domain"].unique())
    figure, axes = plt.subplots(
        -(-len(domains) // 4),
        4,
        figsize=(11, 2.7 * -(-len(domains) // 4)),
        sharex=True,
        sharey=True,
    )
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
        if manifest is None:
            real = real_root()
            if real is not None:
                manifest = real / "data/mini-uned/manifest.csv"
            else:
                manifest = toydomains.draw(folder / "toy", images=3000, seed=7)
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
        names = draw_images(folder, count, 299)
        for file in names:
            cut(open_as_seen(folder / file), 0.04).save(folder / f"cut-{file}", quality=50)
        rng = np.random.default_rng(0)
        first = np.sort(rng.integers(0, count, args.pairs))  # as candidates come
        second = rng.integers(0, count, args.pairs)
        strangers = [(names[one], names[other]) for one, other in zip(first, second, strict=True)]
        copies = [(file, f"cut-{file}") for file in names]
        for what, asked in {"strangers": strangers, "copies": copies}.items():
            began = now_s()
            Pixels(folder, args.workers).between(asked, False)
            seconds = (now_s() - began)[0]
            print(
                f"{len(asked):,} pairs of {what}, {args.workers} workers: {seconds:.1f} s,"
                f" {1e3 * seconds / len(asked):.2f} ms each, {peak_gb():.2f} GB here"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--manifest", type=Path, help="of the images that copies are planted among")
    parser.add_argument("--each", type=int, default=40, help="copies a domain and alteration")
    parser.add_argument("--mirrored", action="store_true", help="look for mirror images too")
    parser.add_argument("--curve", type=Path, help="precision over recall, drawn here")
    parser.add_argument("--sheet", type=Path, help="the nearest look-alikes, drawn here")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    matplotlib.use("Agg")
    for part in args.parts or PARTS:
        print(f"[{part}]", flush=True)
        {"found": measure_found, "time": measure_time}[part](args)


if __name__ == "__main__":
    main()
