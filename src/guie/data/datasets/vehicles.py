"""Readers of data sets of vehicles: Cars-196, PKU VehicleID, FGVC-Aircraft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Listing, by_class, first_half, images, listing
from guie.data.datasets.reading import (
    first_present,
    prefixed,
    read_lines,
    read_mat,
    read_pairs,
    read_words,
    whole_numbers,
)

MARKERS = {
    "original": "cars_annos.mat",
    "devkit": "devkit/cars_train_annos.mat",
    "kaggle": "anno_train.csv",
}


def read_cars196(folder: Path, files: frozenset[str], release: str) -> Listing:
    """Return rows of 196 car models; the class is its number, `001` to `196`, the same in all releases.

    Metric learning trains on the first 98. Three releases exist that name the images differently; never
    mix the annotations of one with the images of another:
    * original: `cars_annos.mat` and `car_ims/000001.jpg`;
    * devkit: `devkit/cars_train_annos.mat`, `cars_test_annos_withlabels.mat` (there or above) and
      `cars_train/00001.jpg`, `cars_test/00001.jpg`;
    * kaggle: `anno_train.csv`, `anno_test.csv` without a header (file, x1, y1, x2, y2, class) and
      `names.csv`; images in `car_data/car_data/{train,test}/<name, / replaced by ->/`.
    Classes count from 1. Krause et al., 3dRR 2013; releases as read by PUMA, torchvision and
    pytorch-metric-learning.
    """
    present = [name for name, marker in MARKERS.items() if (folder / marker).is_file()]
    if release == "auto" and len(present) > 1:
        raise UserError(
            f"{folder}: has the releases {' and '.join(present)}; select one: release: {present[0]}"
        )
    chosen = present[0] if release == "auto" and present else release
    if chosen not in present:
        markers = "any of " + ", ".join(MARKERS.values()) if chosen == "auto" else MARKERS[chosen]
        raise UserError(f"{folder}: no {markers}; is this Cars-196?")
    path, class_id = CARS_RELEASES[chosen](folder, files)
    return Listing(by_class(path, class_id.map("{:03d}".format), class_id <= 98))


def _original(folder: Path, files: frozenset[str]) -> tuple[pd.Series, pd.Series]:
    fields = ("relative_im_path", "class")
    annotations = read_mat(folder / "cars_annos.mat", "annotations", fields)
    return _columns(annotations["relative_im_path"], annotations["class"])


def _devkit(folder: Path, files: frozenset[str]) -> tuple[pd.Series, pd.Series]:
    labelled = "cars_test_annos_withlabels.mat"  # the devkit's own test list has no classes
    lists = {
        "cars_train": folder / "devkit/cars_train_annos.mat",
        "cars_test": first_present(folder, (labelled, f"devkit/{labelled}")),
    }
    parts = []
    for name, path in lists.items():
        annotations = read_mat(path, "annotations", ("fname", "class"))
        file, class_id = _columns(annotations["fname"], annotations["class"])
        # kagglehub's copy has each folder twice: cars_train/cars_train
        parts.append((prefixed(file, files, (f"{name}/", f"{name}/{name}/")), class_id))
    return tuple(pd.concat(columns, ignore_index=True) for columns in zip(*parts, strict=True))


def _kaggle(folder: Path, files: frozenset[str]) -> tuple[pd.Series, pd.Series]:
    names = read_lines(folder / "names.csv")
    folders = dict(enumerate((name.strip('"').replace("/", "-") for name in names), start=1))
    parts = []
    for split in ("train", "test"):
        annotations = folder / f"anno_{split}.csv"
        lines = pd.Series([line for line in read_lines(annotations) if line], dtype=str)
        cells = lines.str.split(",", expand=True)
        class_id = whole_numbers(cells[cells.columns[-1]].rename("class_id"), annotations)
        if not class_id.isin(folders).all():
            beyond = class_id[~class_id.isin(folders)].iloc[0]
            raise UserError(f"{annotations}: class {beyond}, but names.csv has {len(names)} lines")
        path = f"{split}/" + class_id.map(folders) + "/" + cells[0]
        parts.append((prefixed(path, files, ("car_data/car_data/", "car_data/", "")), class_id))
    return tuple(pd.concat(columns, ignore_index=True) for columns in zip(*parts, strict=True))


def _columns(path: np.ndarray, class_id: np.ndarray) -> tuple[pd.Series, pd.Series]:
    return pd.Series(path, dtype=str), pd.Series(class_id).astype(int)


CARS_RELEASES: dict[str, Callable[[Path, frozenset[str]], tuple[pd.Series, pd.Series]]] = {
    "original": _original,
    "devkit": _devkit,
    "kaggle": _kaggle,
}

CARS196 = Dataset(
    name="cars196",
    title="Cars-196",
    domain="cars",
    folders=("cars196", "stanford_cars", "stanford-cars-dataset", "cars"),
    markers=tuple(MARKERS.values()),
    homepage="https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset",
    read=read_cars196,
    expected=(images("train", 8054), images("test", 8131)),
    options={"release": "auto"},
    choices={"release": ("auto", *MARKERS)},
)

SUBSETS = {800: "small", 1600: "medium", 2400: "large"}  # of VehicleID, by their vehicles


def read_vehicleid(folder: Path, files: frozenset[str], test_vehicles: int) -> Listing:
    """Return train and one of three test sets of surveillance cameras; the class is the vehicle's number.

    `train_test_split/{train_list,test_list_800,test_list_1600,test_list_2400}.txt`: image number and
    vehicle number, both with leading zeros in some copies; images `image/0000001.jpg`. The smaller test
    sets are parts of the larger ones. The companion `subsets` lists their images, so one manifest serves
    all test sets up to its own size. Every test image is query and index, as in the unification paper;
    `validate.py --protocol vehicleid` can also draw one gallery image per vehicle.
    Liu et al., CVPR 2016.
    """
    lists = folder / "train_test_split"
    train = _vehicles(lists / "train_list.txt", "train")
    test = _vehicles(lists / f"test_list_{test_vehicles}.txt", "test")
    parts, warnings = [], []
    for vehicles, subset in SUBSETS.items():
        path = lists / f"test_list_{vehicles}.txt"
        if vehicles > test_vehicles or not path.is_file():
            continue
        images = _vehicles(path, "test")["image_path"]
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


def _vehicles(path: Path, split: str) -> pd.DataFrame:
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
    read=read_vehicleid,
    expected=(
        images("train", 110_178, 113_346, source="sources print 110,178 and 113,346"),
        images("test", 6493, where=("test_vehicles", 800)),
        images("test", 13377, where=("test_vehicles", 1600)),
        images(
            "test",
            19_777,
            20_038,
            source="unification paper: 20,038; FastReID's loader: 19,777",
            where=("test_vehicles", 2400),
        ),
    ),
    options={"test_vehicles": 2400},
    choices={"test_vehicles": (2400, 1600, 800)},
)


def read_aircraft(folder: Path, files: frozenset[str]) -> Listing:
    """Return 100 variants of aeroplanes; the class is the variant with `_` for spaces.

    `data/images_variant_{trainval,test}.txt`: image number, one space, the variant, whose name may contain
    more spaces and slashes (`0034309 Boeing 707-320`, `F/A-18`); images `data/images/0034309.jpg`. PUMA
    trains on the first 50 by name. Maji et al., 2013.
    """
    lists = [folder / f"images_variant_{part}.txt" for part in ("trainval", "test")]
    rows = pd.concat([read_pairs(path, ("image", "variant")) for path in lists])
    # With underscores first, the names sort as in PUMA.
    variant = rows["variant"].str.replace(" ", "_", regex=False)
    return Listing(by_class("images/" + rows["image"] + ".jpg", variant, first_half(variant)))


AIRCRAFT = Dataset(
    name="aircraft",
    title="FGVC-Aircraft",
    domain="aircraft",
    folders=("fgvc-aircraft-2013b", "fgvc_aircraft", "aircraft"),
    markers=("images_variant_trainval.txt",),
    homepage="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    read=read_aircraft,
    expected=(images("train", 5000), images("test", 5000)),
)
