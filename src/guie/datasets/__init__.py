"""Readers of datasets as they lie on disk: a path in, manifest rows and an account out."""

from guie.datasets.aircraft import AIRCRAFT
from guie.datasets.aliproducts import ALIPRODUCTS
from guie.datasets.base import Dataset, Reading
from guie.datasets.cars196 import CARS196
from guie.datasets.cub import CUB
from guie.datasets.deepfashion import DEEPFASHION_C2S, INSHOP
from guie.datasets.dogs import DOGS
from guie.datasets.fashion200k import FASHION200K
from guie.datasets.flowers import FLOWERS
from guie.datasets.folder import read_folder
from guie.datasets.food2k import FOOD2K
from guie.datasets.food101 import FOOD101
from guie.datasets.gldv2 import GLDV2
from guie.datasets.gpr1200 import GPR1200
from guie.datasets.hm import HM
from guie.datasets.imagenet import IMAGENET
from guie.datasets.inat2018 import INAT2018
from guie.datasets.m4d35k import M4D35K
from guie.datasets.met import MET
from guie.datasets.nabirds import NABIRDS
from guie.datasets.products10k import PRODUCTS10K
from guie.datasets.reading import read_dataset
from guie.datasets.revisited import ROXFORD5K, RPARIS6K
from guie.datasets.rp2k import RP2K
from guie.datasets.shopee import SHOPEE
from guie.datasets.sop import SOP
from guie.datasets.storefronts146 import STOREFRONTS146
from guie.datasets.uned import UNED
from guie.datasets.vehicleid import VEHICLEID

READERS = {"folder": read_folder}

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        # retrieval benchmarks
        *(CUB, CARS196, SOP, INSHOP, INAT2018, MET, GLDV2, RP2K, FOOD2K, UNED),
        *(NABIRDS, DOGS, FLOWERS, AIRCRAFT, VEHICLEID, IMAGENET),
        *(GPR1200, ROXFORD5K, RPARIS6K),
        # training sets of the challenge's winners
        *(PRODUCTS10K, DEEPFASHION_C2S, SHOPEE, ALIPRODUCTS, HM, FASHION200K, FOOD101),
        *(STOREFRONTS146, M4D35K),
    )
}

__all__ = ["DATASETS", "READERS", "Dataset", "Reading", "read_dataset", "read_folder"]
