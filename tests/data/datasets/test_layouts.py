"""The quirks of each dataset: which image becomes which row of which split."""

from __future__ import annotations

import csv

import miniatures
import pandas as pd
import pytest
from miniatures import cells, struct, touch, write, write_json
from scipy.io import savemat

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset
from guie.data.datasets.revisited import ground_truth
from guie.data.manifest import queries_without_positive


def rows(reading, *columns):
    """Rows without the prefix of the label, as tuples."""
    table = reading.table
    prefix = table["domain"] + "/" + table["dataset"] + "/"
    label = [text.replace(start, "") for text, start in zip(table["label"], prefix, strict=True)]
    return list(table.assign(label=label)[list(columns)].itertuples(index=False, name=None))


def splits(reading):
    """{split: labels in order, each once}."""
    return {
        split: list(
            dict.fromkeys(
                label for label, which in rows(reading, "label", "split") if which == split
            )
        )
        for split in reading.table["split"].unique()
    }


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


INSHOP, GLD = "inshop/Eval/list_eval_partition.txt", "gldv2/metadata/retrieval_solution_v2.1.csv"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "fault"),
    [
        ("inshop", INSHOP, "query", "probe", "partition.txt:5: evaluation_status 'probe'; known"),
        ("inshop", INSHOP, "query", "", "partition.txt:5: expected 3 columns: path, item, status"),
        (
            *("gldv2", GLD, "a000000000000003", "f000000000000003"),
            "query b000000000000001: image f000000000000003 is not in",
        ),
        (
            *("m4d35k", "m4d-35k/m4d-35k_train.csv", "deepfashion/", "food-101/"),
            "m4d-35k_train.csv:4: 'food-101/.* starts with none of",
        ),
        (
            *("cub", "CUB_200_2011/image_class_labels.txt", "2 1\n", "2 one\n"),
            "class_labels.txt: class_id: 'one' is no whole number",
        ),
    ],
)
def test_a_fault_in_a_list_is_named(name, file, old, new, fault, mini, tmp_path):
    mini(name)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(UserError, match=fault):
        mini(name, build=False)


@pytest.mark.parametrize("release", ["original", "devkit", "kaggle"])
def test_cars_of_each_release(release, mini):
    reading = mini("cars196", getattr(miniatures, f"cars_{release}"))
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
    reading = mini("cars196", miniatures.cars_kaggle)
    paths = reading.table.loc[reading.table["label"] == "cars/cars196/098", "image_path"]
    assert paths.str.contains("/Ram C-V Cargo Van Minivan 2012/").all()


def test_cars_releases_in_one_folder_are_told_apart(mini, tmp_path):
    miniatures.cars_original(tmp_path)
    miniatures.cars_kaggle(tmp_path)
    (tmp_path / "cars196").rename(tmp_path / "both")
    for path in (tmp_path / "stanford-cars-dataset").iterdir():
        path.rename(tmp_path / "both" / path.name)
    with pytest.raises(UserError, match="holds the releases original and kaggle; name one"):
        read_dataset(DATASETS["cars196"], tmp_path / "both")
    for release, start in (("original", "car_ims/"), ("kaggle", "car_data/")):
        how = {"release": release, "partial": True}
        table = read_dataset(DATASETS["cars196"], tmp_path / "both", **how).table
        assert table["image_path"].str.startswith(start).all()
    with pytest.raises(UserError, match="no devkit/cars_train_annos.mat; is this Cars-196"):
        read_dataset(DATASETS["cars196"], tmp_path / "both", release="devkit")


def test_cars_annotation_of_one_release_with_images_of_another_is_refused(mini, tmp_path):
    miniatures.cars_original(tmp_path)
    for path in (tmp_path / "cars196/car_ims").iterdir():
        path.rename(path.with_name(path.name[1:]))  # 5 digits, as in the devkit
    with pytest.raises(UserError, match="8 images are listed, 0 found; first missing .*000001.jpg"):
        mini("cars196", build=False)


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


def test_consumer_to_shop_lists_an_image_once_and_parts_roles(mini):
    reading = mini("deepfashion_c2s")
    found = rows(reading, "image_path", "label", "split", "role")
    assert len(found) == 9 and reading.table["image_path"].is_unique
    item = "CLOTHING/Blouse/id_00000003"
    assert [row for row in found if row[2] == "test"] == [
        (f"img/{item}/comsumer_01.jpg", item, "test", "query"),
        (f"img/{item}/comsumer_02.jpg", item, "test", "query"),
        (f"img/{item}/shop_01.jpg", item, "test", "index"),
    ]


def test_met_index_is_train_and_distractors_are_left_out(mini):
    reading = mini("met")
    table = reading.table
    assert not table["image_path"].str.contains("other|noart").any()
    by_part = table.groupby(["split", "role"])["image_path"].agg(list).to_dict()
    catalogue = [f"MET/{n // 2}/{n % 2}.jpg" for n in range(8)]
    assert by_part == {
        ("train", "train"): catalogue,
        ("val", "query"): ["test_met/0.jpg"],
        ("val", "index"): catalogue[:4],
        ("test", "query"): ["test_met/1.jpg", "test_met/2.jpg"],
        ("test", "index"): catalogue,
    }
    assert reading.sidecar.domains["artworks"].index_is_train
    test = table[table["split"] == "test"].reset_index(drop=True)
    assert not queries_without_positive(test).any()


def test_met_without_the_small_list_validates_on_the_whole_catalogue(mini, tmp_path):
    mini("met")
    (tmp_path / "met/ground_truth/mini_MET_database.json").unlink()
    reading = mini("met", build=False)
    assert reading.warnings == (
        "Met: no mini_MET_database.json, so that val has the whole catalogue as its index",
    )
    val_index = reading.table.query("split == 'val' and role == 'index'")
    assert len(val_index) == 8


def test_gldv2_keeps_its_two_id_spaces_apart(mini):
    reading = mini("gldv2")
    labels = dict(rows(reading, "image_path", "label"))
    assert labels["train/0/0/0/0000000000000002.jpg"] == "train-7"
    assert labels["index/a/0/0/a000000000000000.jpg"] == "index-7"
    assert reading.sidecar.domains["landmarks"].shared_classes


def test_gldv2_queries_have_the_landmarks_of_their_index_images(mini):
    reading = mini("gldv2")
    queries = [row[:2] for row in rows(reading, "image_path", "label", "role") if row[2] == "query"]
    assert queries == [
        ("test/b/0/0/b000000000000000.jpg", "index-7|index-8"),
        ("test/b/0/0/b000000000000001.jpg", "index-9"),
    ]
    assert not reading.warnings


def test_gldv2_tells_where_landmarks_say_more_than_the_solution(mini, tmp_path):
    mini("gldv2")
    path = tmp_path / "gldv2/metadata/retrieval_solution_v2.1.csv"
    path.write_text(path.read_text().replace("a000000000000000 ", ""))
    assert mini("gldv2", build=False).warnings == (
        "retrieval_solution_v2.1.csv: 1 queries list fewer images than their landmarks have in the"
        " index",
    )


def test_gldv2_full_train_list(mini, tmp_path):
    mini("gldv2")
    lines = ["0000000000000000,http://a.jpg,1", "0000000000000003,http://b.jpg,7"]
    write(tmp_path / "gldv2/metadata/train.csv", "id,url,landmark_id", *lines)
    train = mini("gldv2", build=False, train_list="full", splits=["train"])
    assert rows(train, "image_path", "label")[1] == ("train/0/0/0/0000000000000003.jpg", "train-7")
    assert len(train.table) == 2


def test_gldv2_without_its_index_trains(mini, tmp_path):
    mini("gldv2")
    (tmp_path / "gldv2/metadata/index_image_to_landmark.csv").unlink()
    reading = mini("gldv2", build=False)
    assert splits(reading) == {"train": ["train-1", "train-7"]}
    assert reading.warnings and not reading.sidecar.domains


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
    with pytest.raises(UserError, match="test_classes 4: only 4 classes are there"):
        mini("food2k", test_classes=4)


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


def test_uned_faulty_object_is_named(mini, tmp_path):
    mini("uned")
    path = tmp_path / "uned/info_files/cars/val.json"
    write_json(path, [{"path": "cars/val/0_0.jpg", "class_id": 0}, {"path": "cars/val/0_1.jpg"}])
    with pytest.raises(UserError, match=r"cars/val.json: object 2 has no path or no class_id"):
        mini("uned", build=False)
    path.write_text('[{"path": 1},\n  oops]')
    with pytest.raises(UserError, match=r"cars/val.json:2: not valid JSON"):
        mini("uned", build=False)


def test_uned_subset_is_counted_alone(tmp_path):
    miniatures.uned(tmp_path)
    with pytest.raises(UserError) as caught:
        read_dataset(DATASETS["uned"], tmp_path / "uned", subsets=["cars"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "UnED: 6,346 cars train images expected, 2 found"
    assert len(lines) == 3


@pytest.mark.parametrize(("size", "images", "vehicles"), [(800, 2, 1), (1600, 3, 2), (2400, 4, 2)])
def test_vehicleid_has_three_test_sets(size, images, vehicles, mini):
    test = mini("vehicleid", test_vehicles=size).table.query("split == 'test'")
    assert (len(test), test["label"].nunique()) == (images, vehicles)
    assert test["image_path"].iloc[0] == "image/0000003.jpg"  # `3` where zeros were lost


def test_vehicleid_counts_belong_to_the_test_set(tmp_path):
    miniatures.vehicleid(tmp_path)
    with pytest.raises(UserError, match="VehicleID: 13,377 test images expected, 3 found"):
        read_dataset(DATASETS["vehicleid"], tmp_path / "VehicleID_V1.0", test_vehicles=1600)
    warned = read_dataset(DATASETS["vehicleid"], tmp_path / "VehicleID_V1.0").warnings
    assert "PKU VehicleID: 19,777 to 20,038 test images expected, 4 found (unification" in warned[1]


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


PROTOCOLS = {
    "medium": ["all_souls_000013", "all_souls_000013|all_souls_000026", "all_souls_000013"],
    "easy": ["all_souls_000013", "no-query", "no-query"],
    "hard": ["no-query", "all_souls_000013|all_souls_000026", "all_souls_000013"],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_revisited_index_images_answer_the_queries_of_a_protocol(protocol, mini):
    reading = mini("roxford5k", protocol=protocol)
    found = rows(reading, "image_path", "label", "role")
    assert found[0] == ("jpg/all_souls_000013.jpg", "all_souls_000013", "query")
    index = [label for _, label, role in found if role == "index"]
    assert index == [*PROTOCOLS[protocol], "no-query"]
    assert "junk counts as wrong" in reading.warnings[0]


def test_revisited_ground_truth_keeps_boxes_and_junk(tmp_path):
    miniatures.roxford5k(tmp_path)
    boxes, grades = ground_truth(tmp_path / "roxford5k", "roxford5k")
    assert boxes.iloc[0].tolist() == ["all_souls_000013", 136.5, 34.1, 648.5, 955.7]
    junk = grades[grades["grade"] == "junk"]
    assert junk[["query", "image"]].to_numpy().tolist() == [
        ["all_souls_000026", "all_souls_000001"],
        ["all_souls_000026", "all_souls_000003"],
    ]
    assert grades["grade"].value_counts().to_dict() == {"hard": 3, "junk": 2, "easy": 1}


def test_revisited_pickle_is_not_opened(tmp_path):
    touch(tmp_path / "roxford5k", ["gnd_roxford5k.pkl"])
    with pytest.raises(
        UserError, match="a pickle can run code and is not read; fetch gnd_roxford5k.mat"
    ):
        read_dataset(DATASETS["roxford5k"], tmp_path / "roxford5k")


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


def test_a_table_without_its_column_says_what_it_has(mini, tmp_path):
    mini("shopee")
    path = tmp_path / "shopee-product-matching/train.csv"
    table = pd.read_csv(path).drop(columns="label_group")
    table.to_csv(path, index=False, quoting=csv.QUOTE_MINIMAL)
    with pytest.raises(
        UserError, match="train.csv: no column label_group; found posting_id, image"
    ):
        mini("shopee", build=False)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1 001.Albatross/a b.jpg", "images.txt: cannot be read as a table: .*loss of data"),
        ("1", "images.txt:1: expected 2 columns: image_id, path"),
        ("", "images.txt: empty; fetch the file again"),
    ],
)
def test_a_line_with_too_many_or_too_few_words_is_not_cut(line, fault, mini, tmp_path):
    mini("cub")
    (tmp_path / "CUB_200_2011/images.txt").write_text(f"{line}\n" if line else "")
    with pytest.raises(UserError, match=fault):
        mini("cub", build=False)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"other": [[1]]}, "file_list.mat: holds no 'file_list'"),
        (b"not a mat file at all, only text" * 20, "file_list.mat: not a readable MATLAB file"),
    ],
)
def test_a_faulty_matlab_file_is_named(content, fault, mini, tmp_path):
    mini("dogs")
    path = tmp_path / "stanford_dogs/file_list.mat"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        savemat(path, content)
    with pytest.raises(UserError, match=fault):
        mini("dogs", build=False)


def test_a_matlab_struct_without_its_field_is_named(mini, tmp_path):
    mini("cars196")
    columns = {"fname": ["1.jpg"], "class": [1]}
    content = {"annotations": struct(columns), "class_names": cells(["AM"])}
    savemat(tmp_path / "cars196/cars_annos.mat", content)
    with pytest.raises(UserError, match="'annotations' has no field relative_im_path"):
        mini("cars196", build=False)
