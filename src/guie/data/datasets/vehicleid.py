"""PKU VehicleID: vehicles seen by surveillance cameras, with three test sets of different size.

`train_test_split/{train_list,test_list_800,test_list_1600,test_list_2400}.txt`: image number and
vehicle number, both with leading zeros in some copies; images `image/0000001.jpg`. The small test
sets are parts of the large one. Every test image is query and index, as in the unification paper;
re-identification draws one gallery image a vehicle instead. Liu et al., CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.lists import read_words

TEST_VEHICLES = (2400, 1600, 800)
UNIFICATION = "unification paper: 20,038; FastReID's loader: 19,777"


def read(folder: Path, files: frozenset[str], test_vehicles: int) -> Listing:
    """Train and one of the test sets; the class is the vehicle's number."""
    lists = {"train": "train_list.txt", "test": f"test_list_{test_vehicles}.txt"}
    parts = []
    for split, name in lists.items():
        rows = read_words(folder / "train_test_split" / name, ["image", "vehicle"])
        path = "image/" + rows["image"].str.zfill(7) + ".jpg"
        parts.append(listing(path, rows["vehicle"].str.lstrip("0"), split))
    return Listing(pd.concat(parts, ignore_index=True))


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
