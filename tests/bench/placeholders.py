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

from collections.abc import Sequence

import numpy as np
import pandas as pd
from common import DOMAINS, apart, arguments, peak_gb, show, wall_and_cpu

from curation import draw_hashes, prints_of
from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import clean
from guie.curation.duplicates.pairs import close_pairs

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


def measure_files(files: int, classes: int, pictures: int) -> list[tuple]:
    table, rows = draw_copies(files, pictures, classes), []
    for name, policies in POLICIES.items():
        near = NearConfig(action="drop" if name == "dropped" else "report")
        drawn_gb, began = peak_gb(), wall_and_cpu()
        config = CleaningConfig(near=near, labels_max=classes, **policies)
        left, found, *_ = clean(table, config, embed, Same())
        message = f"{len(found):,}, {found['kind'].value_counts().to_dict()}, {len(left):,} left"
        rows.append(
            (
                f"{files:,} files, all {name}",
                *(wall_and_cpu() - began),
                drawn_gb,
                peak_gb(),
                message,
            )
        )
    return rows


def measure_hashes(count: int, same: int) -> list[tuple]:
    hashes = draw_hashes(count)
    hashes[np.random.default_rng(1).permutation(count)[:same]] = 0
    prints = prints_of(hashes)
    drawn_gb, began = peak_gb(), wall_and_cpu()
    found = close_pairs(prints, NearConfig().distance_max, mirrored=False)
    taken = wall_and_cpu() - began
    return [
        (
            f"{count:,} hashes, {same:,} the same",
            *taken,
            drawn_gb,
            peak_gb(),
            f"{len(found):,} pairs",
        )
    ]


def main() -> None:
    args = arguments(
        __doc__,
        parts=("files", "hashes"),
        files=300_000,
        pictures=64,
        classes=120_000,
        hashes=1_000_000,
        same=50_000,
    )
    heads = ["", "s", "of CPU", "GB before", "GB at most", "found"]
    for part in args.parts:
        halves = [
            apart(measure_files, args.files // share, args.classes // share, args.pictures)
            if part == "files"
            else apart(measure_hashes, args.hashes // share, args.same // share)
            for share in (2, 1)
        ]
        show(heads, sum(halves, []), f"{part}, at half the size and at the whole")
        ratios = [f"{whole[1] / half[1]:.2f}" for half, whole in zip(*halves, strict=True)]
        print(f"the whole takes {' and '.join(ratios)} times the seconds of the half")


if __name__ == "__main__":
    main()
