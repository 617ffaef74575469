"""Stored features: right rows, computed once, resumed, verified, keyed by all they depend on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator

from guie.base.errors import UserError
from guie.config.data import CleaningConfig
from guie.curation.features import embed_for
from guie.models import LoadedModel, open_model
from guie.rows import embedding
from guie.rows.comparison import content
from guie.rows.embedding import embed_files, stored_features
from guie.rows.states import States
from guie.rows.store import Store


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    torch.manual_seed(0)
    return open_model("open_clip:guie-tiny", 32)


@pytest.fixture
def images(toy_manifest: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder with twenty toy images, in an order that is not that of the paths."""
    paths = pd.read_csv(toy_manifest)["image_path"].iloc[::10].tolist()[::-1]
    for path in paths:
        (tmp_path / "set" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(toy_manifest.parent / path, tmp_path / "set" / path)
    return tmp_path / "set", paths


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """How many images each block that is written from here on has; blocks are of 8."""
    counts, add = [], Store.add

    def counted(store: Store, states: States, rows) -> None:
        add(store, states, rows)
        counts.append(len(states))

    monkeypatch.setattr(Store, "add", counted)
    monkeypatch.setattr(embedding, "BLOCK", 8)
    monkeypatch.setattr(embedding, "LEAST", 1)
    return counts


def features(model, images, store: Path, **settings):
    root, paths = images
    settings = {"workers": 0, "batch_size": 8, **settings}
    return stored_features(Accelerator(), model, paths, root, store, **settings)


def test_rows_are_those_of_the_model_in_the_order_asked(model, images, computed, tmp_path):
    root, paths = images
    direct_ND = embed_files(
        Accelerator(), model.embedder, model.preprocess, [root / path for path in paths], workers=0
    )
    computed.clear()
    found = features(model, images, tmp_path / "c")
    assert found.shape == direct_ND.shape and len(found) == len(paths)
    np.testing.assert_allclose(np.asarray(found), direct_ND, atol=1e-3)
    order = np.random.default_rng(0).permutation(len(paths))
    np.testing.assert_array_equal(found[order], np.asarray(found)[order])
    np.testing.assert_array_equal(found[3], np.asarray(found)[3])
    np.testing.assert_array_equal(found[5:20:7], np.asarray(found)[5:20:7])
    assert found[order].dtype == np.float32 and found[[]].shape == (0, found.shape[1])
    again = features(model, (root, paths[::-1]), tmp_path / "c")
    np.testing.assert_array_equal(again[::-1], np.asarray(found))
    assert computed == [8, 8, len(paths) - 16]


def test_the_whole_embedder_moves_to_the_device(model, images, monkeypatch) -> None:
    """Outside of inference mode, in which weights that move could never train again."""
    root, paths = images
    moved = []
    monkeypatch.setattr(
        model.embedder,
        "to",
        lambda device: moved.append((device, torch.is_inference_mode_enabled())),
    )
    accelerator = Accelerator()
    files = [root / path for path in paths]
    embed_files(accelerator, model.embedder, model.preprocess, files, workers=0)
    assert moved == [(accelerator.device, False)]


def test_only_new_and_changed_images_are_computed(model, images, computed, tmp_path):
    root, paths = images
    before = np.asarray(features(model, (root, paths[:10]), tmp_path / "c"))
    computed.clear()
    features(model, images, tmp_path / "c")
    assert computed == [6, len(paths) - 16]  # of the second block, and the third
    computed.clear()
    shutil.copy(root / paths[1], root / paths[0])
    after = np.asarray(features(model, images, tmp_path / "c"))
    assert computed == [1]
    np.testing.assert_allclose(after[0], before[1], atol=1e-3)
    computed.clear()
    features(model, (root, [*paths, *paths]), tmp_path / "c")
    assert computed == []


def test_a_killed_run_goes_on_at_the_next_block(model, images, computed, tmp_path, monkeypatch):
    add = Store.add

    def killed(self, states, rows):
        if computed:
            raise KeyboardInterrupt
        add(self, states, rows)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            features(model, images, tmp_path / "c")
    computed.clear()
    features(model, images, tmp_path / "c")
    assert sum(computed) == len(images[1]) - 8


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "keys"])
def test_a_damaged_block_is_said_and_computed_again(
    model, images, computed, tmp_path, caplog, damage
):
    before = np.asarray(features(model, images, tmp_path / "c"))
    victim = sorted(tmp_path.glob(f"c/*/{'?' * 64}.npy"))[0]
    lost = len(np.load(victim))
    content = bytearray(victim.read_bytes())
    if damage == "flip":
        content[-3] ^= 1
        victim.write_bytes(content)
    elif damage == "cut":
        victim.write_bytes(content[:-50])
    elif damage == "gone":
        victim.unlink()
    else:
        victim.with_suffix(".key.npy").write_bytes(b"\x93NUMPY")
    computed.clear()
    after = np.asarray(features(model, images, tmp_path / "c"))
    assert computed == [lost] and "damaged" in caplog.text and victim.stem in caplog.text
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_other_weights_sizes_and_views_have_stores_of_their_own(model, images, computed, tmp_path):
    count = len(images[1])
    other = open_model("open_clip:guie-tiny", 32)  # other random weights
    padded = open_model("open_clip:guie-tiny", 32, "pad")
    padded.embedder.load_state_dict(model.embedder.state_dict())
    features(model, images, tmp_path / "c")
    for network, view in ((other, None), (padded, None), (model, ("content", content))):
        computed.clear()
        for _ in range(2):
            features(network, images, tmp_path / "c", view=view)
        assert sum(computed) == count
    assert len(list((tmp_path / "c").iterdir())) == 4


def test_an_absent_image_is_named_before_anything_is_computed(model, images, computed, tmp_path):
    root, paths = images
    with pytest.raises(UserError, match=r"none\.jpg: no such image.*1 of"):
        features(model, (root, [*paths, "none.jpg"]), tmp_path / "c")
    assert computed == [] and not (tmp_path / "c").exists()


def test_cleaning_opens_its_model_when_it_first_asks(images, tmp_path):
    root, paths = images
    absent = embed_for(CleaningConfig(model="runs/none"), root, tmp_path, 0)
    with pytest.raises(UserError, match="no such run folder"):
        absent(paths, "whole")
    plain = embed_for(CleaningConfig(), root, tmp_path, 1)
    assert np.linalg.norm(plain(paths, "content"), axis=1) == pytest.approx(1, abs=1e-5)
