"""What `copies.py` plants, and what it need not: altered copies, and mini-uned's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from PIL import Image, ImageDraw, ImageFont, ImageOps

from guie.curation.duplicates.evidence import brighter, compressed, contrasted, cut, resized


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
