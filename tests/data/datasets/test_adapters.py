"""What holds for every dataset: legal rows, images that are there, a refusal where one is missing."""

from __future__ import annotations

from typing import get_args

import pytest
from miniatures import MINIATURES, SMALL_SPLITS

from guie.base.errors import UserError
from guie.config.data import DatasetName
from guie.data.datasets import DATASETS, read_dataset
from guie.data.datasets.finding import find
from guie.data.manifest import Sidecar, check, load_manifest, save_manifest

NAMES = sorted(DATASETS)


def folder_of(name, root):
    return {dataset.name: path for dataset, path in find(root)}[name]


def test_registry_config_and_tests_name_the_same_datasets():
    assert set(get_args(DatasetName)) == set(DATASETS) == set(MINIATURES)
    assert len(get_args(DatasetName)) == len(DATASETS)


@pytest.mark.parametrize("name", NAMES)
def test_rows_pass_the_manifest_checks_twice_and_from_a_file(name, mini, tmp_path):
    reading = mini(name)
    table = reading.table
    assert check(table, reading.sidecar) == []
    assert (table["dataset"] == name).all()
    prefix = table["domain"] + f"/{name}/"
    parts = table["label"].str.split("|").explode()
    assert all(part.startswith(prefix[row]) for row, part in parts.items())
    folder = folder_of(name, tmp_path)
    assert all((folder / path).is_file() for path in table["image_path"])
    assert not table["image_path"].str.contains(r"\._").any()
    assert table.equals(mini(name, build=False).table)
    save_manifest(table, tmp_path / "m.csv", reading.sidecar)
    loaded = load_manifest(tmp_path / "m.csv")
    assert loaded.sidecar == reading.sidecar
    assert loaded.table.sort_index(axis=1).equals(table.sort_index(axis=1))


@pytest.mark.parametrize(
    "name", sorted({"met", "gldv2", "uned", "imagenet", "food101", "products10k"})
)
def test_declared_overlaps_are_needed(name, mini):
    reading = mini(name)
    assert reading.sidecar.domains
    if name != "gldv2":  # its id spaces are apart: it declares what no check can see
        assert check(reading.table, Sidecar()) != []


@pytest.mark.parametrize("name", [name for name in NAMES if DATASETS[name].expected])
def test_a_small_copy_is_refused_by_its_counts(name, tmp_path):
    dataset = DATASETS[name]
    how = {**dataset.options, **SMALL_SPLITS.get(name, {})}
    certain = [count for count in dataset.expected if count.certain and count.applies(None, how)]
    if not certain:
        pytest.skip("sources of its counts disagree: a warning")
    MINIATURES[name](tmp_path)
    with pytest.raises(UserError) as caught:
        read_dataset(dataset, folder_of(name, tmp_path), **SMALL_SPLITS.get(name, {}))
    assert f"{dataset.title}: {certain[0]} expected, " in str(caught.value)
    assert "partial: true" in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_partial_copy_is_read_when_asked_with_its_counts_as_warnings(name, tmp_path):
    dataset = DATASETS[name]
    MINIATURES[name](tmp_path)
    how = SMALL_SPLITS.get(name, {})
    reading = read_dataset(dataset, folder_of(name, tmp_path), partial=True, **how)
    assert len(reading.table)
    message = [
        count for count in dataset.expected if count.applies(None, {**dataset.options, **how})
    ]
    assert sum(" expected, " in warning for warning in reading.warnings) == len(message)


LISTED = sorted(
    set(NAMES) - {"rp2k", "food2k", "imagenet", "gpr1200", "aliproducts", "storefronts146", "hm"}
)


@pytest.mark.parametrize("name", LISTED)
def test_the_first_missing_image_is_named(name, mini, tmp_path):
    table = mini(name).table
    folder = folder_of(name, tmp_path)
    gone = table["image_path"].iloc[-1]
    (folder / gone).unlink()
    with pytest.raises(UserError) as caught:
        mini(name, build=False)
    first, *more = str(caught.value).splitlines()
    assert not more
    assert f"first missing {folder / gone}" in first
    assert "partial: true" in first
    partial = mini(name, build=False, partial=True).table
    assert len(partial) == (table["image_path"] != gone).sum()
    assert gone not in set(partial["image_path"])


@pytest.mark.parametrize("name", sorted(set(LISTED) - {"dogs", "flowers", "roxford5k", "rparis6k"}))
def test_a_list_that_is_missing_or_not_text_is_named(name, mini, tmp_path):
    """The first four lists, each on its own."""
    mini(name)
    folder = folder_of(name, tmp_path)
    texts = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".csv", ".json"))
    lists = [path for path in texts if path.stat().st_size][:4]
    seen = 0
    for path in lists:
        content = path.read_bytes()
        path.write_bytes(b"\xff\xfe\x00 not text \x80\n")
        try:
            mini(name, build=False)
        except UserError as error:
            seen += 1
            assert str(path) in str(error) or str(folder) in str(error)
        path.write_bytes(content)
    assert seen or name == "cars196"  # the miniature of its default release has no text


@pytest.mark.parametrize("name", NAMES)
def test_splits_can_be_chosen_and_everything_can_train(name, mini):
    whole = mini(name).table
    for split in whole["split"].unique():
        some = mini(name, build=False, splits=[split]).table
        assert some["split"].unique().tolist() == [split]
        assert len(some) == (whole["split"] == split).sum()
    trained = mini(name, build=False, as_train=True)
    assert set(trained.table["split"]) == set(trained.table["role"]) == {"train"}
    assert set(trained.table["image_path"]) == set(whole["image_path"])
    assert trained.table["image_path"].is_unique
    assert not trained.sidecar.domains


def test_domain_can_be_named_and_takes_its_declaration_along(mini):
    reading = mini("met", domain="paintings")
    assert reading.table["domain"].unique().tolist() == ["paintings"]
    assert reading.table["label"].str.startswith("paintings/met/").all()
    assert reading.sidecar.domains["paintings"].index_is_train
    assert check(reading.table, reading.sidecar) == []


def test_a_dataset_of_several_domains_keeps_its_own(mini):
    with pytest.raises(UserError, match="UnED has several domains; drop domain: all"):
        mini("uned", domain="all")


@pytest.mark.parametrize(
    ("name", "option", "fault"),
    [
        ("sop", {"size": 1}, "sop: unknown option 'size'; it has: none"),
        (
            "vehicleid",
            {"test_vehicle": 800},
            "unknown option 'test_vehicle'; it has: test_vehicles",
        ),
        ("vehicleid", {"test_vehicles": 900}, "900: allowed are 2400, 1600, 800"),
        ("food2k", {"seed": "0"}, "food2k: seed: '0' is no int; the default is 0"),
        ("cars196", {"release": "new"}, "'new': allowed are auto, original, devkit, kaggle"),
        ("uned", {"subsets": ["birds"]}, "uned: no subset birds; it has: food2k, cars"),
    ],
)
def test_options_are_checked(name, option, fault, mini):
    with pytest.raises(UserError, match=fault):
        mini(name, **option)
