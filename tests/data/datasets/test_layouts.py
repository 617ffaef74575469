"""The layout of each dataset: which image becomes which row of which split."""

from __future__ import annotations

import pytest
from miniatures import MINIATURES, vehicles
from miniatures.files import struct, touch, write
from readings import rows, splits
from scipy.io import savemat

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


def test_rp2k_class_is_the_same_however_it_was_unzipped(mini):
    reading = mini("rp2k")
    assert set(reading.table["label"]) == {
        f"retail/rp2k/{name}" for name in ("可口可乐", "可口", "百事", "others")
    }
    assert reading.table["label"].value_counts().tolist() == [4] * 4  # train and test pooled
    assert reading.table["image_path"].str.contains("#U53ef#U53e3").sum() == 4


@pytest.mark.parametrize(("name", "option"), [("rp2k", 3), ("food2k", 1), ("food2k", 3)])
def test_own_splits_hold_out_whole_classes(name, option, mini):
    table = mini(name, test_classes=option).table
    held = set(table.loc[table["split"] == "test", "label"])
    assert len(held) == option
    assert not held & set(table.loc[table["split"] == "train", "label"])
    assert set(table.loc[table["split"] == "test", "role"]) == {"both"}


def test_own_splits_depend_on_the_seed_and_on_no_other_class(mini, tmp_path):
    choices = {
        seed: frozenset(mini("food2k", seed=seed).table.query("split == 'test'")["label"])
        for seed in range(8)
    }
    assert len(set(choices.values())) > 1
    touch(tmp_path / "Food2k_complete", ["77/0.jpg"])
    for seed, before in choices.items():
        after = mini("food2k", build=False, seed=seed, test_classes=3).table
        assert before - {"food/food2k/77"} <= set(after.query("split == 'test'")["label"])


def test_own_split_leaves_something_to_train(mini):
    with pytest.raises(UserError, match="test_classes 4: there are only 4 classes"):
        mini("food2k", test_classes=4)


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


def test_uned_is_eight_domains_with_its_indexes(mini):
    table = mini("uned").table
    roles = table.groupby(["domain", "split"])["role"].agg(lambda role: "/".join(sorted(set(role))))
    assert roles["inshop"].to_dict() == {"train": "train", "val": "both", "test": "index/query"}
    assert roles["met"].to_dict() == {"train": "train", "val": "index/query", "test": "index/query"}
    assert roles["cars"].to_dict() == {"train": "train", "val": "both", "test": "both"}
    assert len(roles.unstack()) == 8


def test_uned_numbers_that_start_again_are_not_the_same_class(mini):
    labels = mini("uned", subsets=["sop"]).table["label"].unique().tolist()
    assert labels == ["sop/uned/train-0", "sop/uned/val-0", "sop/uned/test-0"]


def test_uned_query_of_several_landmarks(mini):
    reading = mini("uned", subsets=["gldv2"])
    query = reading.table[reading.table["role"] == "query"]
    assert query["label"].tolist() == ["gldv2/uned/test-0|gldv2/uned/test-3"]
    assert reading.sidecar.domains["gldv2"].shared_classes


def test_uned_escaped_names_find_the_real_ones(mini):
    paths = mini("uned", subsets=["rp2k"]).table["image_path"]
    assert "images/rp2k/all/train/百事/1.jpg" in set(paths)


def test_uned_subset_is_counted_alone(tmp_path):
    MINIATURES["uned"](tmp_path)
    with pytest.raises(UserError) as caught:
        read_dataset(DATASETS["uned"], tmp_path / "uned", subsets=["cars"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "UnED: 6,346 cars train images expected, 2 found"
    assert len(lines) == 3


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
