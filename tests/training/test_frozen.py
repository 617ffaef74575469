"""Frozen stages: the same numbers as through the backbone, from a cache that outlives a kill."""

import shutil
from collections import namedtuple
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator

from frozen_stages import Stage
from guie.base.errors import UserError
from guie.data.dataset import training_rows
from guie.data.manifest import Manifest, load_manifest
from guie.rows import views
from guie.rows.embedding import OnDevices
from guie.rows.store import Store
from guie.training.stage_data import embed_rows


@pytest.fixture(scope="module")
def manifest(mix: Path, toy_manifest: Path) -> Manifest:
    return load_manifest(mix, toy_manifest.parent)


@pytest.fixture(scope="module")
def kept(manifest: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose store has all that a stage computes."""
    folder = tmp_path_factory.mktemp("kept")
    Stage(manifest, folder).data()
    return folder


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(view, images) of each block that is stored from here on; blocks are of 24."""
    counts: list[tuple[int, int]] = []
    add = Store.add

    def adding(store, states, rows):
        add(store, states, rows)
        _, _, view = states.variant.partition(", view ")
        if view:  # not those of val
            counts.append((int(view), len(states)))

    monkeypatch.setattr(Store, "add", adding)
    monkeypatch.setattr(views, "OnDevices", partial(OnDevices, batch_size=24))
    return counts


@pytest.mark.slow
def test_a_frozen_stage_trains_as_through_the_backbone(manifest: Manifest, tmp_path: Path) -> None:
    cached, direct = Stage(manifest, tmp_path), Stage(manifest, tmp_path)
    data = cached.data()
    losses = cached.losses(data.feature_batches(cached.draws(0, 40)))
    assert losses == pytest.approx(direct.losses(direct.images(0, 40)), rel=2e-3)
    assert losses[-1] < 0.9 * losses[0]
    emb_ND = embed_rows(Accelerator(), cached.task.embedder, data.val_rows)
    for one in (cached, direct):
        np.testing.assert_allclose(emb_ND, one.val_embeddings(), atol=5e-3)


def test_batches_are_those_of_images_and_the_same_on_resume(
    manifest: Manifest, kept: Path, computed: list
) -> None:
    one, again = Stage(manifest, kept), Stage(manifest, kept)
    whole = list(one.data().feature_batches(one.draws(0, 20)))
    late = again.data().feature_batches(again.draws(17, 20))
    for ours, batch in zip(late, whole[17:], strict=True):
        for name in ("label_B", "row_B", "shapes_B3", "feat_BF"):
            assert torch.equal(getattr(ours, name), getattr(batch, name))
    assert computed == []  # all of it comes from the store
    (images,) = one.images(17, 18)
    batch = whole[17]
    assert torch.equal(batch.label_B, images.label_B) and torch.equal(batch.row_B, images.row_B)
    with torch.inference_mode():
        feat_BF = one.backbone.eval()(images.images_BCHW)
    torch.testing.assert_close(batch.feat_BF, feat_BF, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(batch.shapes_B3, images.shapes_B3.float(), atol=1e-3, rtol=1e-3)
    assert {value.dtype for value in (batch.feat_BF, batch.shapes_B3)} == {torch.float32}


def test_views_come_in_turn(manifest: Manifest, kept: Path) -> None:
    """An image's first, second ... draw, whatever its domain's share, is of view 0, 1, 2, 0 ..."""
    one = Stage(manifest, kept)
    data, numbers = one.data(), {}
    for batch in data.feature_batches(one.draws(0, 40)):
        for row, feat_F in zip(batch.row_B.tolist(), batch.feat_BF.numpy(), strict=True):
            views = [np.array_equal(feat_F, view[row][:-3]) for view in data.views]
            numbers.setdefault(row, []).append(int(np.argmax(views)))
            assert sum(views) == 1
    for drawn in numbers.values():
        whole = len(drawn) // 3 * 3
        assert sorted(drawn[:whole]) == sorted([0, 1, 2] * (whole // 3))
    assert max(map(len, numbers.values())) >= 6


@pytest.mark.slow
def test_more_views_add_and_others_are_kept_apart(
    manifest: Manifest, computed: list, tmp_path: Path
) -> None:
    def views_of(**changes: Any) -> list[int]:
        computed.clear()
        Stage(manifest, tmp_path, **changes).data()
        return sorted({view for view, _ in computed})

    assert views_of(cached_views=2) == [0, 1]
    assert views_of(cached_views=3) == [2]
    assert views_of(cached_views=1, augment={"flip": 0.2, "color": 0.3}) == [0]
    assert views_of(cached_views=1, seed=1) == [0]
    assert views_of(cached_views=2, lr={"head": 1e-4, "classes": 1e-4}) == []


def test_a_view_depends_on_its_number_the_seed_and_its_image_alone(
    manifest: Manifest, kept: Path, tmp_path: Path
) -> None:
    first, second, _ = (np.asarray(view) for view in Stage(manifest, kept).data().views)
    other = np.asarray(Stage(manifest, tmp_path, seed=1, cached_views=1).data().views[0])
    for one, two in ((first, second), (first, other)):
        assert (np.abs(one - two)[:, :-3].max(axis=1) > 1e-3).mean() > 0.95
        np.testing.assert_array_equal(one[:, -3:], two[:, -3:])  # the image's own shape
    half = manifest.table.iloc[1::2].reset_index(drop=True)
    few = Manifest(half, manifest.root, manifest.path, manifest.sidecar)
    fewer = Stage(few, tmp_path / "few")
    rows = pd.Index(training_rows(manifest)["image_path"]).get_indexer(fewer.dataset.paths)
    np.testing.assert_allclose(np.asarray(fewer.data().views[1]), second[rows], atol=1e-3)


def test_features_beyond_float16_and_a_full_disk_are_refused(
    manifest: Manifest, computed: list, tmp_path: Path, monkeypatch, capsys
) -> None:
    one = Stage(manifest, tmp_path / "large")
    with torch.no_grad():
        one.backbone.tower.proj.mul_(1e6)
    with pytest.raises(UserError, match=r"jpg: a feature has magnitude [\d,]+; .*float16"):
        one.data()
    assert not list(tmp_path.rglob("*.npy"))
    one = Stage(manifest, tmp_path)
    wanted = 3 * len(one.dataset) * (128 + 3) * 2
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, wanted - 1))
    with pytest.raises(UserError, match=rf"need {wanted:,} bytes, {wanted - 1:,} are free"):
        one.data()
    assert computed == [] and f"{wanted / 1e6:,.1f} MB" in capsys.readouterr().out
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, wanted))
    one.data()
