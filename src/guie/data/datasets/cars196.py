"""Cars-196 (Stanford Cars): 196 car models; metric learning trains on the first 98.

Three releases exist that name the images differently; never mix the annotations of one with the images
of another:
* original: `cars_annos.mat` and `car_ims/000001.jpg`;
* devkit: `devkit/cars_train_annos.mat`, `cars_test_annos_withlabels.mat` (there or above) and
  `cars_train/00001.jpg`, `cars_test/00001.jpg`;
* kaggle: `anno_train.csv`, `anno_test.csv` without a header (file, x1, y1, x2, y2, class) and
  `names.csv`; images in `car_data/car_data/{train,test}/<name, / replaced by ->/`.
Classes count from 1. Krause et al., 3dRR 2013; releases as read by PUMA, torchvision and
pytorch-metric-learning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import Dataset, Listing, images, listing
from guie.data.datasets.reading import first_present, prefixed, read_lines, read_mat, whole_numbers

TRAIN_CLASSES = 98
MARKERS = {
    "original": "cars_annos.mat",
    "devkit": "devkit/cars_train_annos.mat",
    "kaggle": "anno_train.csv",
}


def read(folder: Path, files: frozenset[str], release: str) -> Listing:
    """Return rows of one release; the class is its number, `001` to `196`, the same in all three."""
    present = [name for name, marker in MARKERS.items() if (folder / marker).is_file()]
    if release == "auto" and len(present) > 1:
        raise UserError(
            f"{folder}: has the releases {' and '.join(present)}; select one: release: {present[0]}"
        )
    chosen = present[0] if release == "auto" and present else release
    if chosen not in present:
        markers = "any of " + ", ".join(MARKERS.values()) if chosen == "auto" else MARKERS[chosen]
        raise UserError(f"{folder}: no {markers}; is this Cars-196?")
    path, class_id = READERS[chosen](folder, files)
    train = (class_id <= TRAIN_CLASSES).map({True: "train", False: "test"})
    return Listing(listing(path, class_id.map("{:03d}".format), train))


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
        rows = _comma_words(annotations)
        class_id = whole_numbers(rows["class_id"], annotations)
        if not class_id.isin(folders).all():
            beyond = class_id[~class_id.isin(folders)].iloc[0]
            raise UserError(f"{annotations}: class {beyond}, but names.csv has {len(names)} lines")
        path = f"{split}/" + class_id.map(folders) + "/" + rows["file"]
        parts.append((prefixed(path, files, ("car_data/car_data/", "car_data/", "")), class_id))
    return tuple(pd.concat(columns, ignore_index=True) for columns in zip(*parts, strict=True))


def _comma_words(path: Path) -> pd.DataFrame:
    lines = pd.Series([line for line in read_lines(path) if line], dtype=str)
    cells = lines.str.split(",", expand=True)
    return pd.DataFrame({"file": cells[0], "class_id": cells[cells.columns[-1]]})


def _columns(path: np.ndarray, class_id: np.ndarray) -> tuple[pd.Series, pd.Series]:
    return pd.Series(path, dtype=str), pd.Series(class_id).astype(int)


READERS: dict[str, Callable[[Path, frozenset[str]], tuple[pd.Series, pd.Series]]] = {
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
    licence="non-commercial research; the original page is gone",
    read=read,
    expected=(images("train", 8054), images("test", 8131)),
    options={"release": "auto"},
    choices={"release": ("auto", *MARKERS)},
)
