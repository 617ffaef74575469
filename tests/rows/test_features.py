"""Stored features: right rows, computed once, resumed, verified; precision and faults of embedding."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

import embed
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config.loading import parsed, to_yaml
from guie.evaluation.opened import embedding_precision
from guie.models import LoadedModel, open_model
from guie.models.opening import trained_precision
from guie.rows import embedding
from guie.rows.comparison import content
from guie.rows.embedding import OnDevices, embed_files, stored_features
from guie.rows.filling import fill
from guie.rows.states import States, keys
from guie.rows.store import Store
from tiny_runs import tiny_config, tiny_run


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


IMAGES = TensorDataset(torch.arange(80.0).reshape(40, 2))


class Identity(torch.nn.Module):
    dim = 2

    def forward(self, rows_BD: torch.Tensor) -> torch.Tensor:
        return rows_BD


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "BLOCK", 16)
    monkeypatch.setattr(embedding, "LEAST", 1)


@pytest.fixture(autouse=True)
def full_precision_afterwards() -> Iterator[None]:
    """An Accelerator of a later test would have the precision of the last one."""
    yield
    make_accelerator()


def slowly(monkeypatch, waiting) -> None:
    add = Store.add

    def slow(store, states, rows) -> None:
        waiting()
        add(store, states, rows)

    monkeypatch.setattr(Store, "add", slow)


@pytest.mark.parametrize("full_at", [0, 4])
def test_an_embedding_that_cannot_be_written_ends_at_the_next_batch(full_at, tmp_path, monkeypatch):
    """By the check that all processes share: the fault of one must end the others."""
    tried, checked = [], []

    def full() -> None:
        tried.append(1)
        if len(tried) > full_at:
            raise UserError("disk full")

    def check(fault: UserError | None) -> None:
        checked.append(fault)
        embedding.raise_fault(fault)

    slowly(monkeypatch, full)
    compute = OnDevices(Accelerator(), Identity(), IMAGES, 4, workers=0, check=check)
    monkeypatch.setattr(embedding, "LEAST", 5)
    with pytest.raises(UserError, match="disk full"):
        fill(Store(tmp_path, {}, np.float32), keys([f"{n}" for n in range(40)]), compute)
    assert isinstance(checked[-1], UserError) and not any(checked[:-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained in bf16."""
    folder = tiny_run(tmp_path_factory.mktemp("runs") / "tiny")
    written = parsed((folder / "config.yaml").read_text()).plain
    (folder / "config.yaml").write_text(to_yaml(written | {"precision": "bf16"}))
    return folder


@pytest.mark.parametrize(
    ("asked", "gpu", "expected"),
    [(None, False, None), (None, True, "bf16"), ("no", True, "no"), ("fp16", False, "fp16")],
)
def test_a_run_is_embedded_on_a_gpu_as_it_was_trained(asked, gpu, expected, run, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert embedding_precision(str(run), asked) == expected
    assert embedding_precision("timm:resnet50:a1_in1k", asked) == asked
    assert embedding_precision("a/submission.zip", asked) == asked


@pytest.mark.parametrize(
    ("precisions", "expected"), [(["bf16", "bf16"], "bf16"), (["bf16", "fp16"], "no")]
)
def test_an_ensemble_is_embedded_as_all_its_members_were_trained(precisions, expected, tmp_path):
    run = tiny_config(tmp_path / "run").model_dump()
    members = [
        {"source": "run", "model": run["model"], "run": run | {"precision": precision}}
        for precision in precisions
    ]
    (tmp_path / "composition.yaml").write_text(to_yaml({"members": members}))
    assert trained_precision(tmp_path) == expected


def test_the_precision_asked_for_is_used_and_known_by(run: Path, toy_manifest, tmp_path) -> None:
    table = pd.read_csv(toy_manifest)
    table[table["split"] == "test"].head(12).to_csv(tmp_path / "few.csv", index=False)
    words = ["--model", str(run), "--manifest", str(tmp_path / "few.csv"), "--split", "test"]
    words += ["--root", str(toy_manifest.parent), "--workers", "0"]
    words += ["--out", str(tmp_path / "E.npz")]
    found = {}
    for precision in ([], ["--precision", "no"], ["--precision", "bf16"]):
        with np.load(embed.main([*words, *precision])) as file:
            found[" ".join(precision)] = file["embedding"]
    plain_ND, full_ND, half_ND = found.values()
    assert np.array_equal(plain_ND, full_ND), "the default on a CPU"
    assert not np.array_equal(half_ND, full_ND)
    assert ((half_ND * full_ND).sum(axis=1) > 0.999).all()
