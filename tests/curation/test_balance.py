"""Outliers, caps, sampling weights, merged classes: against plain twins on made-up features."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.config.data import OutlierConfig, OversampleConfig
from guie.curation.centroids import class_sums, find_outliers, robust_z, suggest_merges
from guie.curation.classes import apply_merges, cap_diverse, cap_first, farthest_points, oversample
from guie.curation.features import unit


def rows(labels: list[str], split: str = "train", domain: str = "d") -> pd.DataFrame:
    paths = [f"{domain}/{split}/{n:03d}.jpg" for n in range(len(labels))]
    table = pd.DataFrame({"image_path": paths, "label": labels})
    return table.assign(domain=domain, split=split, role="train" if split == "train" else "both")


def directions(seed: int, count: int, dim: int = 16) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(count, dim)))


def embedder(table: pd.DataFrame, features_ND: np.ndarray):
    """An `Embed` that knows the features of each path."""
    place = dict(zip(table["image_path"], range(len(table)), strict=True))
    return lambda paths, view: features_ND[[place[path] for path in paths]].astype(np.float32)


def clustered(labels: list[str], spread: float, seed: int = 0) -> np.ndarray:
    codes, names = pd.factorize(pd.Series(labels))
    noise = np.random.default_rng(seed).normal(size=(len(labels), 16))
    return unit(directions(seed + 1, len(names))[codes] + spread * noise / 4)


def test_class_sums_agree_with_a_loop():
    features_ND, codes_N = directions(0, 50), np.random.default_rng(1).integers(0, 5, 50)
    slow_CD = np.stack([features_ND[codes_N == c].sum(axis=0) for c in range(6)])
    np.testing.assert_allclose(class_sums(codes_N, 6, features_ND), slow_CD, atol=1e-12)


def test_planted_outliers_are_found_and_no_other():
    labels = [f"d/{n % 8}" for n in range(160)]
    features_ND = clustered(labels, 0.3)
    table, planted = rows(labels), [3, 40, 101]
    features_ND[planted] = directions(9, len(planted))
    found = find_outliers(table, OutlierConfig(action="drop"), embedder(table, features_ND))
    assert set(found["image_path"]) == set(table["image_path"].iloc[planted])
    assert set(found["action"]) == {"dropped"} and set(found["kind"]) == {"outlier"}
    others = found.merge(table, left_on="other_path", right_on="image_path")
    assert (others["label_x"] == others["label_y"]).all()


def test_distance_is_by_how_much_another_class_is_nearer_than_the_others_of_its_own():
    labels = ["d/a"] * 12 + ["d/b"] * 12
    features_ND, table = clustered(labels, 0.2), rows(labels)
    features_ND[5] = features_ND[15]
    found = find_outliers(table, OutlierConfig(), embedder(table, features_ND))
    others = unit(np.delete(features_ND[:12], 5, axis=0).mean(axis=0)[None])[0]
    another = unit(features_ND[12:].mean(axis=0)[None])[0]
    assert found["image_path"].tolist() == [table["image_path"][5]]
    assert found["similarity"][0] == pytest.approx(features_ND[5] @ others, abs=1e-6)
    gap = features_ND[5] @ another - features_ND[5] @ others
    assert found["distance"][0] == pytest.approx(gap, abs=1e-6)


def test_a_rare_view_is_less_of_an_outlier_than_an_image_of_another_class():
    labels = ["d/a"] * 40 + ["d/b"] * 40
    features_ND, table = clustered(labels, 0.2), rows(labels)
    b = unit(features_ND[40:].mean(axis=0)[None])[0]
    rare = directions(5, 1)[0]
    features_ND[3] = unit((rare - (rare @ b) * b)[None])[0]  # far from both
    features_ND[4] = b
    found = find_outliers(table, OutlierConfig(), embedder(table, features_ND))
    distance = found.set_index("image_path")["distance"]
    swapped, rare = table["image_path"][4], table["image_path"][3]
    assert distance[swapped] > 1 and distance.get(rare, 0) < 0.3


def test_no_class_loses_more_than_its_share():
    labels = ["d/a"] * 20 + ["d/b"] * 200
    features_ND = clustered(labels, 0.2)
    features_ND[:5] = directions(3, 5)
    table = rows(labels)
    embed = embedder(table, features_ND)
    found = find_outliers(table, OutlierConfig(), embed)
    assert (found["label"] == "d/a").sum() == 2
    assert set(found["image_path"][:2]) <= set(table["image_path"][:5])
    few = rows(["d/c"] * 9)
    assert find_outliers(few, OutlierConfig(), embedder(few, directions(0, 9))).empty


def test_domains_have_spreads_of_their_own():
    """What is far in a tidy domain is ordinary in an untidy one."""
    tidy, untidy = rows(["t/a"] * 50, domain="t"), rows(["u/b"] * 50, domain="u")
    features_ND = np.concatenate([clustered(["a"] * 50, 0.05), clustered(["b"] * 50, 1.0, seed=5)])
    features_ND[7] = unit(features_ND[7][None] + 0.8 * directions(2, 1))[0]
    table = pd.concat([tidy, untidy], ignore_index=True)
    found = find_outliers(table, OutlierConfig(), embedder(table, features_ND))
    assert found["image_path"].tolist() == [table["image_path"][7]]


def test_an_image_is_judged_in_the_nearest_of_its_classes():
    labels = ["d/a"] * 30 + ["d/b"] * 30
    features_ND, table = clustered(labels, 0.2), rows(labels)
    table.loc[0, "label"] = "d/b|d/a"  # far from b, at home in a
    assert find_outliers(table, OutlierConfig(), embedder(table, features_ND)).empty


def test_robust_z_of_equal_values_is_zero():
    assert robust_z(pd.Series([1.0] * 9 + [5.0])).tolist() == [0.0] * 10
    assert robust_z(pd.Series([1.0, 2.0, 3.0, 4.0, 100.0])).iloc[-1] == pytest.approx(97 / 1.4826)


def radius(features_ND: np.ndarray, chosen) -> float:
    """How far the farthest row is from its nearest chosen one, in Euclidean distance."""
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
    centroid_D = features_ND.mean(axis=0)
    slow = [int(np.argmin(np.linalg.norm(features_ND - unit(centroid_D[None]), axis=1)))]
    while len(slow) < 12:
        distance = np.linalg.norm(features_ND[:, None] - features_ND[None, slow], axis=-1)
        slow.append(int(np.argmax(distance.min(axis=1))))
    assert farthest_points(features_ND, 12).tolist() == slow


def test_farthest_points_of_copies_are_the_first_ones():
    features_ND = np.tile(directions(0, 1).astype(np.float32), (6, 1))
    assert farthest_points(features_ND, 4).tolist() == [0, 1, 2, 3]


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


def test_a_first_cap_goes_by_path_and_shared_images_stay():
    table = rows(["d/a", "d/a", "d/a|d/b", "d/b"]).iloc[::-1].reset_index(drop=True)
    assert cap_first(table, 2)["image_path"].tolist() == [
        f"d/train/00{n}.jpg" for n in (3, 2, 1, 0)
    ]
    table = rows(["d/a"] * 5).iloc[::-1].reset_index(drop=True)
    assert cap_first(table, 2)["image_path"].tolist() == ["d/train/001.jpg", "d/train/000.jpg"]


def test_small_classes_weigh_as_much_as_the_target_has_images():
    table = pd.concat([rows(["d/a"] * 5 + ["d/b"] * 40 + ["d/c"]), rows(["d/t"], "test")])
    table = table.reset_index(drop=True)
    weights = oversample(table, OversampleConfig(target=20)).groupby("label")["weight"]
    assert weights.sum().to_dict() == {"d/a": 20, "d/b": 40, "d/c": 10, "d/t": 1}
    half = oversample(table.assign(weight=2.0), OversampleConfig(target=20, power=0.5))
    assert half["weight"][0] == pytest.approx(2 * 4**0.5)


def test_an_image_of_several_labels_weighs_by_the_rarest():
    table = rows(["d/a"] * 4 + ["d/b|d/a"])
    assert oversample(table, OversampleConfig(target=10))["weight"].tolist() == [2.0] * 4 + [10.0]


def two_datasets() -> tuple[pd.DataFrame, np.ndarray]:
    """Datasets e and f: e/0 and f/0 look alike, e/1 and e/2 too, f/1 is alone."""
    labels = ["e/0"] * 4 + ["e/1"] * 5 + ["e/2"] * 6, ["f/0"] * 7 + ["f/1"] * 3
    table = pd.concat([rows(labels[0], domain="e"), rows(labels[1], domain="f")], ignore_index=True)
    centre = dict(zip(["e/0", "e/1", "f/1"], directions(0, 3, dim=64), strict=True))
    centre |= {"f/0": centre["e/0"], "e/2": centre["e/1"]}
    noise = np.random.default_rng(1).normal(size=(len(table), 64)) / 40
    return table, unit(np.stack([centre[label] for label in table["label"]]) + noise)


def test_like_classes_of_two_datasets_are_suggested_and_nothing_merged():
    table, features_ND = two_datasets()
    before = table.copy()
    found = suggest_merges(table, 0.9, embedder(table, features_ND))
    assert found[["label", "into", "images", "into_images"]].values.tolist() == [
        ["e/0", "f/0", 4, 7]
    ]
    assert found["similarity"].iloc[0] > 0.9
    pd.testing.assert_frame_equal(table, before)
    assert suggest_merges(table.iloc[:15], 0.0, embedder(table, features_ND)).empty, "one dataset"


def test_a_suggestion_is_mutual():
    """f/0 and f/1 are both nearest to e/0, which is nearest to one of them."""
    table = pd.concat([rows(["e/0"] * 3, domain="e"), rows(["f/0"] * 3 + ["f/1"] * 3, domain="f")])
    table = table.reset_index(drop=True)
    axis = np.eye(16)
    centre_CD = np.stack(
        [axis[0], unit(axis[:1] + 0.1 * axis[1])[0], unit(axis[:1] + 0.2 * axis[2])[0]]
    )
    found = suggest_merges(table, 0.5, embedder(table, np.repeat(centre_CD, 3, axis=0)))
    assert set(found[["label", "into"]].iloc[0]) == {"e/0", "f/0"} and len(found) == 1


def test_accepted_merges_rename_and_move_to_the_other_domain():
    table, _ = two_datasets()
    table.loc[4, "label"] = "e/1|e/0"
    merged = apply_merges(table, {"e/0": "f/0"})
    assert "e/0" not in set(merged["label"].str.split("|").explode())
    assert (merged["label"] == "f/0").sum() == 11 and merged["label"][4] == "e/1|f/0"
    assert set(merged.loc[merged["label"] == "f/0", "domain"]) == {"f"}
    assert table["domain"][0] == "e", "the table given stays as it is"
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
        apply_merges(two_datasets()[0], merge)
