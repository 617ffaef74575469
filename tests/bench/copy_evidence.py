"""What `copies.py` plants, and every candidate pair with all that it is judged by."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont, ImageOps

from guie.config.data import NearConfig
from guie.curation.duplicates.candidates import ROOM, altered, measured, similarity_of_copies
from guie.curation.duplicates.evidence import (
    UNLIKE,
    brighter,
    contrasted,
    limits,
    resized,
)
from guie.curation.duplicates.pixels import Pixels
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.rows.checks import FINGERPRINTS, Checks, thumbnails
from guie.rows.comparison import NONE, compressed, cut

OLD_BITS, OLD_QUANTILE = 10, 0.05  # what near pictures were confirmed by before
ROOT = Path("/")  # of all paths here


def lettered(image: Image.Image) -> Image.Image:
    """A line of text across the lower edge, as photographers put it."""
    image = image.copy()
    height = max(image.height // 10, 8)
    place = image.width * 0.05, image.height - 1.4 * height
    ImageDraw.Draw(image).text(
        place,
        "www.example.com",
        fill="white",
        font=ImageFont.load_default(height),
        stroke_width=1,
        stroke_fill="black",
    )
    return image


Alteration = Callable[[Image.Image], Image.Image]
PROMISED: dict[str, Alteration] = {
    "JPEG 80": partial(compressed, quality=80),
    "JPEG 50": partial(compressed, quality=50),
    "JPEG 30": partial(compressed, quality=30),
    "half size": partial(resized, scale=0.5),
    "double size": partial(resized, scale=2.0),
    "cut 2 %": partial(cut, share=0.02),
    "cut 4 %": partial(cut, share=0.04),
    "brighter 1.3": partial(brighter, gain=1.3),
    "darker .7": partial(brighter, gain=0.7),
    "contrast 1.3": partial(contrasted, gain=1.3),
    "contrast .7": partial(contrasted, gain=0.7),
}
OTHERS: dict[str, Alteration] = {
    "cut 8 %": partial(cut, share=0.08),
    "squashed .8": lambda image: image.resize((image.width, max(round(0.8 * image.height), 1))),
    "white border": lambda image: ImageOps.expand(image, max(image.size) // 10, "white"),
    "black border": lambda image: ImageOps.expand(image, max(image.size) // 12, "black"),
    "several": lambda image: compressed(resized(cut(brighter(image, 1.15), 0.03), 0.6), 50),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "line of text": lettered,
    "mirrored": ImageOps.mirror,
}
# One press photograph under two labels of mini-uned each: looked at, every pair that pixels found.
TRUE_COPIES = """
cars/aston-martin-v8-vantage-convertible-2012/006 cars/aston-martin-v8-vantage-coupe-2012/018
cars/aston-martin-v8-vantage-convertible-2012/007 cars/aston-martin-v8-vantage-coupe-2012/009
cars/aston-martin-v8-vantage-convertible-2012/021 cars/aston-martin-virage-convertible-2012/015
cars/audi-tt-hatchback-2011/032 cars/audi-tt-rs-coupe-2012/011
cars/bentley-continental-gt-coupe-2007/017 cars/bentley-continental-gt-coupe-2012/024
cars/bmw-6-series-convertible-2007/020 cars/bmw-m6-convertible-2010/031
cars/bugatti-veyron-16-4-convertible-2009/005 cars/bugatti-veyron-16-4-coupe-2009/037
cars/chevrolet-express-cargo-van-2007/015 cars/chevrolet-express-van-2007/012
cars/dodge-caliber-wagon-2007/017 cars/dodge-caliber-wagon-2012/021
cars/dodge-caliber-wagon-2007/021 cars/dodge-caliber-wagon-2012/005
cars/dodge-charger-sedan-2012/023 cars/dodge-charger-srt-8-2009/007
cars/jeep-liberty-suv-2012/016 cars/jeep-patriot-suv-2012/022
cars/rolls-royce-phantom-drophead-coupe-convertible-2012/022 cars/rolls-royce-phantom-sedan-2012/014
"""
LOOKED_AT = {frozenset(pair.split()) for pair in TRUE_COPIES.strip().splitlines()}


def read(manifest: Path, workers: int) -> pd.DataFrame:
    """The images of a manifest, each picture once, with the columns of `FINGERPRINTS`."""
    loaded = load_manifest(manifest)
    table = loaded.table.drop_duplicates("image_path").sort_values("image_path")
    table["image_path"] = f"{os.path.abspath(loaded.root)}/" + table["image_path"]
    return known(table[["image_path", "label", "domain"]].assign(how="", original=""), workers)


def known(table: pd.DataFrame, workers: int) -> pd.DataFrame:
    checks = Checks(FINGERPRINTS, ROOT, table["image_path"].tolist())
    checks.fill(workers, "images")
    prints = checks.table().set_axis(table.index)
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
