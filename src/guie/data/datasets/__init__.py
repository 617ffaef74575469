"""Read downloaded data sets: from a folder to manifest rows and a report."""

from guie.data.datasets.aircraft import AIRCRAFT
from guie.data.datasets.aliproducts import ALIPRODUCTS
from guie.data.datasets.base import Dataset, Reading
from guie.data.datasets.cars196 import CARS196
from guie.data.datasets.cub import CUB
from guie.data.datasets.deepfashion import DEEPFASHION_C2S, INSHOP
from guie.data.datasets.dogs import DOGS
from guie.data.datasets.fashion200k import FASHION200K
from guie.data.datasets.flowers import FLOWERS
from guie.data.datasets.folder import read_folder
from guie.data.datasets.food2k import FOOD2K
from guie.data.datasets.food101 import FOOD101
from guie.data.datasets.gldv2 import GLDV2
from guie.data.datasets.gpr1200 import GPR1200
from guie.data.datasets.hm import HM
from guie.data.datasets.ilias import ILIAS
from guie.data.datasets.imagenet import IMAGENET
from guie.data.datasets.inat2018 import INAT2018
from guie.data.datasets.m4d35k import M4D35K
from guie.data.datasets.met import MET
from guie.data.datasets.nabirds import NABIRDS
from guie.data.datasets.products10k import PRODUCTS10K
from guie.data.datasets.reading import read_dataset
from guie.data.datasets.revisited import ROXFORD5K, RPARIS6K
from guie.data.datasets.rp2k import RP2K
from guie.data.datasets.shopee import SHOPEE
from guie.data.datasets.sop import SOP
from guie.data.datasets.storefronts146 import STOREFRONTS146
from guie.data.datasets.uned import UNED
from guie.data.datasets.vehicleid import VEHICLEID

READERS = {"folder": read_folder}

DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        # retrieval benchmarks
        *(CUB, CARS196, SOP, INSHOP, INAT2018, MET, GLDV2, RP2K, FOOD2K, UNED),
        *(NABIRDS, DOGS, FLOWERS, AIRCRAFT, VEHICLEID, IMAGENET),
        *(GPR1200, ROXFORD5K, RPARIS6K, ILIAS),
        # training sets of the challenge's winners
        *(PRODUCTS10K, DEEPFASHION_C2S, SHOPEE, ALIPRODUCTS, HM, FASHION200K, FOOD101),
        *(STOREFRONTS146, M4D35K),
    )
}

__all__ = ["DATASETS", "READERS", "Dataset", "Reading", "read_dataset", "read_folder"]
