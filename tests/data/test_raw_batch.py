"""Images that a loader only decodes, and the device preprocesses: the same bits as in a loader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from pictures import SIZES, jpeg, preprocess
from PIL import Image

from guie.base.errors import UserError
from guie.data import loader
from guie.data.dataset import EvalDataset, as_batch
from guie.data.images import open_as_host
from guie.data.loader import RawImages, packed
from guie.data.manifest.companions import Box
from guie.data.preprocess import Inputs, ViewSpec
from guie.models import open_model
from guie.rows import embedding
from guie.rows.embedding import embed_dataset, embed_files

HALF = (0.5, 0.5, 0.5)
LOOKS = Inputs([ViewSpec(32, HALF, HALF), ViewSpec(20, HALF, HALF, "pad", part=0.8, flip=True)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twenty images: every odd size twice, and photographs."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number, (width, height) in enumerate([*SIZES, *SIZES]):
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    for number in range(14, 20):
        jpeg(folder / f"{number}.jpg", size=(300 + number % 2, 200))
    return sorted(folder.iterdir())


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that preprocesses like a GPU."""
    monkeypatch.setattr(embedding, "PREPROCESSING", ("cpu",))


@pytest.mark.parametrize("large_bytes", [10**9, 30_000, 0])
@pytest.mark.parametrize("fit", ["squash", "pad", "pad on black", "crop", "views"])
def test_a_batch_is_that_of_a_loader(
    files: list[Path], fit: str, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "LARGE_BYTES", large_bytes)
    made_by = LOOKS if fit == "views" else preprocess(fit)
    boxes = [None, None, Box(2, 3, 300, 250), *[None] * 17]
    dataset = EvalDataset(files, made_by, boxes)
    raw = packed([RawImages(dataset)[n] for n in range(len(files))])
    sizes = [dataset.pixels(n).nbytes for n in range(len(files))]
    assert len(raw.pixels_N) == sum(size for size in sizes if size <= large_bytes)
    inputs, shapes_B3 = raw.prepared(made_by)
    expected = [dataset[n] for n in range(len(files))]
    assert torch.equal(inputs, torch.stack([one for one, _ in expected]))
    assert torch.equal(shapes_B3, torch.stack([shape for _, shape in expected]))


class Channels(torch.nn.Module):
    """The mean of each channel, and the shape of the original."""

    dim = 6

    def forward(self, images_BCHW: torch.Tensor, shapes_B3: torch.Tensor) -> torch.Tensor:
        return torch.cat([images_BCHW.mean((2, 3)), shapes_B3], dim=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_embeddings_do_not_depend_on_who_preprocesses(
    files: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "PIECE", 3)
    dataset, settings = EvalDataset(files, preprocess("pad")), {"batch_size": 7}
    expected = embed_dataset(Accelerator(), Channels(), dataset, workers=0, **settings)
    monkeypatch.setattr(embedding, "PREPROCESSING", ("cpu",))

    def refused(self, index: int) -> None:
        raise AssertionError("a loader preprocessed")

    monkeypatch.setattr(EvalDataset, "__getitem__", refused)
    found = embed_dataset(Accelerator(), Channels(), dataset, workers=workers, **settings)
    assert np.array_equal(found, expected)


def test_embeddings_are_those_of_the_module_that_is_exported(
    files: list[Path], on_device: None
) -> None:
    torch.manual_seed(0)
    model = open_model("open_clip:guie-tiny", 32, "crop")
    found_ND = embed_files(Accelerator(), model.embedder, model.preprocess, files, workers=0)
    scripted = torch.jit.script(model.preprocess)
    for file, emb_D in zip(files, found_ND, strict=True):
        image_1CHW = as_batch(np.asarray(open_as_host(file)))
        with torch.inference_mode():
            exported_D = model.embedder(scripted(image_1CHW))[0].numpy()
        np.testing.assert_allclose(emb_D, exported_D, atol=2e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_known_a_batch_ahead(
    files: list[Path], tmp_path: Path, workers: int, on_device: None
) -> None:
    """So that all processes stop before the same batch, wherever in theirs it is."""
    (tmp_path / "bad.png").write_bytes(files[0].read_bytes()[:40])
    faults: list[UserError | None] = []

    def check(fault: UserError | None) -> None:
        faults.append(fault)
        if fault:
            raise fault

    dataset = EvalDataset([*files, tmp_path / "bad.png"], preprocess())
    settings = {"batch_size": 5, "workers": workers, "check": check}
    with pytest.raises(UserError, match="bad.png: not a readable image"):
        embed_dataset(Accelerator(), Channels(), dataset, **settings)
    assert [bool(fault) for fault in faults] == [False, False, False, False, True]
