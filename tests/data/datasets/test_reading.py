"""What is refused of a data set: counts, missing images, lists that are not as published, options."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from scipy.io import savemat

from guie.base.errors import UserError
from guie.config.data import DatasetName
from guie.data.datasets import DATASETS, read_dataset
from guie.data.datasets.finding import find
from guie.data.manifest import Sidecar, check
from miniatures import MINIATURES, SMALL_SPLITS, several, vehicles
from miniatures.files import cells, replaced, struct
from miniatures.reading import read_small

# Sets without a list: what is not on disk is not known to be missing
UNLISTED = {"rp2k", "food2k", "imagenet", "gpr1200", "aliproducts", "storefronts146", "hm"}
OVERLAPPING = {"met", "uned", "imagenet", "food101", "products10k"}
MATLAB = {"cars196", "dogs", "flowers", "roxford5k", "rparis6k"}


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_small_copy_is_refused_by_its_counts_and_by_what_is_missing(name, tmp_path):
    MINIATURES[name](tmp_path)
    dataset, small = DATASETS[name], SMALL_SPLITS.get(name, {})
    folder, how = find(dataset, [tmp_path]), {**dataset.options, **small}
    certain = [count for count in dataset.expected if count.applies(None, how) and count.certain]
    whole = read_dataset(dataset, folder, partial=True, **small)
    if name in OVERLAPPING:
        assert check(whole.table, Sidecar()) != [], "declared overlaps are needed"
    if certain:  # else sources of its counts disagree: a warning
        with pytest.raises(UserError) as caught:
            read_dataset(dataset, folder, **small)
        assert f"{dataset.title}: {certain[0]} expected, " in str(caught.value)
        assert "partial: true" in str(caught.value)
    if name in UNLISTED:
        return
    gone = whole.table["image_path"].iloc[-1]
    (folder / gone).unlink()
    with pytest.raises(UserError) as caught:
        read_small(tmp_path, name)
    assert f"first missing {folder / gone}" in str(caught.value)
    assert "\n" not in str(caught.value) and "partial: true" in str(caught.value)
    partial = read_small(tmp_path, name, partial=True).table["image_path"]
    assert gone not in set(partial) and len(partial) == (whole.table["image_path"] != gone).sum()
    lists = (path for path in folder.rglob("*") if path.suffix in (".txt", ".csv", ".json"))
    refused = []
    for path in sorted(path for path in lists if path.stat().st_size)[:4]:
        content = path.read_bytes()
        path.write_bytes(b"\xff\xfe\x00 not text \x80\n")
        try:
            read_small(tmp_path, name, partial=True)
        except UserError as error:
            refused.append(str(folder) in str(error))
        path.write_bytes(content)
    assert all(refused) and (refused or name in MATLAB)


def test_registry_config_and_tests_name_the_same_datasets():
    assert set(get_args(DatasetName)) == set(DATASETS) == set(MINIATURES)


COUNTED = [
    ("vehicleid", {"test_vehicles": 1600}, "PKU VehicleID: 13,377 test images expected, 3 found"),
    ("uned", {"subsets": ["cars"]}, "UnED: 6,346 cars train images expected, 2 found"),
    ("met", {"distractors": "keep", "splits": ["val"]}, "Met: 2,165 val query images expected, 3"),
]


@pytest.mark.parametrize(("name", "how", "says"), COUNTED)
def test_counts_belong_to_what_is_read(name, how, says, tmp_path):
    MINIATURES[name](tmp_path)
    with pytest.raises(UserError) as caught:
        read_dataset(DATASETS[name], find(DATASETS[name], [tmp_path]), **how)
    assert str(caught.value).startswith(says)


def saved(name: str, content: dict) -> Callable[[Path], None]:
    return lambda root: savemat(root / name, content)


def content(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(data)


def short_names(root: Path) -> None:
    """Images of one release of Cars-196, with the annotations of another."""
    for path in (root / "cars196/car_ims").iterdir():
        path.rename(path.with_name(path.name[1:]))  # 5 digits, as in the devkit


def pickled(root: Path) -> None:
    (root / "roxford5k/gnd_roxford5k.mat").rename(root / "roxford5k/gnd_roxford5k.pkl")


INSHOP, GLD = "inshop/Eval/list_eval_partition.txt", "gldv2/metadata/retrieval_solution_v2.1.csv"
INAT = "inat2018/Inat_dataset_splits/Inaturalist_test_set1.txt"
CUB, DOGS = "CUB_200_2011/image_class_labels.txt", "stanford_dogs/file_list.mat"
CARS, SHOPEE = "cars196/cars_annos.mat", "shopee-product-matching/train.csv"
IMAGES, M4D = "CUB_200_2011/images.txt", "m4d-35k/m4d-35k_train.csv"
VAL = "uned/info_files/cars/val.json"
ANNOTATIONS = {"annotations": struct({"fname": ["1.jpg"], "class": [1]})}
ANNOTATIONS |= {"class_names": cells(["AM"])}
WITHOUT_CLASS = b'[{"path": "cars/val/0_0.jpg", "class_id": 0}, {"path": "1.jpg"}]'
ALBATROSS = b"1 001.Albatross/a b.jpg\n"
FAULTS = [
    ("inshop", replaced(INSHOP, "query", "probe"), "on.txt:5: evaluation_status 'probe'; a"),
    ("inshop", replaced(INSHOP, "query", ""), ".txt:5: expected 3 columns: path, item, ev"),
    ("gldv2", replaced(GLD, "a000000000000003", "f003"), "query b0.*1: image f003 is not in"),
    ("m4d35k", replaced(M4D, "deepfashion/", "x/"), "train.csv:4: set 'x'; allowed are prod"),
    ("inat2018", replaced(INAT, "/", "-"), "Inaturalist_test_set1.txt:1: path '.*' is not of the"),
    ("cub", replaced(CUB, "2 1\n", "2 one\n"), "labels.txt: class_id: 'one' is not a whole number"),
    ("cub", content(IMAGES, ALBATROSS), "images.txt: cannot be read as a table: .*loss of data"),
    ("cub", content(IMAGES, b"1\n"), "images.txt:1: expected 2 columns: image_id, path"),
    ("cub", content(IMAGES, b""), "images.txt: empty; download the file again"),
    ("shopee", replaced(SHOPEE, "label_group", "x"), "no column label_group; found posting_id"),
    ("uned", content(VAL, WITHOUT_CLASS), "cars/val.json: object 2 has no path or no class_id"),
    ("uned", content(VAL, b'[{"path": 1},\n  oops]'), "cars/val.json:2: not valid JSON"),
    ("dogs", saved(DOGS, {"other": [[1]]}), "file_list.mat: has no variable 'file_list'"),
    ("dogs", content(DOGS, b"only text" * 40), "file_list.mat: not a readable MATLAB file"),
    ("cars196", saved(CARS, ANNOTATIONS), "'annotations' has no field relative_im_path"),
    ("cars196", short_names, "8 images are listed, 0 found; first missing .*000001.jpg"),
    ("roxford5k", pickled, "a pickle can run code and is not read; download gnd_roxford5k.mat"),
]


@pytest.mark.parametrize(("name", "change", "fault"), FAULTS)
def test_a_fault_in_a_list_is_named(name, change, fault, tmp_path):
    MINIATURES[name](tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=fault):
        read_small(tmp_path, name)


def test_the_release_in_the_options_is_read(tmp_path):
    vehicles.cars_original(tmp_path)
    vehicles.cars_kaggle(tmp_path)
    for path in (tmp_path / "stanford-cars-dataset").iterdir():
        path.rename(tmp_path / "cars196" / path.name)
    with pytest.raises(UserError, match="has the releases original and kaggle; select one"):
        read_small(tmp_path, "cars196")
    for release, start in (("original", "car_ims/"), ("kaggle", "car_data/")):
        table = read_small(tmp_path, "cars196", release=release).table
        assert table["image_path"].str.startswith(start).all()
    with pytest.raises(UserError, match="no devkit/cars_train_annos.mat; is this Cars-196"):
        read_small(tmp_path, "cars196", release="devkit")


def test_imagenet_val_without_labels_is_refused(tmp_path):
    several.imagenet_flat(tmp_path)
    with pytest.raises(UserError, match="neither sorted into class folders, nor LOC_val_solution"):
        read_small(tmp_path, "imagenet")


@pytest.mark.parametrize(
    ("name", "option", "fault"),
    [
        ("sop", {"size": 1}, "sop: unknown option 'size'; it has: none"),
        ("vehicleid", {"test_vehicle": 8}, "option 'test_vehicle'; it has: test_vehicles"),
        ("vehicleid", {"test_vehicles": 900}, "900: allowed are 2400, 1600, 800"),
        ("food2k", {"seed": "0"}, "food2k: seed: '0': must be int; the default is 0"),
        ("food2k", {"test_classes": 4}, "test_classes 4: there are only 4 classes"),
        ("uned", {"subsets": ["birds"]}, "uned: no subset birds; it has: food2k, cars"),
        ("uned", {"domain": "all"}, "UnED has several domains; drop domain: all"),
    ],
)
def test_options_are_checked(name, option, fault, tmp_path):
    MINIATURES[name](tmp_path)
    with pytest.raises(UserError, match=fault):
        read_small(tmp_path, name, **option)
