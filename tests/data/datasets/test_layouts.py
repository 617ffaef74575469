"""The layout of each dataset: which image becomes which row of which split."""

from __future__ import annotations

import pytest
from miniatures import MINIATURES
from miniatures.files import touch, write
from readings import rows, splits

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset

# Class numbers, folders and lists as they are; what is not obvious stands beside it.
SPLITS = {
    "cub": {
        "train": ["001.Black_footed_Albatross", "100.Brown_Pelican"],
        "test": ["101.White_Pelican", "200.Yellowthroat"],
    },
    "nabirds": {"train": ["0295", "0817"], "test": ["1010"]},  # as words 1010 would be first
    "dogs": {"train": ["n02085620-Chihuahua"], "test": ["n02116738-African_hunting_dog"]},
    "flowers": {"train": ["001", "005"], "test": ["077"]},
    "sop": {"train": ["1", "2"], "test": ["11319", "11320"]},  # its numbers go on
    "inat2018": {"train": ["Plantae/7477", "Aves/1"], "test": ["Aves/2761"]},
    # the class is the item, and quotes are text
    "fashion200k": {"train": ["51727804", "60000001"], "test": ["70000002"]},
    # a chain with a slash is two folders
    "storefronts146": {"train": ["7-Eleven", "Apple Store/iTunes"]},
    "products10k": {"train": ["0", "1"], "test": ["0", "1"]},
    "aliproducts": {"train": ["05201", "7"], "test": ["05201"]},
}


@pytest.mark.parametrize("name", SPLITS)
def test_classes_of_each_split(name, mini):
    assert splits(mini(name)) == SPLITS[name]


ROWS = {
    "aircraft": [  # the variant starts after the first blank
        ("images/0034309.jpg", "Boeing_707-320", "train", "train"),
        ("images/0034958.jpg", "F/A-18", "test", "both"),
        ("images/0034959.jpg", "F/A-18", "test", "both"),
        ("images/0056978.jpg", "Boeing_707-320", "train", "train"),
    ],
    "inshop": [  # two header lines, an inner folder
        ("Img/img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train", "train"),
        ("Img/img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train", "train"),
        ("Img/img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "test", "query"),
        ("Img/img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "test", "index"),
    ],
    "shopee": [  # an image of several postings is one row
        ("train_images/aa.jpg", "249114794|2937985045", "train", "train"),
        ("train_images/bb.jpg", "2937985045", "train", "train"),
    ],
    "hm": [  # an article without image is passed over; zeros are kept
        ("images/010/0108775015.jpg", "0108775", "train", "train"),
        ("images/010/0108775044.jpg", "0108775", "train", "train"),
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_every_row(name, mini):
    assert rows(mini(name), "image_path", "label", "split", "role") == ROWS[name]


FIRST = {
    "flowers": ("jpg/image_00001.jpg", "077"),
    "sop": ("bicycle_final/111265561750_0.JPG", "1"),
    "inat2018": ("train_val2018/Plantae/7477/a.jpg", "Plantae/7477"),  # any start is cut
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_row(name, mini):
    assert rows(mini(name), "image_path", "label")[0] == FIRST[name]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("products10k", "products-10k/test_kaggletest.csv"),
        ("aliproducts", "AliProducts/val/05201/4.jpg"),
    ],
)
def test_without_its_held_out_part_it_trains(name, file, mini, tmp_path):
    mini(name)
    (tmp_path / file).unlink()
    assert splits(mini(name, build=False)) == {"train": SPLITS[name]["train"]}


def test_sop_partial_download_is_told_with_both_counts(tmp_path):
    """The counts of the papers, with lists as long as theirs and one category not unpacked."""
    folder = tmp_path / "sop"
    header = "image_id class_id super_class_id path"
    train = [f"{n} {n} 1 {'chair' if n % 2 else 'mug'}_final/{n}.JPG" for n in range(1, 59552)]
    test = [f"{n} {n} 1 mug_final/{n}.JPG" for n in range(59552, 59552 + 60502)]
    write(folder / "Ebay_train.txt", header, *train)
    write(folder / "Ebay_test.txt", header, *test)
    touch(folder, ["mug_final/2.JPG", "mug_final/59552.JPG"])
    with pytest.raises(UserError) as caught:
        read_dataset(DATASETS["sop"], folder)
    title = "Stanford Online Products"
    first, second = str(caught.value).splitlines()
    missing = folder / "chair_final/1.JPG"
    assert first == f"{title}: 59,551 train images expected, 1 found; first missing {missing}"
    assert second.startswith(f"{title}: 60,502 test images expected, 1 found; first missing")


@pytest.mark.parametrize(("size", "images", "vehicles"), [(800, 2, 1), (1600, 3, 2), (2400, 4, 2)])
def test_vehicleid_has_three_test_sets(size, images, vehicles, mini):
    test = mini("vehicleid", test_vehicles=size).table.query("split == 'test'")
    assert (len(test), test["label"].nunique()) == (images, vehicles)
    assert test["image_path"].iloc[0] == "image/0000003.jpg"  # `3` where zeros were lost


def test_vehicleid_says_which_images_are_of_its_smaller_test_sets(mini, tmp_path):
    subsets = mini("vehicleid").companions["subsets"]
    sizes = {"small": 2, "medium": 3, "large": 4}
    assert subsets["subset"].value_counts().to_dict() == sizes
    assert subsets["image_path"].tolist()[:2] == ["image/0000003.jpg", "image/0000004.jpg"]
    medium = mini("vehicleid", build=False, test_vehicles=1600).companions["subsets"]
    assert medium["subset"].unique().tolist() == ["small", "medium"]
    write(tmp_path / "VehicleID_V1.0/train_test_split/test_list_800.txt", "3 12", "1 9")
    reading = mini("vehicleid", build=False)
    assert reading.companions["subsets"]["subset"].unique().tolist() == ["medium", "large"]
    assert "1 images of test_list_800.txt are not in the list of 2,400" in reading.warnings[-1]


def test_vehicleid_counts_belong_to_the_test_set(tmp_path):
    MINIATURES["vehicleid"](tmp_path)
    with pytest.raises(UserError, match="VehicleID: 13,377 test images expected, 3 found"):
        read_dataset(DATASETS["vehicleid"], tmp_path / "VehicleID_V1.0", test_vehicles=1600)
    warned = read_dataset(DATASETS["vehicleid"], tmp_path / "VehicleID_V1.0").warnings
    assert "PKU VehicleID: 19,777 to 20,038 test images expected, 4 found (unification" in warned[1]


def test_gpr1200_category_is_the_number_before_the_first_dash(mini):
    assert rows(mini("gpr1200"), "image_path", "label") == [
        ("images/1199_x.jpg", "faces/1199"),
        ("images/1199_y_z.jpg", "faces/1199"),
        ("images/200_p.jpg", "inat/0200"),
        ("images/200_q.jpg", "inat/0200"),
        ("images/0_a.jpg", "landmarks/0000"),
        ("images/0_b.jpg", "landmarks/0000"),
    ]
    assert splits(mini("gpr1200", build=False, blocks=["faces"])) == {"test": ["faces/1199"]}


def test_fashion200k_that_shares_no_class_still_declares_what_it_may(mini):
    reading = mini("fashion200k")
    assert reading.sidecar.domains["clothing"].shared_classes


def test_m4d_domain_is_the_set(mini):
    assert rows(mini("m4d35k"), "domain", "label") == [
        ("products", "0"),
        ("landmarks", "9600"),
        ("clothing", "20000"),
        ("cars", "35000"),
    ]
