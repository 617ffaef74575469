"""Outliers and suggested merges, against plain twins on made-up features."""

import numpy as np
import pandas as pd
import pytest
from tables import clustered, directions, embedder, rows, together

from guie.config.data import OutlierConfig
from guie.curation.centroids import find_outliers, robust_z, suggest_merges
from guie.curation.features import unit


def outliers(table: pd.DataFrame, features_ND: np.ndarray, **config) -> pd.DataFrame:
    return find_outliers(table, OutlierConfig(**config), embedder(table, features_ND))


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
    """A rare view, far from both classes, is less of an outlier."""
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
    labels = ["d/a"] * 40 + ["d/b"] * 40
    features_ND, table = clustered(labels, 0.2), rows(labels)
    b, rare = unit(features_ND[40:].mean(axis=0)[None])[0], directions(5, 1)[0]
    features_ND[3], features_ND[4] = unit((rare - (rare @ b) * b)[None])[0], b
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
    assert outliers(rows(["d/c"] * 9), directions(0, 9)).empty, "one class"
    labels = ["d/a"] * 30 + ["d/b"] * 30
    several = rows(["d/b|d/a", *labels[1:]])
    assert outliers(several, clustered(labels, 0.2)).empty, "far from b, at home in a"


def test_domains_have_spreads_of_their_own():
    """What is far in a tidy domain is ordinary in an untidy one."""
    table = together(rows(["t/a"] * 50, domain="t"), rows(["u/b"] * 50, domain="u"))
    features_ND = np.concatenate([clustered(["a"] * 50, 0.05), clustered(["b"] * 50, 1.0, seed=5)])
    features_ND[7] = unit(features_ND[7][None] + 0.8 * directions(2, 1))[0]
    assert outliers(table, features_ND)["image_path"].tolist() == [table["image_path"][7]]
    assert robust_z(pd.Series([1.0] * 9 + [5.0])).tolist() == [0.0] * 10
    assert robust_z(pd.Series([1.0, 2.0, 3.0, 4.0, 100.0])).iloc[-1] == pytest.approx(97 / 1.4826)


def test_like_classes_of_two_datasets_are_suggested_if_they_are_nearest_to_each_other():
    """e/0 and f/0 look alike, e/1 and e/2 too, f/1 is alone; g/0 and h/0 have one size."""
    sizes = {"e/0": 4, "e/1": 5, "e/2": 6, "f/0": 7, "f/1": 3, "g/0": 2, "h/0": 2}
    table = together(*(rows([label] * size, domain=label[0]) for label, size in sizes.items()))
    table["image_path"] = [f"{label}/{n}" for n, label in enumerate(table["label"])]
    centre = dict(zip(["e/0", "e/1", "f/1", "g/0"], directions(0, 4, dim=64), strict=True))
    centre |= {"f/0": centre["e/0"], "e/2": centre["e/1"], "h/0": centre["g/0"]}
    noise = np.random.default_rng(1).normal(size=(len(table), 64)) / 40
    features_ND = unit(np.stack([centre[label] for label in table["label"]]) + noise)
    embed = embedder(table, features_ND)
    found = suggest_merges(table, 0.9, embed).set_index("label")
    columns = ["into", "dataset", "into_dataset", "images", "into_images", "image_path"]
    assert found[columns].T.to_dict("list") == {
        "e/0": ["f/0", "e", "f", 4, 7, "e/0/0"],
        "h/0": ["g/0", "h", "g", 2, 2, "h/0/27"],
    }
    one, other = (unit(features_ND[table["label"] == k].mean(axis=0)[None]) for k in ("e/0", "f/0"))
    assert found["similarity"]["e/0"] == pytest.approx(float((one * other).sum()), abs=1e-6)
    assert suggest_merges(table, 0.999, embed).empty
    assert suggest_merges(table.assign(dataset="one"), -1.0, embed).empty, "one dataset"
    # f/0 and f/1 are both nearest to e/0, which is nearest to one of them
    table = together(rows(["e/0"] * 3, domain="e"), rows(["f/0"] * 3 + ["f/1"] * 3, domain="f"))
    axis = np.eye(16)
    centre_CD = unit(np.stack([axis[0], axis[0] + 0.1 * axis[1], axis[0] + 0.2 * axis[2]]))
    found = suggest_merges(table, 0.5, embedder(table, np.repeat(centre_CD, 3, axis=0)))
    assert found[["label", "into"]].to_numpy().tolist() == [["f/0", "e/0"]]
