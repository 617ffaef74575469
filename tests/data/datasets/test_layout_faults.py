"""Lists, tables and MATLAB files that are not as published: each is named."""

from __future__ import annotations

import csv

import pandas as pd
import pytest
from miniatures.files import cells, struct, touch, write_json
from scipy.io import savemat

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset

INSHOP, GLD = "inshop/Eval/list_eval_partition.txt", "gldv2/metadata/retrieval_solution_v2.1.csv"


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "fault"),
    [
        ("inshop", INSHOP, "query", "probe", "partition.txt:5: evaluation_status 'probe'; allowed"),
        (
            "inshop",
            INSHOP,
            "query",
            "",
            "partition.txt:5: expected 3 columns: path, item, evaluation_status",
        ),
        (
            *("gldv2", GLD, "a000000000000003", "f000000000000003"),
            "query b000000000000001: image f000000000000003 is not in",
        ),
        (
            *("m4d35k", "m4d-35k/m4d-35k_train.csv", "deepfashion/", "food-101/"),
            "m4d-35k_train.csv:4: set 'food-101'; allowed are products-10k",
        ),
        (
            *("inat2018", "inat2018/Inat_dataset_splits/Inaturalist_test_set1.txt", "/", "-"),
            "Inaturalist_test_set1.txt:1: path '.*' is not of the form",
        ),
        (
            *("cub", "CUB_200_2011/image_class_labels.txt", "2 1\n", "2 one\n"),
            "class_labels.txt: class_id: 'one' is not a whole number",
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


def test_uned_faulty_object_is_named(mini, tmp_path):
    mini("uned")
    path = tmp_path / "uned/info_files/cars/val.json"
    write_json(path, [{"path": "cars/val/0_0.jpg", "class_id": 0}, {"path": "cars/val/0_1.jpg"}])
    with pytest.raises(UserError, match=r"cars/val.json: object 2 has no path or no class_id"):
        mini("uned", build=False)
    path.write_text('[{"path": 1},\n  oops]')
    with pytest.raises(UserError, match=r"cars/val.json:2: not valid JSON"):
        mini("uned", build=False)


def test_revisited_pickle_is_not_opened(tmp_path):
    touch(tmp_path / "roxford5k", ["gnd_roxford5k.pkl"])
    with pytest.raises(
        UserError, match="a pickle can run code and is not read; download gnd_roxford5k.mat"
    ):
        read_dataset(DATASETS["roxford5k"], tmp_path / "roxford5k")


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
        ("", "images.txt: empty; download the file again"),
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
        ({"other": [[1]]}, "file_list.mat: has no variable 'file_list'"),
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
