"""PKU VehicleID: vehicles seen by surveillance cameras, with three test sets of different size.

`train_test_split/{train_list,test_list_800,test_list_1600,test_list_2400}.txt`: image number and
vehicle number, both with leading zeros in some copies; images `image/0000001.jpg`. The smaller test
sets are parts of the larger ones. The companion `subsets` lists their images, so one manifest serves
all test sets up to its own size. Every test image is query and index, as in the unification paper;
`validate.py --protocol vehicleid` can also draw one gallery image per vehicle.
Liu et al., CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import read_words

TEST_VEHICLES = (2400, 1600, 800)
SUBSETS = {800: "small", 1600: "medium", 2400: "large"}
UNIFICATION = "unification paper: 20,038; FastReID's loader: 19,777"


def read(folder: Path, files: frozenset[str], test_vehicles: int) -> Listing:
    """Return train and one of the test sets; the class is the vehicle's number."""
    lists = folder / "train_test_split"
    train, test = _rows(lists / "train_list.txt", "train"), _rows(_test_list(lists, test_vehicles))
    parts, warnings = [], []
    for vehicles, subset in SUBSETS.items():
        path = _test_list(lists, vehicles)
        if vehicles > test_vehicles or not path.is_file():
            continue
        images = _rows(path)["image_path"]
        beyond = int((~images.isin(test["image_path"])).sum())
        if beyond:
            warnings.append(
                f"VehicleID: {beyond:,} images of {path.name} are not in the list of {test_vehicles:,}"
                f" vehicles, so {subset} is not one of its subsets"
            )
        else:
            parts.append(pd.DataFrame({"subset": subset, "image_path": images}))
    subsets = pd.concat(parts, ignore_index=True)
    rows = pd.concat([train, test], ignore_index=True)
    return Listing(rows, tuple(warnings), {"subsets": subsets})


def _test_list(lists: Path, vehicles: int) -> Path:
    return lists / f"test_list_{vehicles}.txt"


def _rows(path: Path, split: str = "test") -> pd.DataFrame:
    rows = read_words(path, ["image", "vehicle"])
    image = "image/" + rows["image"].str.zfill(7) + ".jpg"
    return listing(image, rows["vehicle"].str.lstrip("0"), split)


VEHICLEID = Dataset(
    name="vehicleid",
    title="PKU VehicleID",
    domain="vehicles",
    folders=("VehicleID_V1.0", "vehicleid", "pku_vehicleid"),
    markers=("train_test_split/train_list.txt",),
    homepage="https://www.pkuml.org/resources/pku-vehicleid.html",
    licence="non-commercial research; agreement with the authors",
    read=read,
    expected=(
        images("train", 110_178, 113_346, source="sources print 110,178 and 113,346"),
        images("test", 6493, where=("test_vehicles", 800)),
        images("test", 13377, where=("test_vehicles", 1600)),
        images("test", 19_777, 20_038, source=UNIFICATION, where=("test_vehicles", 2400)),
    ),
    options={"test_vehicles": TEST_VEHICLES[0]},
    choices={"test_vehicles": TEST_VEHICLES},
)
