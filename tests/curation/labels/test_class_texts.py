"""Texts of classes by a CLIP: means over templates and names, computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from label_inputs import CLASSES
from safetensors.torch import save_file

from guie.base.errors import UserError
from guie.config.data import ClipConfig
from guie.evaluation import text
from guie.models.backbones.open_clip import import_open_clip

open_clip = import_open_clip()  # it knows guie-tiny


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A tiny CLIP of random weights: its sentences differ, which is all that is asked of it."""
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


def test_texts_are_computed_once(clip, monkeypatch):
    first = text.class_texts(clip, CLASSES)
    built = []
    monkeypatch.setattr(text, "create_clip", lambda config: built.append(config))
    again = text.class_texts(clip, CLASSES)
    assert not built and (again.emb_CD == first.emb_CD).all() and again.scale == first.scale
    with pytest.raises(AttributeError):  # no model to ask: another sentence is not in the cache
        text.class_texts(clip.model_copy(update={"templates": ["{}"]}), CLASSES)
    assert len(built) == 1


def test_weights_trained_anew_are_not_taken_for_the_old_ones(clip, weights, tmp_path):
    first = text.class_texts(clip, CLASSES).emb_CD
    torch.manual_seed(1)
    new = tmp_path / "clip.safetensors"
    save_file(open_clip.create_model("guie-tiny").state_dict(), new)
    other = clip.model_copy(update={"model": f"open_clip:guie-tiny:{new}"})
    assert np.abs(text.class_texts(other, CLASSES).emb_CD - first).max() > 0.01


def test_missing_weights_are_the_users_to_mend(clip):
    with pytest.raises(UserError, match="no such weights file: runs/none.safetensors"):
        text.class_texts(
            clip.model_copy(update={"model": "open_clip:guie-tiny:runs/none.safetensors"}), CLASSES
        )
