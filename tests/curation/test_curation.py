"""Filters, validation split, verification: pure functions against slow and plain twins."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.curation import summary
from guie.curation.classes import apply_merges, cap_random, drop_rare
from guie.curation.pipeline import combine, prefix_of
from guie.curation.splits import (
    choose_test_classes,
    held_out_classes,
    move_to_test,
    split_validation,
)
from guie.rows.checks import VERIFY, Checks


def rows(labels: list[str], split: str = "train", domain: str = "d", start: int = 0):
    return pd.DataFrame(
        {
            "image_path": [f"{domain}/{split}/{start + n}.jpg" for n in range(len(labels))],
            "label": labels,
            "domain": domain,
            "split": split,
            "role": "train" if split == "train" else "both",
        }
    )


def random_table(seed: int, labels=("a", "b", "c", "d", "a|b", "c|d|a")) -> pd.DataFrame:
    draw = random.Random(seed)
    train = rows(draw.choices(labels, weights=range(1, len(labels) + 1), k=40))
    return pd.concat([train, rows(["x", "y", "y"], "test")], ignore_index=True)


def drop_rare_slowly(table: pd.DataFrame, least: int) -> list[tuple[str, str]]:
    counts = Counter(
        label
        for row in table.itertuples()
        if row.split == "train"
        for label in row.label.split("|")
    )
    kept = []
    for row in table.itertuples():
        labels = row.label.split("|")
        if row.split == "train":
            labels = [label for label in labels if counts[label] >= least]
        if labels:
            kept.append((row.image_path, "|".join(labels)))
    return kept


@pytest.mark.parametrize("least", [1, 2, 8, 12, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_drop_rare_agrees_with_its_definition(seed, least):
    table = random_table(seed)
    kept = drop_rare(table, least)
    assert list(zip(kept["image_path"], kept["label"], strict=True)) == drop_rare_slowly(
        table, least
    )
    assert kept.index.tolist() == list(range(len(kept)))


def cap_slowly(table: pd.DataFrame, most: int, seed: int) -> list[str]:
    keep = set()
    train = table[table["split"] == "train"]
    for label in {label for labels in train["label"] for label in labels.split("|")}:
        of_class = [row.image_path for row in train.itertuples() if label in row.label.split("|")]
        draws = dict(
            zip(of_class, seeded_draws(seed, [f"{label}/{p}" for p in of_class]), strict=True)
        )
        keep.update(sorted(of_class, key=draws.get)[:most])
    return [
        p
        for p, s in zip(table["image_path"], table["split"], strict=True)
        if p in keep or s != "train"
    ]


@pytest.mark.parametrize("most", [1, 3, 10, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_cap_random_agrees_with_its_definition(seed, most):
    table = random_table(seed)
    kept = cap_random(table, most, seed)
    assert kept["image_path"].tolist() == cap_slowly(table, most, seed)
    assert kept.index.tolist() == list(range(len(kept)))


def test_a_larger_cap_adds_to_what_a_smaller_one_keeps() -> None:
    """Few-shot mixes of 1, 2, 4, 8 images a class hold one another."""
    table = rows(["a"] * 20 + ["b"] * 5)
    kept = [set(cap_random(table, most, seed=5)["image_path"]) for most in (1, 2, 4, 8)]
    assert all(small <= large for small, large in itertools.pairwise(kept))
    assert [len(images) for images in kept] == [2, 4, 8, 13]


def test_cap_keeps_at_most_that_many_of_each_class_and_all_held_out_images():
    table = pd.concat([rows(["a"] * 9 + ["b"] * 2), rows(["t"] * 7, "test")], ignore_index=True)
    kept = cap_random(table, 4, seed=0)
    assert kept["label"].value_counts().to_dict() == {"a": 4, "b": 2, "t": 7}


def test_cap_chooses_the_same_whatever_the_row_order_and_the_other_classes():
    table = rows(["a"] * 30 + ["b"] * 30)
    chosen = set(cap_random(table, 5, seed=1).query("label == 'a'")["image_path"])
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert set(cap_random(shuffled, 5, seed=1).query("label == 'a'")["image_path"]) == chosen
    alone = table[table["label"] == "a"].reset_index(drop=True)
    assert set(cap_random(alone, 5, seed=1)["image_path"]) == chosen
    assert set(cap_random(alone, 5, seed=2)["image_path"]) != chosen


def test_draws_are_those_of_every_machine_and_version():
    """Frozen: a mix must come out the same next year."""
    assert seeded_draws(0, ["a", "é"]).tolist() == [13225716355254514689, 12997054023180598828]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_validation_classes_leave_train_whole(seed, fraction):
    table = pd.concat([random_table(seed), rows(["e"] * 4 + ["f"] * 3 + ["g"], domain="z")])
    table = table.reset_index(drop=True)
    split = split_validation(table, fraction, seed)
    classes = split.assign(label=split["label"].str.split("|")).explode("label")
    of = classes.groupby("split")["label"].agg(set)
    assert not of["train"] & of.get("val", set())
    assert {"e", "f"} & of["val"], "a domain with two classes validates on at least one"
    assert "g" in of["train"], "a class of one image has no positive"
    val = split[split["split"] == "val"]
    assert set(val["role"]) == {"both"}
    pd.testing.assert_frame_equal(
        split.drop(columns=["split", "role"]), table.drop(columns=["split", "role"])
    )
    pd.testing.assert_frame_equal(split[split["split"] == "test"], table[table["split"] == "test"])


@pytest.mark.parametrize(
    ("classes", "fraction", "wanted"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.1, 1), (10, 0.26, 3), (20, 0.5, 10)],
)
def test_share_of_classes_is_rounded_at_least_one_never_all(classes, fraction, wanted):
    table = rows([f"c{n}" for n in range(classes)] * 2)
    split = split_validation(table, fraction, seed=0)
    assert split.loc[split["split"] == "val", "label"].nunique() == wanted


def test_classes_that_share_an_image_stay_together():
    members = pd.DataFrame(
        [(0, "a"), (0, "b"), (1, "b"), (1, "c"), (2, "a"), (3, "c"), (4, "d"), (5, "d")]
        + [(6 + n, f"e{n // 2}") for n in range(8)],
        columns=["row", "label"],
    )
    for seed in range(20):
        chosen = held_out_classes(members, 0.5, seed)
        assert len(chosen & {"a", "b", "c"}) in (0, 3)
        assert 1 <= len(chosen) <= 4


def test_split_does_not_move_when_images_or_row_order_change():
    table = rows([f"c{n}" for n in range(30)] * 3)
    chosen = set(split_validation(table, 0.2, 5).query("split == 'val'")["label"])
    fewer = table.iloc[::-1].drop(index=[0, 40]).reset_index(drop=True)
    assert set(split_validation(fewer, 0.2, 5).query("split == 'val'")["label"]) == chosen
    assert set(split_validation(table, 0.2, 6).query("split == 'val'")["label"]) != chosen


def test_images_of_several_test_classes_move_with_them():
    table = pd.concat([random_table(3), rows(["e"] * 4 + ["f"] * 3 + ["g"], domain="z")])
    table = table[table["split"] == "train"].reset_index(drop=True)
    for fraction in (0.3, 0.6):
        chosen = choose_test_classes(table, fraction, seed=2)
        moved = move_to_test(table, chosen)
        of = moved.assign(label=moved["label"].str.split("|")).explode("label")
        of = of.groupby("split")["label"].agg(set)
        assert of["test"] == chosen and not of["train"] & chosen
        assert set(moved.loc[moved["split"] == "test", "role"]) == {"both"}
    assert choose_test_classes(table, 0.5, 2, leave=["z"]) == choose_test_classes(
        table[table["domain"] == "d"], 0.5, 2
    )


@pytest.mark.parametrize("merge", [{"a/0": "b/0", "a/1": "b/1"}, {"b/0": "a/0", "b/1": "a/1"}])
def test_classes_that_join_a_domain_with_a_test_split_stay_in_train(merge):
    rows = [
        (f"{domain}{n}-{i}", f"{domain}/{n}", domain, "train")
        for domain, classes in (("a", 5), ("b", 2))
        for n in range(classes)
        for i in range(2)
    ]
    rows.append(("test", "b/9", "b", "test"))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split"])
    table = table.assign(role=table["split"].replace("test", "both"))
    moved = apply_merges(
        move_to_test(table, choose_test_classes(table, 0.9, seed=2, merge=merge)), merge
    )
    classes = moved.groupby("split")["label"].agg(set)
    assert not classes["train"] & classes["test"] and classes["test"] >= {"a/3", "b/9"}


def test_domains_that_bring_val_or_are_left_stay_as_they_are():
    brings = pd.concat([rows(["a", "a", "b", "b"]), rows(["v", "v"], "val")])
    table = pd.concat([brings, rows(["m", "m", "n", "n"], domain="met")], ignore_index=True)
    pd.testing.assert_frame_equal(split_validation(table, 0.5, 0, leave=["met"]), table)
    pd.testing.assert_frame_equal(split_validation(table, 0.0, 0), table)


def test_prefix_of_a_source_in_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert prefix_of(Path("input/toy"), Path("input")) == "toy/"
    assert prefix_of(Path("input/a/../b"), tmp_path) == "input/b/"
    assert prefix_of(Path("input"), tmp_path / "input") == ""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "link").symlink_to("/usr")
    assert prefix_of(Path("input/link"), Path("input")) == "link/"


def test_source_outside_the_root_is_refused_with_a_root_that_fits(tmp_path):
    with pytest.raises(UserError, match=f"for example root: {tmp_path}"):
        prefix_of(tmp_path / "data", tmp_path / "input")
    with pytest.raises(UserError, match="outside"):
        prefix_of(tmp_path / "input2", tmp_path / "input")


def test_combine_fills_columns_that_only_some_sources_have():
    first = rows(["a"]).assign(weight=2.0, width=5, height="")
    second = rows(["b"], domain="e").assign(caption="a bee")
    table = combine([first, second])
    assert table["weight"].tolist() == [2.0, 1.0]
    assert table["caption"].tolist() == ["", "a bee"]
    assert table["width"].tolist() == [5, pd.NA] and table["height"].isna().all()
    assert table.index.tolist() == [0, 1]


def test_an_image_of_two_sources_is_refused():
    twice = rows(["a", "a"])
    with pytest.raises(UserError, match="sources 0 and 2 both contain d/train/1.jpg"):
        combine([twice, rows(["b"], domain="e"), twice.tail(1)])


def test_verify_gives_sizes_as_seen_and_reasons(tmp_path):
    root = tmp_path / "set"
    root.mkdir()
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    Image.new("RGB", (8, 4)).save(root / "plain.png")
    Image.new("RGB", (8, 4)).save(root / "turned.jpg", exif=turned)
    (root / "text.jpg").write_text("no image")
    (root / "folder.jpg").mkdir()
    Image.new("RGB", (8, 4)).save(tmp_path / "outside.png")
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    (root / "loop.png").symlink_to("loop.png")
    names = ["turned.jpg", "plain.png", "text.jpg", "none.jpg", "folder.jpg", "link.png"]
    names += ["loop.png", "nul\0.png"]
    checks = Checks(VERIFY, root, names)
    checks.fill(1, "set")
    verdicts = checks.table()
    assert verdicts.index.tolist() == names
    assert verdicts.loc["turned.jpg"].tolist() == [4, 8, "", "EXIF turn"]
    assert verdicts.loc["plain.png"].tolist() == [8, 4, "", ""]
    reasons = verdicts["reason"]
    assert "not a readable image" in reasons["text.jpg"]
    assert reasons["none.jpg"] == "no such image"
    assert reasons["folder.jpg"] == "not a regular file"
    assert reasons["link.png"] == "a link that leaves the source's folder"
    assert reasons["loop.png"] and "null" in reasons["nul\0.png"]
    assert not reasons.str.contains(str(tmp_path)).any(), "a reason must not depend on the place"


def test_losses_count_classes_that_lost_their_last_image():
    table = rows(["a"] * 5 + ["b"] * 2 + ["c"])
    stages = {"read": table, "min_images": drop_rare(table, 2)}
    stages["max_images"] = cap_random(stages["min_images"], 3, 0)
    losses = summary.losses(stages)
    assert losses == {
        "d": {"min_images": {"classes": 1, "images": 1}, "max_images": {"classes": 0, "images": 2}}
    }
    nothing = pd.Series(dtype=bool)
    counts = summary.by_domain(stages["max_images"], losses, nothing)["d"]
    assert counts["dropped"] == losses["d"]
    assert counts["train"] == {"classes": 2, "images": 5}


def test_losses_name_a_domain_that_is_gone():
    table = pd.concat([rows(["a", "a"]), rows(["b"], domain="e")], ignore_index=True)
    losses = summary.losses({"read": table, "min_images": drop_rare(table, 2)})
    assert losses == {"e": {"min_images": {"classes": 1, "images": 1}}}


def test_contents_count_roles():
    held = rows(["t", "t", "u|t"], "test").assign(role=["query", "index", "both"])
    table = pd.concat([rows(["a", "b|a"]), held], ignore_index=True)
    counts = summary.contents(table, alone=pd.Series([False, True], index=[2, 4]))
    test = {"classes": 2, "images": 3, "queries": 2, "index": 2, "queries_without_positive": 1}
    assert counts == {"d": {"train": {"classes": 2, "images": 2}, "test": test}}
