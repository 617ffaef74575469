"""How pairs become links: features filter them, and limits come from each domain's images and look-alikes."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from tables import ALIKE

from guie.config.data import CleaningConfig, NearConfig
from guie.curation.duplicates import limits as kinds
from guie.curation.duplicates.limits import APART, CROSS, UNLIKE, Grade, fit_tail, graded, limits
from guie.curation.duplicates.links import find_links
from guie.rows.fingerprints import Hashes


def thinning(count: int, exponent: float, seed: int = 0) -> np.ndarray:
    """Differences of look-alikes below APART, by a power law."""
    return APART * np.random.default_rng(seed).random(count) ** (1 / exponent)


@pytest.mark.parametrize(("count", "exponent"), [(100, 3.0), (2000, 4.0), (20_000, 8.0)])
def test_a_tail_predicts_the_look_alikes_below_its_window(count, exponent):
    """On the safe side: of many draws, nearly all expect at least the true average."""
    reach, below = 0.9, 0.5
    true = count * (below / APART) ** exponent
    found = [fit_tail(thinning(count, exponent, seed), reach).below(below) for seed in range(200)]
    assert np.mean(np.array(found) >= true) > 0.75
    assert np.median(found) < 5 * true + 1


def test_copies_do_not_count_among_the_look_alikes_and_few_of_these_suffice():
    look_alikes = thinning(500, 4.0)
    look_alikes = look_alikes[look_alikes > 0.6]
    copies = np.random.default_rng(1).uniform(0, 0.5, 5000)
    assert fit_tail(look_alikes, 0.6) == fit_tail(np.r_[look_alikes, copies], 0.6)
    tail = fit_tail(np.array([0.1, 1.5]), 0.5, pooled=5.0)
    assert tail.exponent == 5.0 and tail.total > 1
    assert fit_tail(np.empty(0), 0.5).below(0.5) > 0
    assert fit_tail(np.full(50, 0.51), 0.5).limit(1.0, 0.5) <= 0.5
    assert fit_tail(np.full(50, 2.0), 0.5).limit(0.01, 0.5) == 0.5


def pairs_of(domain: str, differences: np.ndarray, labels: str = UNLIKE) -> pd.DataFrame:
    return pd.DataFrame({"domain": domain, "labels": labels, "difference": differences})


def test_limits_keep_the_expected_share_of_false_finds():
    altered = {name: np.linspace(0, 0.4, 100) for name in ("dense", "sparse")}
    images = pd.Series({"dense": 1000, "sparse": 1000})
    pairs = pd.concat(
        [
            pairs_of("dense", thinning(20_000, 2.0)),
            pairs_of("sparse", np.array([0.1, 0.2, 1.9])),
            pairs_of("sparse", np.array([0.3]), kinds.ALIKE),
            pairs_of(CROSS, np.array([1.2, 1.4])),
        ]
    )
    config = NearConfig(false_sure=0.01, false_copies=0.1)
    found = limits(pairs, images, altered, config).set_index(["domain", "labels"])
    dense, sparse = found.loc[("dense", UNLIKE)], found.loc[("sparse", UNLIKE)]
    assert dense["sure_limit"] < dense["copy_limit"] < dense["reach"] == sparse["reach"]
    assert dense["false_sure"] == pytest.approx(10) and dense["false_copies"] == pytest.approx(100)
    assert dense["recall_sure"] == np.mean(altered["dense"] <= dense["sure_limit"]) < 0.5
    assert dense["recall_copies"] == np.mean(altered["dense"] <= dense["copy_limit"])
    assert sparse[["compared", "sure", "copies", "near"]].tolist() == [3, 2, 2, 2]
    assert found.loc[(CROSS, UNLIKE), "images"] == 2000
    assert dense["reach"] == pytest.approx(1.5 * 0.396)
    kept = graded(pairs, found.reset_index())
    assert kept["difference"].max() <= dense["reach"]
    of_dense = kept[kept["domain"] == "dense"].groupby("grade")["difference"].max()
    assert of_dense[Grade.SURE] <= dense["sure_limit"] < of_dense[Grade.COPY]
    assert of_dense[Grade.COPY] <= dense["copy_limit"] < of_dense[Grade.NEAR]
    none = pairs_of("d", np.empty(0))
    assert graded(none, limits(none, pd.Series({"d": 3}), {}, config)).empty


@pytest.mark.parametrize(("difference", "reach"), [(0.0, 0.5), (7.0, 1.0)])
def test_the_reach_of_copies_is_bounded_both_ways(difference: float, reach: float) -> None:
    altered = {"d": np.full(9, difference)}
    found = limits(pairs_of("d", np.array([0.4])), pd.Series({"d": 3}), altered, NearConfig())
    assert found["reach"].tolist() == [reach]


def near_table(similarity: float, of_copies: float = 1.0) -> tuple[pd.DataFrame, Callable]:
    """Three pictures, and their features: a and b have near hashes, a and c the same features."""
    table = pd.DataFrame({"image_path": ["a", "b", "c"], "pixels": ["1", "2", "3"]})
    table = table.assign(label="x", split="train", domain="d", **dict.fromkeys(Hashes._fields, ""))
    table["whole"] = ["0" * 16, "0" * 15 + "3", "f" * 16]
    angle = {"a": 0.0, "b": np.arccos(similarity), "c": 0.0}

    def embed(paths, view):
        turned = np.arccos(of_copies) if view == "altered" else 0.0
        return np.array([[np.cos(angle[p] + turned), np.sin(angle[p] + turned)] for p in paths])

    return table, embed


@pytest.mark.parametrize(
    ("least", "similarity", "of_copies", "linked"),
    [
        *((0.9, 0.95, 1, True), (0.9, 0.85, 1, False)),
        # Without a threshold, the minimum is twice as far from 1 as the cosine of copies
        *((None, 0.94, 0.8, True), (None, 0.94, 0.96, True), (None, 0.94, 0.99, False)),
    ],
)
def test_near_hashes_need_near_features_too(least, similarity, of_copies, linked):
    table, embed = near_table(similarity, of_copies)
    near = find_links(table, NearConfig(similarity_min=least), embed, ALIKE).near
    assert len(near) == 2 * linked, "c has the features of a, and another hash"
    if linked:
        assert near[["picture", "other", "distance"]].to_numpy().tolist() == [[0, 1, 2], [1, 0, 2]]
        assert near["similarity"].tolist() == pytest.approx([similarity] * 2, abs=1e-3)
        assert near["grade"].tolist() == [Grade.SURE] * 2 and not near["confirmed"].any()


@pytest.mark.parametrize(("label", "kind"), [("x|y", "in common"), ("y", "none in common")])
def test_pairs_with_a_common_label_have_limits_of_their_own(label, kind):
    table, embed = near_table(0.95)
    table["label"] = ["x|z", label, "w"]
    embedded: list[str] = []

    def recorded(paths, view):
        embedded.extend(paths)
        return embed(paths, view)

    links = find_links(table, NearConfig(similarity_min=0.9), recorded, ALIKE)
    assert links.limits["labels"].tolist() == [kind]
    assert embedded == ["a", "b"], "only images with near hashes need features"
    pixels = find_links(pd.concat([table, table.tail(1)]), None, recorded, ALIKE)
    assert pixels.near.empty and pixels.pictures.to_dict() == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("block", [{"cap": "diverse"}, {"suggest_merges": 0.9}])
def test_features_without_a_model_are_refused(block):
    with pytest.raises(ValueError, match="needs (model|features; set model)"):
        CleaningConfig.model_validate(block)
