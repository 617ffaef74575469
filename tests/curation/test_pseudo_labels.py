"""Labels by CLIP, their calibration, and shares of domains, against plain twins."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from tables import rows, together

from guie.base.errors import UserError
from guie.config.data import ClipConfig, DomainShares, PseudoLabelConfig
from guie.curation import pseudo_labels as zero_shot
from guie.curation.classes import match_shares
from guie.curation.pseudo_labels import (
    contradicted,
    fit_scale,
    guess,
    least_confidence,
    most_certain,
    precision_curve,
)
from guie.evaluation import text
from guie.models.backbones.open_clip import import_open_clip

open_clip = import_open_clip()  # it knows guie-tiny

CLASSES = {"cars/sedan": ["a sedan", "a saloon car"], "cars/bus": ["a bus"]}
LETTERS = list("abcde")


def units(count: int, dim: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


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


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"min_confidence": 0.7}, [1, 2, 3, 4]),
        ({"min_margin": 0.4}, [1, 2, 4]),
        ({"max_images": 1}, [2, 4, 5]),
        ({"max_images": 2}, [1, 2, 3, 4, 5]),
        ({"min_confidence": 0.6, "max_images": 3}, [1, 2, 3, 4]),
    ],
)
def test_the_most_confident_guesses_of_each_class_that_reach_the_thresholds(limits, kept):
    found = pd.DataFrame({"label": list("abaabc"), "confidence": [0.5, 0.9, 0.8, 0.7, 0.95, 0.1]})
    found["margin"] = [0.3, 0.4, 0.6, 0.2, 0.5, 0.0]
    assert most_certain(found, **limits).index.tolist() == kept


def test_a_label_that_could_not_be_guessed_is_not_contradicted():
    labels = ("cars/sedan", "cars/bus", "toys/doll")
    own = pd.Series(["cars/sedan", "cars/sedan", "cars/bus|cars/sedan", "cars/van", "cars/bus"])
    assert contradicted(own, pd.Series([labels[n] for n in (0, 1, 0, 0)]), labels) == [1]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"classes": {"sedan": ["a"], "cars/bus": ["b"]}}, "must be of the form domain/class"),
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


def test_fit_scale_finds_the_temperature_that_drew_the_labels():
    """At it, the model is calibrated by construction."""
    cos_NC = units(4000, 16, seed=0) @ units(6, 16, seed=1).T
    truth_N = (8.0 * cos_NC + np.random.default_rng(2).gumbel(size=cos_NC.shape)).argmax(axis=1)
    scale = fit_scale(cos_NC, truth_N, start=100.0)
    assert scale == pytest.approx(8.0, rel=0.06)
    found = guess(units(4000, 16, seed=0), units(6, 16, seed=1), scale, range(6))
    right = (found["label"] == truth_N).mean()
    assert found["confidence"].mean() == pytest.approx(right, abs=0.03)


def test_precision_curve_counts_ties_together_and_needs_evidence():
    confidence = np.array([0.9, 0.5, 0.5, 0.2], np.float32)
    curve = precision_curve(confidence, np.array([True, True, False, False]))
    assert curve["coverage"].tolist() == [0.25, 0.75, 1.0]
    assert curve["precision"].to_numpy() == pytest.approx([1.0, 2 / 3, 0.5])
    assert (curve["at_least"] < curve["precision"]).all()
    assert least_confidence(curve, 0.9) is None, "one image that is right proves little"
    # 10 of 10: z2 = 2.706, bound = 10 / (10 + z2)
    curve = precision_curve(np.ones(10), np.ones(10, bool))
    assert curve["at_least"].iloc[0] == pytest.approx(10 / 12.706, rel=1e-3)


def test_threshold_keeps_the_precision_on_other_images():
    """Chosen on one sample it must hold on others: in 95 of 100, by the bound's own claim."""
    kept_it = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        confidence = rng.random(500)
        right = rng.random(500) < confidence
        least = least_confidence(precision_curve(confidence, right), 0.8)
        kept_it += (1 + least) / 2 >= 0.8  # the true precision of what reaches `least`
    assert kept_it >= 36


def mixed() -> pd.DataFrame:
    cars = rows(["cars/a"] * 30 + ["cars/b"] * 6 + ["cars/c"] * 2, domain="cars")
    toys = rows(["toys/a"] * 8 + ["toys/b"] * 2, domain="toys")
    return together(cars, toys, rows(["cars/v"] * 5, "val", domain="cars"))


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
    shuffled = table.sample(frac=1, random_state=1).reset_index(drop=True)
    again = match_shares(shuffled, shuffled["domain"], {"cars": 1.0, "toys": 1.0}, seed=0)
    assert set(again["image_path"]) == set(matched["image_path"])
    other = match_shares(table, table["domain"], {"cars": 1.0, "toys": 1.0}, seed=6)
    assert set(other["image_path"]) != set(matched["image_path"])


def test_shares_of_predicted_domains():
    """The manifest says cars throughout; CLIP's prediction counts. A domain without share goes."""
    table = rows(["cars/a"] * 12, domain="cars")
    predicted = pd.Series(["x", "y", "z"] * 4)
    matched = match_shares(table, predicted, {"x": 0.5, "y": 0.25}, seed=0)
    domain_of = dict(zip(table["image_path"], predicted, strict=True))
    assert Counter(map(domain_of.get, matched["image_path"])) == {"x": 4, "y": 2}
    with pytest.raises(UserError, match="no train image in boats; found: cars"):
        match_shares(table, table["domain"], {"cars": 1, "boats": 1}, seed=0)
    source = {"clip": {"model": "open_clip:x:y"}, "names": {"cars": ["a car"], "toys": ["a toy"]}}
    with pytest.raises(ValueError, match="lacks art, which shares names"):
        DomainShares.model_validate({"shares": {"cars": 1.0, "art": 1.0}, "domain_source": source})


def tiny_clip(folder: Path, seed: int) -> Path:
    """The weights of a tiny CLIP: its sentences differ, which suffices here."""
    torch.manual_seed(seed)
    path = folder / f"clip{seed}.safetensors"
    save_file(open_clip.create_model("guie-tiny").state_dict(), path)
    return path


@torch.inference_mode()
def encoded(weights: Path, sentence: str) -> np.ndarray:
    model = open_clip.create_model("guie-tiny", pretrained=str(weights)).eval()
    emb = model.encode_text(open_clip.get_tokenizer("guie-tiny", context_length=40)([sentence]))
    return (emb / emb.norm())[0].numpy()


def test_texts_are_means_over_templates_and_names_computed_once_for_each_model(
    monkeypatch, tmp_path
):
    weights = tiny_clip(tmp_path, 0)
    clip = ClipConfig(
        model=f"open_clip:guie-tiny:{weights}",
        templates=["a photo of {}.", "{}, drawn"],
        cache=str(tmp_path / "text"),
    )
    first = text.class_texts(clip, CLASSES)
    names = []
    for name in CLASSES["cars/sedan"]:
        mean = (encoded(weights, f"a photo of {name}.") + encoded(weights, f"{name}, drawn")) / 2
        names.append(mean / np.linalg.norm(mean))
    wanted = sum(names) / np.linalg.norm(sum(names))
    np.testing.assert_allclose(first.emb_CD[0], wanted, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(first.emb_CD, axis=1), [1, 1], atol=1e-5)
    assert first.scale == pytest.approx(1 / 0.07, rel=1e-3), "open_clip's initial temperature"
    other = clip.model_copy(update={"model": f"open_clip:guie-tiny:{tiny_clip(tmp_path, 1)}"})
    assert np.abs(text.class_texts(other, CLASSES).emb_CD - first.emb_CD).max() > 0.01
    built = []
    monkeypatch.setattr(text, "create_clip", lambda config: built.append(config))
    again = text.class_texts(clip, CLASSES)
    assert not built and (again.emb_CD == first.emb_CD).all() and again.scale == first.scale
    with pytest.raises(AttributeError):  # no model: another sentence is not in the cache
        text.class_texts(clip.model_copy(update={"templates": ["{}"]}), CLASSES)
    gone = clip.model_copy(update={"model": "open_clip:guie-tiny:runs/none.safetensors"})
    with pytest.raises(UserError, match="runs/none.safetensors: no such weights file"):
        text.class_texts(gone, CLASSES)
