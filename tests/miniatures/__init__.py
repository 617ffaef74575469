"""Every dataset in small: the real folders, header lines and quirks around empty image files."""

from collections.abc import Callable
from pathlib import Path

from miniatures import landmarks, products, several, species, vehicles

MINIATURES: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        *(species.cub, species.dogs, species.flowers, species.inat2018, species.nabirds),
        *(vehicles.aircraft, vehicles.cars196, vehicles.vehicleid),
        *(products.aliproducts, products.products10k, products.rp2k, products.shopee, products.sop),
        *(products.deepfashion_c2s, products.fashion200k, products.hm, products.inshop),
        *(products.storefronts146, landmarks.gldv2, landmarks.met),
        *(landmarks.roxford5k, landmarks.rparis6k, species.food101, species.food2k),
        *(several.gpr1200, several.ilias, several.imagenet, several.m4d35k, several.uned),
    )
}
SMALL_SPLITS = {"food2k": {"test_classes": 2}, "rp2k": {"test_classes": 1}}  # of few classes
