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

import matplotlib
import numpy as np
import pandas as pd
from alterations import OTHERS, PROMISED
from copy_drawings import draw_curve, draw_sheet
from copy_evidence import Outcome, compared, evidences, looked_at, planted, read

import toydomains
from curation import draw_images, now_s, peak_gb
from guie.config import real_root
from guie.curation.duplicates.evidence import CROSS, UNLIKE, Pixels, cut
from guie.data.images import open_as_seen

PARTS = ("found", "time")


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
