"""Labels by CLIP, their calibration, and shares of domains, against plain twins."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from guie.base.errors import UserError
from guie.config.data import ClipConfig, DomainShares, PseudoLabelConfig
from guie.curation import pseudo_labels as zero_shot
from guie.curation.pseudo_labels import (
    contradicted,
    fit_scale,
    guess,
    least_confidence,
    most_certain,
    precision_curve,
)
from guie.curation.shares import match_shares
from guie.evaluation import text
from guie.models.backbones.open_clip import import_open_clip

open_clip = import_open_clip()  # it knows guie-tiny

CLASSES = {"cars/sedan": ["a sedan", "a saloon car"], "cars/bus": ["a bus"]}


def units(count: int, dim: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def rows(labels, domain: str = "cars", split: str = "train") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "image_path": [f"{domain}/{split}/{n}.jpg" for n in range(len(labels))],
            "label": labels,
            "domain": domain,
            "split": split,
            "role": "train" if split == "train" else "both",
        }
    )


LETTERS = list("abcde")
LABELS = ("cars/sedan", "cars/bus", "toys/doll")


@pytest.mark.parametrize("block", [2**24, 12])
def test_guesses_agree_with_a_softmax_in_loops(monkeypatch, block):
    monkeypatch.setattr(zero_shot, "BLOCK_LOGITS", block)  # 12: two images at a time
    emb_ND, text_CD = units(7, 8, seed=0), units(5, 8, seed=1)
    half = guess(emb_ND.astype(np.float16), text_CD, 20.0, LETTERS)
    found = guess(emb_ND, text_CD, 20.0, LETTERS)
    assert (half["label"] == found["label"]).all() and half["confidence"].dtype == np.float32
    for n, emb_D in enumerate(emb_ND):
        weights = [math.exp(20 * sum(map(float, emb_D * text_D))) for text_D in text_CD]
        shares = sorted((w / sum(weights) for w in weights), reverse=True)
        assert found["label"][n] == LETTERS[weights.index(max(weights))]
        assert found["confidence"][n] == pytest.approx(shares[0], rel=1e-4)
        assert found["margin"][n] == pytest.approx(shares[0] - shares[1], rel=1e-3, abs=1e-6)


def certain(found: pd.DataFrame, **limits) -> list[int]:
    return most_certain(found, **limits).index.tolist()


def test_guesses_reach_each_threshold():
    found = pd.DataFrame({"confidence": [0.9, 0.5, 0.6, 0.4], "margin": [0.8, 0, 0.5, 0]})
    found["label"] = list("aabb")
    assert certain(found) == [0, 1, 2, 3]
    assert certain(found, min_confidence=0.5) == [0, 1, 2]
    assert certain(found, min_margin=0.5) == [0, 2]


def test_the_most_confident_of_each_class_are_kept():
    found = pd.DataFrame({"label": list("abaabc"), "confidence": [0.5, 0.9, 0.8, 0.7, 0.95, 0.1]})
    found["margin"] = found["confidence"]
    assert certain(found, max_images=1) == [2, 4, 5]
    assert certain(found, max_images=2) == [1, 2, 3, 4, 5]
    assert certain(found, min_confidence=0.6, max_images=3) == [1, 2, 3, 4]


def test_a_label_that_could_not_be_guessed_is_not_contradicted():
    own = pd.Series(["cars/sedan", "cars/sedan", "cars/bus|cars/sedan", "cars/van", "cars/bus"])
    guessed = pd.Series([LABELS[n] for n in (0, 1, 0, 0)])
    assert contradicted(own, guessed, LABELS) == [1]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"classes": {"sedan": ["a"], "cars/bus": ["b"]}},
            "must be of the form domain/class",
        ),
        ({"classes": {"a/b|c/d": ["a"], "cars/bus": ["b"]}}, "must be of the form domain/class"),
        ({"mode": "check", "max_images": 3}, "max_images: is for mode label"),
        ({"clip": {"model": "open_clip:x:y", "templates": ["a photo"]}}, "one {} for the name"),
        ({"clip": {"model": "timm:x:y"}}, "should match pattern"),
    ],
)
def test_configs_that_make_no_sense_are_refused(change, fault):
    config = {"clip": {"model": "open_clip:x:y"}, "domains": ["cars"], "classes": CLASSES}
    with pytest.raises(ValueError, match=fault):
        PseudoLabelConfig.model_validate(config | change)


def drawn_labels(cos_NC: np.ndarray, scale: float, seed: int) -> np.ndarray:
    """Labels drawn from the softmax itself: at `scale` the model is calibrated by construction."""
    gumbel = np.random.default_rng(seed).gumbel(size=cos_NC.shape)
    return (scale * cos_NC + gumbel).argmax(axis=1)


def test_fit_scale_finds_the_temperature_that_drew_the_labels():
    cos_NC = units(4000, 16, seed=0) @ units(6, 16, seed=1).T
    truth_N = drawn_labels(cos_NC, scale=8.0, seed=2)
    scale = fit_scale(cos_NC, truth_N, start=100.0)
    assert scale == pytest.approx(8.0, rel=0.06)
    found = guess(units(4000, 16, seed=0), units(6, 16, seed=1), scale, range(6))
    right = (found["label"] == truth_N).mean()
    assert found["confidence"].mean() == pytest.approx(right, abs=0.03)


def test_precision_curve_counts_ties_together():
    confidence = np.array([0.9, 0.5, 0.5, 0.2], np.float32)
    curve = precision_curve(confidence, np.array([True, True, False, False]))
    assert curve["coverage"].tolist() == [0.25, 0.75, 1.0]
    assert curve["precision"].to_numpy() == pytest.approx([1.0, 2 / 3, 0.5])
    assert (curve["at_least"] < curve["precision"]).all()


def test_threshold_keeps_the_precision_on_other_images():
    """Chosen on one sample it must hold on others: in 95 of 100, by the bound's own claim."""
    kept_it = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        confidence = rng.random((2, 500))
        right = rng.random((2, 500)) < confidence
        least = least_confidence(precision_curve(confidence[0], right[0]), 0.8)
        kept_it += (1 + least) / 2 >= 0.8  # the true precision of what reaches `least`
    assert kept_it >= 36


def test_threshold_needs_evidence_by_the_bound_of_a_textbook():
    confidence = np.array([0.99, 0.1, 0.1, 0.1])
    curve = precision_curve(confidence, np.array([True, False, False, False]))
    assert least_confidence(curve, 0.9) is None, "one image that is right proves little"
    # 10 of 10: z2 = 2.706, bound = 10 / (10 + z2)
    curve = precision_curve(np.ones(10), np.ones(10, bool))
    assert curve["at_least"].iloc[0] == pytest.approx(10 / 12.706, rel=1e-3)


def mixed() -> pd.DataFrame:
    cars = rows(["cars/a"] * 30 + ["cars/b"] * 6 + ["cars/c"] * 2)
    toys = rows(["toys/a"] * 8 + ["toys/b"] * 2, domain="toys")
    val = rows(["cars/v"] * 5, split="val")
    return pd.concat([cars, toys, val], ignore_index=True)


def test_shares_are_met_by_the_largest_mix():
    table = mixed()
    matched = match_shares(table, table["domain"], {"cars": 1.0, "toys": 1.0}, seed=0)
    train = matched[matched["split"] == "train"]
    assert train["domain"].value_counts().to_dict() == {"cars": 10, "toys": 10}
    assert (matched["split"] == "val").sum() == 5
    sizes = train["label"].value_counts()
    assert sizes["cars/a"] == 4 and sizes["cars/b"] == 4 and sizes["cars/c"] == 2
    thrice = match_shares(table, table["domain"], {"cars": 3, "toys": 1}, seed=0)
    counts = thrice[thrice["split"] == "train"]["domain"].value_counts().to_dict()
    assert counts == {"cars": 30, "toys": 10}


def test_shares_depend_on_the_seed_and_no_row_order():
    table, wanted = mixed(), {"cars": 1, "toys": 1}

    def chosen(rows: pd.DataFrame, seed: int) -> set[str]:
        return set(match_shares(rows, rows["domain"], wanted, seed)["image_path"])

    shuffled = table.sample(frac=1, random_state=1).reset_index(drop=True)
    assert chosen(table, 5) == chosen(shuffled, 5) != chosen(table, 6)


def test_shares_of_predicted_domains():
    """The manifest says cars throughout; CLIP's prediction counts. A domain without share goes."""
    table = rows(["cars/a"] * 12)
    predicted = pd.Series(["x", "y", "z"] * 4)
    matched = match_shares(table, predicted, {"x": 0.5, "y": 0.25}, seed=0)
    domain_of = dict(zip(table["image_path"], predicted, strict=True))
    assert Counter(map(domain_of.get, matched["image_path"])) == {"x": 4, "y": 2}
    with pytest.raises(UserError, match="no train image in boats; found: cars"):
        match_shares(table, table["domain"], {"cars": 1, "boats": 1}, seed=0)
    source = {"clip": {"model": "open_clip:x:y"}, "names": {"cars": ["a car"], "toys": ["a toy"]}}
    with pytest.raises(ValueError, match="lacks art, which shares names"):
        DomainShares.model_validate({"shares": {"cars": 1.0, "art": 1.0}, "domain_source": source})


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A tiny CLIP of random weights: its sentences differ, which suffices here."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    save_file(open_clip.create_model("guie-tiny").state_dict(), path)
    return path


@pytest.fixture
def clip(weights, tmp_path) -> ClipConfig:
    return ClipConfig(
        model=f"open_clip:guie-tiny:{weights}",
        templates=["a photo of {}.", "{}, drawn"],
        cache=str(tmp_path / "text"),
    )


@torch.inference_mode()
def encoded(weights: Path, sentence: str) -> np.ndarray:
    model = open_clip.create_model("guie-tiny", pretrained=str(weights)).eval()
    emb = model.encode_text(open_clip.get_tokenizer("guie-tiny", context_length=40)([sentence]))
    return (emb / emb.norm())[0].numpy()


def test_texts_are_means_over_templates_and_names(clip, weights):
    found = text.class_texts(clip, CLASSES)
    names = []
    for name in CLASSES["cars/sedan"]:
        mean = (encoded(weights, f"a photo of {name}.") + encoded(weights, f"{name}, drawn")) / 2
        names.append(mean / np.linalg.norm(mean))
    wanted = sum(names) / np.linalg.norm(sum(names))
    np.testing.assert_allclose(found.emb_CD[0], wanted, atol=1e-5)
    assert found.emb_CD.shape == (2, 128)
    np.testing.assert_allclose(np.linalg.norm(found.emb_CD, axis=1), 1, atol=1e-5)
    assert found.scale == pytest.approx(1 / 0.07, rel=1e-3), "open_clip's initial temperature"


def test_texts_are_computed_once_for_each_model(clip, monkeypatch, tmp_path):
    first = text.class_texts(clip, CLASSES)
    torch.manual_seed(1)
    new = tmp_path / "clip.safetensors"
    save_file(open_clip.create_model("guie-tiny").state_dict(), new)
    other = clip.model_copy(update={"model": f"open_clip:guie-tiny:{new}"})
    assert np.abs(text.class_texts(other, CLASSES).emb_CD - first.emb_CD).max() > 0.01
    built = []
    monkeypatch.setattr(text, "create_clip", lambda config: built.append(config))
    again = text.class_texts(clip, CLASSES)
    assert not built and (again.emb_CD == first.emb_CD).all() and again.scale == first.scale
    with pytest.raises(AttributeError):  # no model: another sentence is not in the cache
        text.class_texts(clip.model_copy(update={"templates": ["{}"]}), CLASSES)
    assert len(built) == 1
    gone = clip.model_copy(update={"model": "open_clip:guie-tiny:runs/none.safetensors"})
    with pytest.raises(UserError, match="runs/none.safetensors: no such weights file"):
        text.class_texts(gone, CLASSES)
