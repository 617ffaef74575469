"""Cars-196: three releases with lists of their own, told apart."""

from __future__ import annotations

import pytest
from miniatures import vehicles
from readings import splits

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset


@pytest.mark.parametrize("release", ["original", "devkit", "kaggle"])
def test_cars_of_each_release(release, mini):
    reading = mini("cars196", getattr(vehicles, f"cars_{release}"))
    assert {split: set(labels) for split, labels in splits(reading).items()} == {
        "train": {"001", "098"},
        "test": {"099", "196"},
    }
    assert reading.table["label"].value_counts().tolist() == [2, 2, 2, 2]
    first = {
        "original": "car_ims/000001.jpg",
        "devkit": "cars_train/00001.jpg",
        "kaggle": "car_data/car_data/train/Model 1 2012/00001.jpg",
    }
    assert reading.table["image_path"][0] == first[release]


def test_cars_slash_in_a_model_is_a_dash_in_its_folder(mini):
    reading = mini("cars196", vehicles.cars_kaggle)
    paths = reading.table.loc[reading.table["label"] == "cars/cars196/098", "image_path"]
    assert paths.str.contains("/Ram C-V Cargo Van Minivan 2012/").all()


def test_cars_releases_in_one_folder_are_told_apart(mini, tmp_path):
    vehicles.cars_original(tmp_path)
    vehicles.cars_kaggle(tmp_path)
    (tmp_path / "cars196").rename(tmp_path / "both")
    for path in (tmp_path / "stanford-cars-dataset").iterdir():
        path.rename(tmp_path / "both" / path.name)
    with pytest.raises(UserError, match="has the releases original and kaggle; select one"):
        read_dataset(DATASETS["cars196"], tmp_path / "both")
    for release, start in (("original", "car_ims/"), ("kaggle", "car_data/")):
        how = {"release": release, "partial": True}
        table = read_dataset(DATASETS["cars196"], tmp_path / "both", **how).table
        assert table["image_path"].str.startswith(start).all()
    with pytest.raises(UserError, match="no devkit/cars_train_annos.mat; is this Cars-196"):
        read_dataset(DATASETS["cars196"], tmp_path / "both", release="devkit")


def test_cars_annotation_of_one_release_with_images_of_another_is_refused(mini, tmp_path):
    vehicles.cars_original(tmp_path)
    for path in (tmp_path / "cars196/car_ims").iterdir():
        path.rename(path.with_name(path.name[1:]))  # 5 digits, as in the devkit
    with pytest.raises(UserError, match="8 images are listed, 0 found; first missing .*000001.jpg"):
        mini("cars196", build=False)
