"""The config of a public dataset as a source of a mix: `- {kind: sop}`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from guie.config.base import Config, Domain, PositiveInt

DatasetName = Literal[
    Literal["cub", "cars196", "sop", "inshop", "inat2018", "met", "gldv2"],
    Literal["rp2k", "food2k", "uned"],
    Literal["nabirds", "dogs", "flowers", "aircraft", "vehicleid", "imagenet"],
    Literal["gpr1200", "roxford5k", "rparis6k", "ilias"],
    Literal["products10k", "deepfashion_c2s", "shopee", "aliproducts"],
    Literal["hm", "fashion200k", "food101"],
    Literal["storefronts146", "m4d35k"],
]


class DatasetSource(Config):
    """A dataset as downloaded, read by its adapter in `guie.data.datasets`."""

    kind: DatasetName
    path: str | None = None  # null: looked for in input/, and on Kaggle in /kaggle/input
    domain: Domain | None = None  # null: the dataset's own
    splits: list[Literal["train", "val", "test"]] | None = Field(None, min_length=1)  # null: all
    as_train: bool = False  # every image, of whatever split, trains
    partial: bool = False  # take an incomplete download, with a warning, instead of refusing it
    # Of each test class, at most so many images, chosen by the mix's seed (UnED: 10) ...
    test_max_images: PositiveInt | None = None
    # ... of which no two differ in so few of the 64 bits of their perceptual hash, or fewer.
    test_near_duplicate_bits: Annotated[int, Field(ge=0, le=32)] | None = None
    max_classes: PositiveInt | None = None  # of the train classes, keep so many ...
    choose_classes: Literal["largest", "random"] = "largest"  # ... of them, by the mix's seed
    options: dict[str, str | int | list[str]] = {}  # the dataset's own, see input/README.md
    min_images: PositiveInt | None = None
    max_images: PositiveInt | None = None
