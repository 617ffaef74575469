"""Which planted copies cleaning finds, by alteration, and how many other images it takes for copies.

GUIE_REAL=FOLDER python tests/bench/planted.py [--images 400] [--drawn 0] [--each 10] [--seed 0]
                                               [--nearest 16] [--cells]

Altered copies of a manifest's images are planted among them. The manifest is `data/mini-uned` below
`GUIE_REAL`, of which each domain gives `--images`, and as many toy images as `--drawn` says: without the
former, 3,000. A copy of a val or test image becomes a training image of a class of its own: a leak. A copy of
a training image joins that image's class: a near-duplicate.

`curate.py` cleans the manifest with `clean: {leaks: drop_train}`. The script prints which planted pairs are
among its certain findings, and the findings that connect other images. Those within a class may be copies
that the data set has. `--nearest` sets how many pairs an image proposes at most. `--cells` searches in
k-means cells, as cleaning does above three million images. The same seed plants the same pairs.
"""

import io
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, peak_gb, show_frame
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

import curate
import toydomains
from guie.config import real_root
from guie.config.loading import to_yaml
from guie.curation.duplicates import pairs
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


def scaled(image: Image.Image, across: float, down: float) -> Image.Image:
    size = max(round(across * image.width), 1), max(round(down * image.height), 1)
    return image.resize(size, Image.Resampling.BICUBIC)


def cropped(image: Image.Image, share: float) -> Image.Image:
    """Crop that share of the width or height at each side."""
    x, y = round(share * image.width), round(share * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def bordered(image: Image.Image, share: float, colour: str) -> Image.Image:
    return ImageOps.expand(image, round(share * max(image.size)), colour)


def brightness(image: Image.Image, gain: float) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(gain)


def contrast(image: Image.Image, gain: float) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(gain)


def several(image: Image.Image) -> Image.Image:
    return jpeg(scaled(cropped(brightness(image, 1.15), 0.03), 0.6, 0.6), 50)


def lettered(image: Image.Image) -> Image.Image:
    """Write a line of text across the lower edge, as photographers do."""
    image = image.copy()
    height = max(image.height // 10, 8)
    place, font = (image.width * 0.05, image.height - 1.4 * height), ImageFont.load_default(height)
    pen = ImageDraw.Draw(image)
    pen.text(place, "www.example.com", "white", font, stroke_width=1, stroke_fill="black")
    return image


DRAWN = 3000  # toy images, without real ones

# The first eleven are promised to be found.
ALTERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG 80": partial(jpeg, quality=80),
    "JPEG 50": partial(jpeg, quality=50),
    "JPEG 30": partial(jpeg, quality=30),
    "half size": partial(scaled, across=0.5, down=0.5),
    "double size": partial(scaled, across=2, down=2),
    "cropped 2 % a side": partial(cropped, share=0.02),
    "cropped 4 % a side": partial(cropped, share=0.04),
    "brightness × 1.3": partial(brightness, gain=1.3),
    "brightness × 0.7": partial(brightness, gain=0.7),
    "contrast × 1.3": partial(contrast, gain=1.3),
    "contrast × 0.7": partial(contrast, gain=0.7),
    "cropped 8 % a side": partial(cropped, share=0.08),
    "height × 0.8": partial(scaled, across=1, down=0.8),
    "white border": partial(bordered, share=0.1, colour="white"),
    "black border": partial(bordered, share=0.08, colour="black"),
    "several": several,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "line of text": lettered,
    "mirrored": ImageOps.mirror,
}


def plant(table: pd.DataFrame, folder: Path, each: int, seed: int) -> pd.DataFrame:
    """Save copies below `folder`, `each` of every alteration and domain, of which half are leaks.

    Returns rows of a manifest and the columns original, how. No image is altered twice.
    """
    rng = np.random.default_rng(seed)
    (folder / "planted").mkdir()
    chosen = []
    for _, rows in table.groupby("domain"):
        trained = rows["split"] == "train"
        for side, count in ((rows[~trained], each // 2), (rows[trained], each - each // 2)):
            drawn = side.iloc[rng.permutation(len(side))[: count * len(ALTERATIONS)]]
            chosen.append(drawn.assign(how=np.resize([*ALTERATIONS], len(drawn))))
    copies = pd.concat(chosen, ignore_index=True)
    copies["original"] = copies["image_path"]
    copies["image_path"] = [f"planted/{number:05d}.png" for number in copies.index]
    for copy in copies.itertuples():
        ALTERATIONS[copy.how](open_as_seen(folder / copy.original)).save(folder / copy.image_path)
    own_class = copies["domain"] + [f"/planted-{number}" for number in copies.index]
    copies["leak"] = copies["split"] != "train"
    copies["label"] = copies["label"].mask(copies["leak"], own_class)
    return copies.assign(split="train", role="train")


def cleaned(folder: Path) -> pd.DataFrame:
    """Return the certain findings of a mix of the folder's manifest, with the column `ends`."""
    config = {
        "name": "planted",
        "out": f"{folder}/mix.csv",
        "sources": [{"kind": "manifest", "path": f"{folder}/manifest.csv"}],
        # Planted leaks are many more than a real mix has.
        "clean": {"leaks": "drop_train", "share_max": 0.99},
    }
    (folder / "mix.yaml").write_text(to_yaml(config))
    curate.main(["--config", f"{folder}/mix.yaml"])
    found = pd.read_csv(folder / "mix.findings.csv", keep_default_na=False)
    ends = zip(found["image_path"], found["other_path"], strict=True)
    return found.assign(ends=[*map(frozenset, ends)])[found["sure"]]


def show_recall(copies: pd.DataFrame, found: pd.DataFrame) -> None:
    """Print how many planted pairs were found: leaks and near-duplicates, by alteration and by domain."""
    pairs = [frozenset(pair) for pair in zip(copies["image_path"], copies["original"], strict=True)]
    known = {*found["ends"]}
    copies = copies.assign(found=[pair in known for pair in pairs])
    copies["kind"] = np.where(copies["leak"], "leaks", "duplicates")
    for column, title in (("how", "by alteration"), ("domain", "by domain")):
        recall = copies.groupby([column, "kind"])["found"].agg(["size", "mean"]).unstack()
        table = pd.DataFrame(
            {
                f"{kind}: {head}": recall[statistic, kind]
                for kind in ("leaks", "duplicates")
                for head, statistic in (("planted", "size"), ("recall", "mean"))
            }
        )
        show_frame(table.reindex(copies[column].unique()), f"Recall {title}")
    print(f"\nleaks found: {copies.loc[copies['leak'], 'found'].sum()} of {copies['leak'].sum()}")


def show_others(copies: pd.DataFrame, found: pd.DataFrame) -> None:
    """Print the findings that connect other images than a copy and its original, by domain and kind."""
    original = dict(zip(copies["image_path"], copies["original"], strict=True))
    planted = [len({original.get(end, end) for end in ends}) == 1 for ends in found["ends"]]
    others = found[~np.array(planted, bool)]
    counts = others.assign(domain=others["label"].str.split("/").str[0])
    counts = counts.groupby(["domain", "kind"]).size().unstack(fill_value=0)
    show_frame(counts, "Other findings, in images")


def main() -> None:
    defaults = {"images": 400, "drawn": 0, "each": 10, "seed": 0}
    args = arguments(__doc__, **defaults, nearest=pairs.NEAREST, cells=False)
    pairs.NEAREST = args.nearest
    if args.cells:
        pairs.EXACT = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["GUIE_CACHE"] = f"{folder}/cache"
        tables = []
        if real := real_root():
            manifest = load_manifest(real / "data/mini-uned/manifest.csv")
            mixed = manifest.table.groupby("domain").sample(frac=1, random_state=args.seed)
            tables = [mixed[mixed.groupby("domain").cumcount() < args.images].sort_index()]
            tables[0]["image_path"] = "set/" + tables[0]["image_path"]
            (folder / "set").symlink_to(manifest.root.absolute())
        if drawn := args.drawn or (0 if real else DRAWN):
            toys = load_manifest(toydomains.draw(folder / "toys", images=drawn, seed=7)).table
            for column in ("domain", "label"):  # a real domain may have the same name
                toys[column] = "drawn-" + toys[column]
            tables.append(toys.assign(image_path="toys/" + toys["image_path"]))
        table = pd.concat(tables, ignore_index=True)
        copies = plant(table, folder, args.each, args.seed)
        both = pd.concat([table, copies.drop(columns=["original", "how", "leak"])])
        both.to_csv(folder / "manifest.csv", index=False)
        began = time.perf_counter()
        found = cleaned(folder)
        seconds = time.perf_counter() - began
    taken = f"cleaned in {seconds:.0f} s, {peak_gb():.1f} GB"
    print(f"\n{len(table):,} images, {len(copies):,} copies; {taken}")
    show_recall(copies, found)
    show_others(copies, found)


if __name__ == "__main__":
    main()
