"""ImageNet-1k (ILSVRC 2012): 1,281,167 images train, the 50,000 of val test, the same 1,000 classes.

`train/<wnid>/*.JPEG`; val either sorted into class folders too, or flat with the labels of
`LOC_val_solution.csv` (Kaggle) or of the devkit. The devkit numbers the classes in its own order, which
`data/meta.mat` maps to wnids. Russakovsky et al., IJCV 2015; test on val as in the unification paper.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Listing, by_folder, images, listing
from guie.data.datasets.reading import first_present, read_columns, read_mat, read_words

KAGGLE = "Data/CLS-LOC/"
SOLUTIONS = ("LOC_val_solution.csv", "../LOC_val_solution.csv")
DEVKITS = ("", "ILSVRC2012_devkit_t12/", "devkit/", "../ILSVRC2012_devkit_t12/")


def read(folder: Path, files: frozenset[str]) -> Listing:
    """Return images on disk by path; the class is the wnid, `n01440764`."""
    root = KAGGLE if (folder / KAGGLE).is_dir() else ""
    pictures = sorted(file for file in files if file.endswith(".JPEG"))
    train = [file for file in pictures if file.startswith(f"{root}train/")]
    val = [file for file in pictures if file.startswith(f"{root}val/")]
    test = by_folder(val, f"{root}val", "test")
    if test.empty and val:
        path = pd.Series(val, dtype=str)
        number = path.str.rpartition("/")[2].str.removesuffix(".JPEG")
        test = listing(path, number.map(_val_labels(folder)), "test")
        if test["label"].isna().any():
            raise UserError(
                f"{folder / test.loc[test['label'].isna(), 'image_path'].iloc[0]}: no label"
            )
    rows = [by_folder(train, f"{root}train", "train"), test]
    return Listing(pd.concat(rows, ignore_index=True))


def _val_labels(folder: Path) -> pd.Series:
    """Return the wnid by name of a val image, `ILSVRC2012_val_00000001`."""
    solution = first_present(folder, SOLUTIONS)
    if solution.is_file():
        rows = read_columns(solution, ("ImageId", "PredictionString"))
        return rows.set_index("ImageId")["PredictionString"].str.partition(" ")[0]
    names = [f"{devkit}data/ILSVRC2012_validation_ground_truth.txt" for devkit in DEVKITS]
    truth = first_present(folder, names)
    if not truth.is_file():
        raise UserError(
            f"{folder}/val: neither sorted into class folders, nor {SOLUTIONS[0]}, nor the devkit's"
            f" {names[0]}; download one of them"
        )
    synsets = read_mat(truth.parent / "meta.mat", "synsets", ("WNID", "ILSVRC2012_ID"))
    wnid = pd.Series(synsets["WNID"].astype(str), synsets["ILSVRC2012_ID"].astype(int))
    ids = read_words(truth, ["class_id"])["class_id"].astype(int)
    name = pd.Series(ids.index + 1).map("ILSVRC2012_val_{:08d}".format)
    return pd.Series(ids.map(wnid).to_numpy(), index=name)


IMAGENET = Dataset(
    name="imagenet",
    title="ImageNet-1k",
    domain="objects",
    folders=(
        "imagenet",
        "imagenet-1k",
        "ILSVRC2012",
        "ILSVRC",
        "imagenet-object-localization-challenge",
    ),
    markers=("Data/CLS-LOC/train", "train/n01440764"),
    homepage="https://www.image-net.org/download.php",
    licence="non-commercial research and education; terms accepted at download",
    read=read,
    expected=(images("train", 1_281_167), images("test", 50_000)),
    declares={"objects": SHARED_CLASSES},
)
