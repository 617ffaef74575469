"""What a placeholder costs cleaning: many files that are few pictures, many hashes that are one.

python tests/bench/placeholders.py [files] [hashes] [--files 300000] [--pictures 64]
                                   [--classes 120000] [--hashes 1000000] [--same 50000]

Everything is drawn, so it needs no data. `files` cleans a table of every class and split, of whose
pictures each two are near each other, once with what is found dropped and once with all of it
reported. `hashes` searches for near ones where many are the same. Each is measured at half the
size and at the whole, in a process of its own, whose peak memory is its own. The search itself is
by squares of the different hashes: --hashes 60000 shows what those that are the same take.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from curation import DOMAINS, RADIUS_BITS, draw_hashes, now_s, peak_gb
from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import Evidence, clean
from guie.curation.duplicates.candidates import close_pairs

PARTS = ("files", "hashes")
SIZES = ("files", "classes", "hashes", "same")
POLICIES = {
    "dropped": {"leaks": "drop_train"},
    "reported": {"leaks": "declared", "conflicts": "report", "exact": "report"},
}
FEATURES = 64  # dimensions


def draw_copies(files: int, pictures: int, classes: int) -> pd.DataFrame:
    """Files of few pictures, as `clean` takes them; each second picture is near the one before."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, pictures, dtype=np.uint64)
    hashes[1::2] = hashes[: len(hashes[1::2]) * 2 : 2] ^ np.uint64(3)
    picture, number = rng.integers(0, pictures, files), rng.integers(0, classes, files)
    digits = pd.Series([f"{value:016x}" for value in hashes.tolist()])[picture].to_numpy()
    domain = np.array(DOMAINS, object)[number % len(DOMAINS)]
    table = pd.DataFrame({"domain": domain, "label": domain + pd.Series(number).map("/{}".format)})
    order = pd.Series(rng.permutation(files)).map("{:08d}".format)
    return table.assign(
        image_path=order + pd.Series(picture).map("/{}.jpg".format),
        split=rng.choice(["train", "val", "test"], files, p=[0.8, 0.1, 0.1]),
        pixels=digits,
        **dict.fromkeys(["whole", "content", "centre", "mirrored"], digits),
    )


def embed(paths: Sequence[str], view: str) -> np.ndarray:
    """The same features for each two pictures."""
    pairs = [int(path.split("/")[1].removesuffix(".jpg")) // 2 for path in paths]
    drawn_PD = np.random.default_rng(0).normal(size=(max(pairs, default=0) + 1, FEATURES))
    return (drawn_PD / np.linalg.norm(drawn_PD, axis=1, keepdims=True))[pairs].astype(np.float32)


class Same:
    """Pictures that do not differ: what is near is a copy."""

    def between(self, pairs: Sequence[tuple[str, str]], mirrored: bool) -> np.ndarray:
        return np.zeros(len(pairs))

    def altered(self, paths: Sequence[str]) -> np.ndarray:
        return np.zeros(len(paths))


def measure_files(args: argparse.Namespace) -> None:
    table = draw_copies(args.files, args.pictures, args.classes)
    for name, policies in POLICIES.items():
        near = NearConfig(action="drop" if name == "dropped" else "report")
        drawn_gb, began = peak_gb(), now_s()
        config = CleaningConfig(near=near, labels_max=args.classes, **policies)
        left, found, *_ = clean(table, config, Evidence(embed, Same()))
        seconds, of_cpu = now_s() - began
        print(
            f"{args.files:>9,} files, all {name + ':':<10}{seconds:>7.1f} s ({of_cpu:.1f} of CPU)",
            end="",
        )
        print(
            f", {peak_gb():.2f} GB at most, {drawn_gb:.2f} before; {len(found):,} findings", end=""
        )
        print(f", {found['kind'].value_counts().to_dict()}, {len(left):,} left", flush=True)


def measure_hashes(args: argparse.Namespace) -> None:
    hashes = draw_hashes(args.hashes)
    hashes[np.random.default_rng(1).permutation(args.hashes)[: args.same]] = 0
    digits = [f"{value:016x}" for value in hashes.tolist()]
    prints = pd.DataFrame({"whole": digits, "content": digits, "centre": digits})
    drawn_gb, began = peak_gb(), now_s()
    found = close_pairs(prints, RADIUS_BITS, mirrored=False)
    seconds, of_cpu = now_s() - began
    print(
        f"{args.hashes:>9,} hashes, {args.same:,} the same: {seconds:.1f} s ({of_cpu:.1f} of CPU)",
        end="",
    )
    print(f", {peak_gb():.2f} GB at most, {drawn_gb:.2f} before; {len(found):,} pairs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; default all")
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--classes", type=int, default=120_000)
    parser.add_argument("--hashes", type=int, default=1_000_000)
    parser.add_argument("--same", type=int, default=50_000, help="hashes that are one")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; choose of {', '.join(PARTS)}")
    if args.here:
        return {"files": measure_files, "hashes": measure_hashes}[args.parts[0]](args)
    for part in args.parts or PARTS:
        for share in (2, 1):
            sizes = [f"--{key}={getattr(args, key) // share}" for key in SIZES]
            options = [*sizes, f"--pictures={args.pictures}"]
            subprocess.run([sys.executable, Path(__file__), part, *options, "--here"], check=True)


if __name__ == "__main__":
    main()
