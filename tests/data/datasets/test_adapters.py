"""What holds for every dataset: legal rows, images that are there, a refusal where one is missing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from miniatures import MINIATURES, SMALL_SPLITS

from guie.base.errors import UserError
from guie.config.data import DatasetName
from guie.data.datasets import DATASETS, Reading, read_dataset
from guie.data.datasets.finding import find
from guie.data.manifest import Sidecar, check, load_manifest, save_manifest

NAMES = sorted(DATASETS)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a dataset in small, made once: what a test changes there it changes back."""

    @cache
    def of(name: str) -> Path:
        root = tmp_path_factory.mktemp(name)
        MINIATURES[name](root)
        return find(DATASETS[name], [root])

    return of


def read(name: str, folder: Path, **how) -> Reading:
    """Without its real counts."""
    how = {**SMALL_SPLITS.get(name, {}), **how}
    return read_dataset(replace(DATASETS[name], expected=()), folder, **how)


def test_registry_config_and_tests_name_the_same_datasets():
    assert set(get_args(DatasetName)) == set(DATASETS) == set(MINIATURES)
    assert len(get_args(DatasetName)) == len(DATASETS)


@pytest.mark.parametrize("name", NAMES)
def test_rows_pass_the_manifest_checks_twice_and_from_a_file(name, built, tmp_path):
    folder = built(name)
    reading = read(name, folder)
    table = reading.table
    assert check(table, reading.sidecar) == []
    assert (table["dataset"] == name).all()
    prefix = table["domain"] + f"/{name}/"
    parts = table["label"].str.split("|").explode()
    assert all(part.startswith(prefix[row]) for row, part in parts.items())
    assert all((folder / path).is_file() for path in table["image_path"])
    assert not table["image_path"].str.contains(r"\._").any()
    assert table.equals(read(name, folder).table)
    save_manifest(table, tmp_path / "m.csv", reading.sidecar)
    loaded = load_manifest(tmp_path / "m.csv")
    assert loaded.sidecar == reading.sidecar
    assert loaded.table.sort_index(axis=1).equals(table.sort_index(axis=1))


@pytest.mark.parametrize(
    "name", sorted({"met", "gldv2", "uned", "imagenet", "food101", "products10k"})
)
def test_declared_overlaps_are_needed(name, built):
    reading = read(name, built(name))
    assert reading.sidecar.domains
    if name != "gldv2":  # its id spaces are apart: it declares what no check can see
        assert check(reading.table, Sidecar()) != []


@pytest.mark.parametrize("name", NAMES)
def test_a_small_copy_is_refused_by_its_counts_or_read_with_them_as_warnings(name, built):
    dataset, folder = DATASETS[name], built(name)
    small = SMALL_SPLITS.get(name, {})
    how = {**dataset.options, **small}
    counts = [count for count in dataset.expected if count.applies(None, how)]
    reading = read_dataset(dataset, folder, partial=True, **small)
    assert len(reading.table)
    assert sum(" expected, " in warning for warning in reading.warnings) == len(counts)
    certain = [count for count in counts if count.certain]
    if certain:  # else sources of its counts disagree: a warning
        with pytest.raises(UserError) as caught:
            read_dataset(dataset, folder, **small)
        assert f"{dataset.title}: {certain[0]} expected, " in str(caught.value)
        assert "partial: true" in str(caught.value)


LISTED = sorted(
    set(NAMES) - {"rp2k", "food2k", "imagenet", "gpr1200", "aliproducts", "storefronts146", "hm"}
)


@pytest.mark.parametrize("name", LISTED)
def test_the_first_missing_image_is_named(name, built):
    folder = built(name)
    table = read(name, folder).table
    gone = table["image_path"].iloc[-1]
    (folder / gone).rename(folder / "kept.away")
    try:
        with pytest.raises(UserError) as caught:
            read(name, folder)
        partial = read(name, folder, partial=True).table
    finally:
        (folder / "kept.away").rename(folder / gone)
    first, *more = str(caught.value).splitlines()
    assert not more
    assert f"first missing {folder / gone}" in first
    assert "partial: true" in first
    assert len(partial) == (table["image_path"] != gone).sum()
    assert gone not in set(partial["image_path"])


@pytest.mark.parametrize("name", sorted(set(LISTED) - {"dogs", "flowers", "roxford5k", "rparis6k"}))
def test_a_list_that_is_not_text_is_named(name, built):
    """The first four lists, each on its own."""
    folder = built(name)
    texts = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".csv", ".json"))
    lists = [path for path in texts if path.stat().st_size][:4]
    seen = 0
    for path in lists:
        content = path.read_bytes()
        path.write_bytes(b"\xff\xfe\x00 not text \x80\n")
        try:
            read(name, folder)
        except UserError as error:
            seen += 1
            assert str(path) in str(error) or str(folder) in str(error)
        finally:
            path.write_bytes(content)
    assert seen or name == "cars196"  # the miniature of its default release has no text


@pytest.mark.parametrize("name", ["met", "gldv2", "inshop"])
def test_splits_can_be_chosen_and_everything_can_train(name, built):
    """One code for all: images of two splits, with and without domains declared."""
    folder = built(name)
    whole = read(name, folder).table
    for split in whole["split"].unique():
        some = read(name, folder, splits=[split]).table
        assert some["split"].unique().tolist() == [split]
        assert len(some) == (whole["split"] == split).sum()
    trained = read(name, folder, as_train=True)
    assert set(trained.table["split"]) == set(trained.table["role"]) == {"train"}
    assert set(trained.table["image_path"]) == set(whole["image_path"])
    assert trained.table["image_path"].is_unique
    assert not trained.sidecar.domains


def test_domain_can_be_named_and_takes_its_declaration_along(built):
    reading = read("met", built("met"), domain="paintings")
    assert reading.table["domain"].unique().tolist() == ["paintings"]
    assert reading.table["label"].str.startswith("paintings/met/").all()
    assert reading.sidecar.domains["paintings"].index_is_train
    assert check(reading.table, reading.sidecar) == []


def test_a_dataset_of_several_domains_keeps_its_own(built):
    with pytest.raises(UserError, match="UnED has several domains; drop domain: all"):
        read("uned", built("uned"), domain="all")


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
        ("food2k", {"seed": "0"}, "food2k: seed: '0': must be int; the default is 0"),
        ("cars196", {"release": "new"}, "'new': allowed are auto, original, devkit, kaggle"),
        ("uned", {"subsets": ["birds"]}, "uned: no subset birds; it has: food2k, cars"),
    ],
)
def test_options_are_checked(name, option, fault, built):
    with pytest.raises(UserError, match=fault):
        read(name, built(name), **option)
