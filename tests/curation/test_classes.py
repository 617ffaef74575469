"""Rules on classes: sizes, caps, merges and weights, against plain twins."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from tables import clustered, directions, embedder, random_table, rows

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.config.data import OversampleConfig
from guie.curation.classes import (
    apply_merges,
    cap_diverse,
    cap_first,
    cap_random,
    drop_rare,
    farthest_points,
    oversample,
)
from guie.curation.features import unit


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


@pytest.mark.parametrize("least", [1, 2, 8, 12, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_drop_rare_agrees_with_its_definition(seed, least):
    table = random_table(seed)
    kept = drop_rare(table, least)
    found = list(zip(kept["image_path"], kept["label"], strict=True))
    assert found == drop_rare_slowly(table, least)
    assert kept.index.tolist() == list(range(len(kept)))


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


@pytest.mark.parametrize("most", [1, 3, 10, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_caps_agree_with_their_definition(seed, most):
    table = random_table(seed).sample(frac=1, random_state=seed).reset_index(drop=True)
    for kept, slow in (
        (cap_random(table, most, seed), cap_slowly(table, most, seed)),
        (cap_first(table, most), cap_slowly(table, most, None)),
    ):
        assert kept["image_path"].tolist() == slow
        assert kept.index.tolist() == list(range(len(kept)))


def test_a_larger_cap_adds_to_what_a_smaller_one_keeps():
    """Few-shot mixes of 1, 2, 4, 8 images a class contain one another."""
    table = rows(["a"] * 20 + ["b"] * 5)
    kept = [set(cap_random(table, most, seed=5)["image_path"]) for most in (1, 2, 4, 8)]
    assert all(small <= large for small, large in itertools.pairwise(kept))
    assert [len(images) for images in kept] == [2, 4, 8, 13]
    assert set(cap_random(table, 2, seed=6)["image_path"]) != kept[1]


def test_draws_are_those_of_every_machine_and_version():
    """Frozen: a mix must come out the same next year."""
    assert seeded_draws(0, ["a", "é"]).tolist() == [13225716355254514689, 12997054023180598828]


def radius(features_ND: np.ndarray, chosen) -> float:
    """Distance of the farthest row from its nearest chosen one."""
    distance = np.linalg.norm(features_ND[:, None] - features_ND[None, list(chosen)], axis=-1)
    return float(distance.min(axis=1).max())


@pytest.mark.parametrize("seed", range(5))
def test_farthest_points_are_within_twice_the_best_cover(seed):
    features_ND = directions(seed, 11, dim=3).astype(np.float32)
    chosen = farthest_points(features_ND, 4)
    best = min(radius(features_ND, c) for c in itertools.combinations(range(11), 4))
    assert len(set(chosen.tolist())) == 4
    assert radius(features_ND, chosen) <= 2 * best + 1e-6


def test_farthest_points_follow_their_definition():
    features_ND = directions(1, 40).astype(np.float32)
    centroid_D = unit(features_ND.mean(axis=0)[None])
    slow = [int(np.argmin(np.linalg.norm(features_ND - centroid_D, axis=1)))]
    while len(slow) < 12:
        distance = np.linalg.norm(features_ND[:, None] - features_ND[None, slow], axis=-1)
        slow.append(int(np.argmax(distance.min(axis=1))))
    assert farthest_points(features_ND, 12).tolist() == slow
    copies_ND = np.tile(features_ND[:1], (6, 1))
    assert farthest_points(copies_ND, 4).tolist() == [0, 1, 2, 3]


def test_a_diverse_cap_keeps_what_is_unlike_the_rest_whatever_the_row_order():
    labels = ["d/a"] * 20 + ["d/b"] * 3
    features_ND = clustered(labels, 0.01)
    features_ND[[4, 11]] = directions(7, 2)
    table = pd.concat([rows(labels), rows(["d/t"] * 9, "test")], ignore_index=True)
    embed = embedder(table, np.concatenate([features_ND, directions(1, 9)]))
    kept = cap_diverse(table, 3, embed)
    assert kept["label"].value_counts().to_dict() == {"d/t": 9, "d/a": 3, "d/b": 3}
    assert {table["image_path"][4], table["image_path"][11]} <= set(kept["image_path"])
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert set(cap_diverse(shuffled, 3, embed)["image_path"]) == set(kept["image_path"])
    pd.testing.assert_frame_equal(cap_diverse(table, 20, embed), table)


def test_small_classes_weigh_as_much_as_the_target_has_images():
    table = pd.concat([rows(["d/a"] * 5 + ["d/b"] * 40 + ["d/c"]), rows(["d/t"], "test")])
    table = table.reset_index(drop=True)
    weights = oversample(table, OversampleConfig(target=20)).groupby("label")["weight"]
    assert weights.sum().to_dict() == {"d/a": 20, "d/b": 40, "d/c": 10, "d/t": 1}
    half = oversample(table.assign(weight=2.0), OversampleConfig(target=20, power=0.5))
    assert half["weight"][0] == pytest.approx(2 * 4**0.5)
    several = rows(["d/a"] * 4 + ["d/b|d/a"])
    assert oversample(several, OversampleConfig(target=10))["weight"].tolist() == [2.0] * 4 + [10.0]


def test_merged_classes_are_renamed_and_move_to_the_other_domain():
    table = pd.concat([rows(["e/0", "e/1", "e/1|e/0"], domain="e"), rows(["f/0"], domain="f")])
    table = table.reset_index(drop=True)
    before = table.copy()
    merged = apply_merges(table, {"e/0": "f/0"})
    assert merged["label"].tolist() == ["f/0", "e/1", "e/1|f/0", "f/0"]
    assert merged["domain"].tolist() == ["f", "e", "f", "f"]
    pd.testing.assert_frame_equal(table, before)
    assert apply_merges(table, {}) is table


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
