"""ImageNet: where the labels of its val images stand."""

from __future__ import annotations

import pytest
from miniatures.files import struct, touch, write
from readings import rows, splits
from scipy.io import savemat

from guie.base.errors import UserError


def test_imagenet_flat_val_is_labelled_by_kaggles_table(mini):
    found = rows(mini("imagenet"), "image_path", "label", "split")
    val = "Data/CLS-LOC/val/ILSVRC2012_val_0000000{}.JPEG"
    assert found[-2:] == [
        (val.format(1), "n01751748", "test"),
        (val.format(2), "n01440764", "test"),
    ]
    assert found[0] == ("Data/CLS-LOC/train/n01440764/n01440764_1.JPEG", "n01440764", "train")


def imagenet_flat(root):
    names = [f"val/ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2, 3)]
    touch(root / "imagenet", ["train/n01440764/n01440764_1.JPEG", *names])


def test_imagenet_devkit_numbers_classes_in_an_order_of_its_own(mini, tmp_path):
    """Class 1 of the devkit is not the first wnid: a reader that sorts them labels val wrongly."""
    imagenet_flat(tmp_path)
    data = tmp_path / "imagenet/ILSVRC2012_devkit_t12/data"
    write(data / "ILSVRC2012_validation_ground_truth.txt", "3", "1", "2")
    synsets = {"ILSVRC2012_ID": [1, 2, 3], "WNID": ["n02119789", "n01440764", "n01751748"]}
    savemat(data / "meta.mat", {"synsets": struct(synsets).T})
    test = [
        row[0] for row in rows(mini("imagenet", build=False), "label", "split") if row[1] == "test"
    ]
    assert test == ["n01751748", "n02119789", "n01440764"]


def test_imagenet_val_in_class_folders(mini, tmp_path):
    touch(tmp_path / "imagenet", ["train/n01440764/1.JPEG", "val/n01440764/2.JPEG"])
    assert splits(mini("imagenet", build=False)) == {"train": ["n01440764"], "test": ["n01440764"]}


def test_imagenet_flat_val_without_labels_is_refused(mini, tmp_path):
    imagenet_flat(tmp_path)
    with pytest.raises(UserError, match="neither sorted into class folders, nor LOC_val_solution"):
        mini("imagenet", build=False)
