"""Read downloaded data sets: from a folder to manifest rows and a report."""

from guie.data.datasets.base import Dataset, Reading
from guie.data.datasets.clothing import DEEPFASHION_C2S, FASHION200K, HM, INSHOP
from guie.data.datasets.folder import read_folder
from guie.data.datasets.general import GPR1200, ILIAS, IMAGENET, M4D35K, UNED
from guie.data.datasets.landmarks import GLDV2, MET, ROXFORD5K, RPARIS6K
from guie.data.datasets.products import (
    ALIPRODUCTS,
    FOOD2K,
    FOOD101,
    PRODUCTS10K,
    RP2K,
    SHOPEE,
    SOP,
    STOREFRONTS146,
)
from guie.data.datasets.reading import read_dataset
from guie.data.datasets.species import CUB, DOGS, FLOWERS, INAT2018, NABIRDS
from guie.data.datasets.vehicles import AIRCRAFT, CARS196, VEHICLEID

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

__all__ = ["DATASETS", "Dataset", "Reading", "read_dataset", "read_folder"]
