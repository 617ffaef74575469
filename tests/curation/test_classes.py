"""Rules on classes against plain twins: sizes, caps, merges, weights, held out; what a summary counts."""

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from tables import clustered, directions, embedder, random_table, rows, together

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import OversampleConfig
from guie.curation import summary
from guie.curation.classes import (
    apply_merges,
    cap,
    choose_test_classes,
    drop_rare,
    farthest_points,
    held_out_classes,
    move_to_test,
    oversample,
    split_validation,
)
from guie.curation.sources import combine


def drop_rare_slowly(table: pd.DataFrame, least: int) -> list[tuple[str, str]]:
    trained = table.loc[table["split"] == "train", "label"]
    counts = Counter(label for labels in trained for label in labels.split("|"))
    kept = []
    for row in table.itertuples():
        labels = row.label.split("|")
        if row.split == "train":
            labels = [label for label in labels if counts[label] >= least]
        if labels:
            kept.append((row.image_path, "|".join(labels)))
    return kept


def cap_slowly(table: pd.DataFrame, most: int, seed: int | None) -> list[str]:
    """Of each class the first images by draw or, without a seed, by path."""
    keep = set()
    train = table[table["split"] == "train"]
    for label in {label for labels in train["label"] for label in labels.split("|")}:
        paths = [row.image_path for row in train.itertuples() if label in row.label.split("|")]
        if seed is not None:
            draws = seeded_draws(seed, [f"{label}/{path}" for path in paths])
            paths = [paths[n] for n in np.argsort(draws)]
        keep.update(paths[:most] if seed is not None else sorted(paths)[:most])
    held_out = table["split"] != "train"
    return table.loc[held_out | table["image_path"].isin(keep), "image_path"].tolist()


@pytest.mark.parametrize("limit", [1, 2, 8, 12, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_rare_and_large_classes_agree_with_their_definition(seed, limit):
    table = random_table(seed).sample(frac=1, random_state=seed).reset_index(drop=True)
    kept = drop_rare(table, limit)
    found = list(zip(kept["image_path"], kept["label"], strict=True))
    assert found == drop_rare_slowly(table, limit)
    assert kept.index.tolist() == list(range(len(kept)))
    for choice, own in (("random", seed), ("first", None)):
        kept = cap(table, limit, choice, seed=seed)
        assert kept["image_path"].tolist() == cap_slowly(table, limit, own)
        assert kept.index.tolist() == list(range(len(kept)))


def test_a_larger_cap_adds_to_what_a_smaller_one_keeps():
    """Few-shot mixes of 1, 2, 4, 8 images a class contain one another, next year too."""
    table = rows(["a"] * 20 + ["b"] * 5)
    kept = [set(cap(table, most, seed=5)["image_path"]) for most in (1, 2, 4, 8)]
    assert all(small <= large for small, large in itertools.pairwise(kept))
    assert [len(images) for images in kept] == [2, 4, 8, 13]
    assert seeded_draws(0, ["a", "é"]).tolist() == [13225716355254514689, 12997054023180598828]


@pytest.mark.parametrize("seed", range(3))
def test_farthest_points_follow_their_definition(seed):
    """Of the distances: the farthest row from its nearest chosen one is chosen next."""
    features_ND = directions(seed, 40, dim=3).astype(np.float32)
    mean_D = features_ND.mean(axis=0)
    slow = [int(np.argmin(np.linalg.norm(features_ND - mean_D / np.linalg.norm(mean_D), axis=1)))]
    while len(slow) < 12:
        distance = np.linalg.norm(features_ND[:, None] - features_ND[None, slow], axis=-1)
        slow.append(int(np.argmax(distance.min(axis=1))))
    assert farthest_points(features_ND, 12).tolist() == slow
    assert farthest_points(np.tile(features_ND[:1], (6, 1)), 4).tolist() == [0, 1, 2, 3]


def test_a_diverse_cap_keeps_what_is_unlike_the_rest_whatever_the_row_order():
    labels = ["d/a"] * 20 + ["d/b"] * 3
    features_ND = clustered(labels, 0.01)
    features_ND[[4, 11]] = directions(7, 2)
    table = together(rows(labels), rows(["d/t"] * 9, "test"))
    embed = embedder(table, np.concatenate([features_ND, directions(1, 9)]))
    kept = cap(table, 3, "diverse", embed=embed)
    assert kept["label"].value_counts().to_dict() == {"d/t": 9, "d/a": 3, "d/b": 3}
    assert {table["image_path"][4], table["image_path"][11]} <= set(kept["image_path"])
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert set(cap(shuffled, 3, "diverse", embed=embed)["image_path"]) == set(kept["image_path"])


def test_small_classes_weigh_as_much_as_the_target_has_images():
    table = together(rows(["d/a"] * 5 + ["d/b"] * 40 + ["d/c"]), rows(["d/t"], "test"))
    weights = oversample(table, OversampleConfig(target=20)).groupby("label")["weight"]
    assert weights.sum().to_dict() == {"d/a": 20, "d/b": 40, "d/c": 10, "d/t": 1}
    half = oversample(table.assign(weight=2.0), OversampleConfig(target=20, power=0.5))
    assert half["weight"][0] == pytest.approx(2 * 4**0.5)
    several = rows(["d/a"] * 4 + ["d/b|d/a"])
    assert oversample(several, OversampleConfig(target=10))["weight"].tolist() == [2.0] * 4 + [10.0]


def test_merged_classes_are_renamed_and_move_to_the_other_domain():
    table = together(rows(["e/0", "e/1", "e/1|e/0"], domain="e"), rows(["f/0"], domain="f"))
    merged = apply_merges(table, {"e/0": "f/0"})
    assert merged["label"].tolist() == ["f/0", "e/1", "e/1|f/0", "f/0"]
    assert merged["domain"].tolist() == ["f", "e", "f", "f"]


@pytest.mark.parametrize(
    ("merge", "fault"),
    [
        ({"e/9": "f/0"}, "no class 'e/9' in the mix; did you mean e/"),
        ({"e/0": "q"}, "no class 'q' in the mix"),
        ({"e/0": "e/1", "e/1": "e/2"}, "write 'e/0': 'e/2'"),
    ],
)
def test_impossible_merges_are_refused(merge, fault):
    with pytest.raises(UserError, match=fault):
        apply_merges(rows(["e/0", "e/1", "e/2", "f/0"]), merge)


def classes_by_split(table: pd.DataFrame) -> dict[str, set[str]]:
    classes = table.assign(label=table["label"].str.split("|")).explode("label")
    return classes.groupby("split")["label"].agg(set).to_dict()


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_held_out_classes_leave_train_whole(seed, fraction):
    table = together(random_table(seed), rows(["e"] * 4 + ["f"] * 3 + ["g"], domain="z"))
    split = split_validation(table, fraction, seed)
    classes = classes_by_split(split)
    assert not classes["train"] & classes["val"]
    assert {"e", "f"} & classes["val"], "a domain with two classes validates on at least one"
    assert "g" in classes["train"], "a class of one image has no positive"
    assert set(split.loc[split["split"] == "val", "role"]) == {"both"}
    same = ["image_path", "label", "domain"]
    pd.testing.assert_frame_equal(split[same], table[same])
    pd.testing.assert_frame_equal(split[split["split"] == "test"], table[table["split"] == "test"])
    train = table[table["split"] == "train"]
    chosen = choose_test_classes(train, fraction, seed)
    tested = move_to_test(train, chosen)
    assert (tested["split"].replace("test", "val") == split["split"][train.index]).all()
    left = choose_test_classes(train, fraction, seed, leave=["z"])
    assert left == choose_test_classes(train[train["domain"] == "d"], fraction, seed)


@pytest.mark.parametrize(
    ("classes", "fraction", "wanted"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.1, 1), (10, 0.26, 3), (20, 0.5, 10)],
)
def test_share_of_classes_is_rounded_at_least_one_never_all(classes, fraction, wanted):
    split = split_validation(rows([f"c{n}" for n in range(classes)] * 2), fraction, seed=0)
    assert split.loc[split["split"] == "val", "label"].nunique() == wanted


def test_classes_that_share_an_image_stay_together():
    pairs = [(0, "a"), (0, "b"), (1, "b"), (1, "c"), (2, "a"), (3, "c"), (4, "d"), (5, "d")]
    pairs += [(6 + n, f"e{n // 2}") for n in range(8)]
    members = pd.DataFrame(pairs, columns=["row", "label"])
    sizes = set()
    for seed in range(20):
        chosen = held_out_classes(members, 0.5, seed)
        assert len(chosen & {"a", "b", "c"}) in (0, 3)
        sizes.add(len(chosen))
        assert not held_out_classes(members, 0.5, seed, stay={"a", "d"}) & {"a", "b", "c", "d"}
    assert max(sizes) == 4 and min(sizes) >= 1


def test_the_split_depends_on_seed_and_classes_alone():
    table = rows([f"c{n}" for n in range(30)] * 3)
    chosen = classes_by_split(split_validation(table, 0.2, 5))["val"]
    fewer = table.iloc[::-1].drop(index=[0, 40]).reset_index(drop=True)
    assert classes_by_split(split_validation(fewer, 0.2, 5))["val"] == chosen
    assert classes_by_split(split_validation(table, 0.2, 6))["val"] != chosen


@pytest.mark.parametrize("merge", [{"a/0": "b/0", "a/1": "b/1"}, {"b/0": "a/0", "b/1": "a/1"}])
def test_classes_that_join_a_domain_with_a_test_split_stay_in_train(merge):
    labels = {"a": [f"a/{n // 2}" for n in range(10)], "b": ["b/0", "b/0", "b/1", "b/1"]}
    tables = [rows(own, domain=domain) for domain, own in labels.items()]
    table = together(*tables, rows(["b/9"], "test", domain="b"))
    chosen = choose_test_classes(table, 0.9, seed=2, merge=merge)
    classes = classes_by_split(apply_merges(move_to_test(table, chosen), merge))
    assert not classes["train"] & classes["test"] and classes["test"] >= {"a/3", "b/9"}


def test_domains_that_bring_val_or_are_left_do_not_change():
    brings = together(rows(["a", "a", "b", "b"]), rows(["v", "v"], "val"))
    table = together(brings, rows(["m", "m", "n", "n"], domain="met"))
    pd.testing.assert_frame_equal(split_validation(table, 0.5, 0, leave=["met"]), table)
    pd.testing.assert_frame_equal(split_validation(table, 0.0, 0), table)


def test_combine_fills_columns_that_only_some_sources_have():
    first = rows(["a"]).assign(weight=2.0, width=5, height="")
    second = rows(["b"], domain="e").assign(caption="a bee")
    table = combine([first, second])
    assert table["weight"].tolist() == [2.0, 1.0]
    assert table["caption"].tolist() == ["", "a bee"]
    assert table["width"].tolist() == [5, pd.NA] and table["height"].isna().all()
    assert table.index.tolist() == [0, 1]
    twice = rows(["a", "a"])
    with pytest.raises(UserError, match="sources 0 and 2 both contain d/train/001.jpg"):
        combine([twice, rows(["b"], domain="e"), twice.tail(1)])


def test_losses_and_contents_count_classes_images_and_roles():
    held = rows(["t", "t", "u|t"], "test").assign(role=["query", "index", "both"])
    table = together(rows(["a"] * 5 + ["b"] * 2 + ["c"]), rows(["g"], domain="gone"), held)
    stages = {"read": table, "min_images": drop_rare(table, 2)}
    stages["max_images"] = cap(stages["min_images"], 3)
    one = {"classes": 1, "images": 1}
    losses = summary.losses(stages)
    lost = {"min_images": one, "max_images": {"classes": 0, "images": 2}}
    assert losses == {"d": lost, "gone": {"min_images": one}}
    mix = stages["max_images"]
    alone = pd.Series(mix["role"] == "both", mix.index)
    counts = summary.by_domain(mix, losses, alone)
    test = {"classes": 2, "images": 3, "queries": 2, "index": 2, "queries_without_positive": 1}
    own = {"train": {"classes": 2, "images": 5}, "test": test, "dropped": lost}
    assert counts == {"d": own, "gone": {"dropped": {"min_images": one}}}
