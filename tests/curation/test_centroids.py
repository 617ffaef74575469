"""Outliers and suggested merges, against plain twins on made-up features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tables import clustered, directions, embedder, rows

from guie.config.data import OutlierConfig
from guie.curation import centroids
from guie.curation.centroids import class_sums, find_outliers, robust_z, suggest_merges
from guie.curation.features import unit


def outliers(table: pd.DataFrame, features_ND: np.ndarray, **config) -> pd.DataFrame:
    return find_outliers(table, OutlierConfig(**config), embedder(table, features_ND))


def test_class_sums_agree_with_a_loop(monkeypatch):
    monkeypatch.setattr(centroids, "CHUNK", 7)
    features_ND, codes_N = directions(0, 50), np.random.default_rng(1).integers(0, 5, 50)
    slow_CD = np.stack([features_ND[codes_N == c].sum(axis=0) for c in range(6)])
    np.testing.assert_allclose(class_sums(codes_N, 6, features_ND), slow_CD, atol=1e-12)


def test_planted_outliers_are_found_and_no_other():
    labels = [f"d/{n % 8}" for n in range(160)]
    features_ND = clustered(labels, 0.3)
    table, planted = rows(labels), [3, 40, 101]
    features_ND[planted] = directions(9, len(planted))
    found = outliers(table, features_ND, action="drop")
    assert set(found["image_path"]) == set(table["image_path"].iloc[planted])
    assert set(found["action"]) == {"dropped"} and set(found["kind"]) == {"outlier"}
    others = found.merge(table, left_on="other_path", right_on="image_path")
    assert (others["label_x"] == others["label_y"]).all()


def test_distance_is_by_how_much_another_class_is_nearer_than_the_others_of_its_own():
    labels = ["d/a"] * 12 + ["d/b"] * 12
    features_ND, table = clustered(labels, 0.2), rows(labels)
    features_ND[5] = features_ND[15]
    found = outliers(table, features_ND)
    others = unit(np.delete(features_ND[:12], 5, axis=0).mean(axis=0)[None])[0]
    another = unit(features_ND[12:].mean(axis=0)[None])[0]
    assert found["image_path"].tolist() == [table["image_path"][5]]
    assert found["action"].tolist() == ["reported"]
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
    distance = outliers(table, features_ND).set_index("image_path")["distance"]
    assert distance[table["image_path"][4]] > 1
    assert distance.get(table["image_path"][3], 0) < 0.3


def test_no_class_loses_more_than_its_share():
    labels = ["d/a"] * 20 + ["d/b"] * 200
    features_ND = clustered(labels, 0.2)
    features_ND[:5] = directions(3, 5)
    table = rows(labels)
    found = outliers(table, features_ND)
    assert (found["label"] == "d/a").sum() == 2
    assert set(found["image_path"][:2]) <= set(table["image_path"][:5])
    alone = rows(["d/c"] * 9)
    assert outliers(alone, directions(0, 9)).empty


def test_domains_have_spreads_of_their_own():
    """What is far in a tidy domain is ordinary in an untidy one."""
    tidy, untidy = rows(["t/a"] * 50, domain="t"), rows(["u/b"] * 50, domain="u")
    features_ND = np.concatenate([clustered(["a"] * 50, 0.05), clustered(["b"] * 50, 1.0, seed=5)])
    features_ND[7] = unit(features_ND[7][None] + 0.8 * directions(2, 1))[0]
    table = pd.concat([tidy, untidy], ignore_index=True)
    assert outliers(table, features_ND)["image_path"].tolist() == [table["image_path"][7]]


def test_an_image_is_judged_in_the_nearest_of_its_classes():
    labels = ["d/a"] * 30 + ["d/b"] * 30
    features_ND, table = clustered(labels, 0.2), rows(labels)
    table.loc[0, "label"] = "d/b|d/a"  # far from b, at home in a
    assert outliers(table, features_ND).empty


def test_robust_z_of_equal_values_is_zero():
    assert robust_z(pd.Series([1.0] * 9 + [5.0])).tolist() == [0.0] * 10
    assert robust_z(pd.Series([1.0, 2.0, 3.0, 4.0, 100.0])).iloc[-1] == pytest.approx(97 / 1.4826)


def test_like_classes_of_two_datasets_are_suggested():
    """e/0 and f/0 look alike, e/1 and e/2 too, f/1 is alone; g/0 and h/0 have one size."""
    sizes = {"e/0": 4, "e/1": 5, "e/2": 6, "f/0": 7, "f/1": 3, "g/0": 2, "h/0": 2}
    tables = [rows([label] * size, domain=label[0]) for label, size in sizes.items()]
    table = pd.concat(tables, ignore_index=True)
    table["image_path"] = [f"{label}/{n}" for n, label in enumerate(table["label"])]
    centre = dict(zip(["e/0", "e/1", "f/1", "g/0"], directions(0, 4, dim=64), strict=True))
    centre |= {"f/0": centre["e/0"], "e/2": centre["e/1"], "h/0": centre["g/0"]}
    noise = np.random.default_rng(1).normal(size=(len(table), 64)) / 40
    features_ND = unit(np.stack([centre[label] for label in table["label"]]) + noise)
    found = suggest_merges(table, 0.9, embedder(table, features_ND)).set_index("label")
    columns = ["into", "dataset", "into_dataset", "images", "into_images", "image_path"]
    assert found[columns].T.to_dict("list") == {
        "e/0": ["f/0", "e", "f", 4, 7, "e/0/0"],
        "h/0": ["g/0", "h", "g", 2, 2, "h/0/27"],
    }
    means = [
        unit(features_ND[table["label"] == label].mean(axis=0)[None]) for label in ("e/0", "f/0")
    ]
    assert found["similarity"]["e/0"] == pytest.approx(float((means[0] * means[1]).sum()), abs=1e-6)
    assert suggest_merges(table, 0.999, embedder(table, features_ND)).empty
    same = table.assign(dataset="one")
    assert suggest_merges(same, -1.0, embedder(table, features_ND)).empty, "one dataset"


def test_a_suggestion_is_mutual():
    """f/0 and f/1 are both nearest to e/0, which is nearest to one of them."""
    table = pd.concat([rows(["e/0"] * 3, domain="e"), rows(["f/0"] * 3 + ["f/1"] * 3, domain="f")])
    table, axis = table.reset_index(drop=True), np.eye(16)
    centre_CD = unit(np.stack([axis[0], axis[0] + 0.1 * axis[1], axis[0] + 0.2 * axis[2]]))
    found = suggest_merges(table, 0.5, embedder(table, np.repeat(centre_CD, 3, axis=0)))
    assert found[["label", "into"]].to_numpy().tolist() == [["f/0", "e/0"]]
