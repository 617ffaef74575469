"""Files above 2 and 4 GiB in PyTorch 1.11 itself; skipped if it was not downloaded."""

import zipfile
from pathlib import Path

import pytest
import timm
from architectures import Encoder, build
from check import TOLERANCE, compare
from runtime import WHEEL, compiled, fetched

from guie.data.preprocess import Preprocess
from guie.export.torchscript import StoredZip, downgrade, package
from guie.models.opening import ExportModule

CACHE = Path(__file__).parents[2] / ".cache/torch-1.11"
GIB = 2**30

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loader() -> Path:
    if not (CACHE / WHEEL).is_file():
        pytest.skip("no PyTorch 1.11: `make torch111` downloads it")
    return compiled(fetched(CACHE))


def exported(encoder: Encoder, size_px: int, path: Path) -> ExportModule:
    """Write the file as it is submitted; return the model whose embeddings it must give."""
    preprocess = Preprocess(size_px, [0.5] * 3, [0.25] * 3, "squash")
    package(encoder, preprocess, path)
    downgrade(path)
    return ExportModule(preprocess, encoder)


@pytest.mark.parametrize("start", [2 * GIB, 3 * GIB, 4 * GIB - 1000, 4 * GIB, 9 * GIB])
def test_records_are_found_wherever_they_begin(start: int, loader: Path, tmp_path: Path) -> None:
    path, moved = tmp_path / "saved_model.pt", tmp_path / "moved.pt"
    model = exported(*build("timm ViT"), path)
    with zipfile.ZipFile(path) as old, moved.open("wb") as file:
        file.seek(start)
        new = StoredZip(file)
        for record in old.infolist():
            with old.open(record) as data:
                new.add(record.filename, data, record.file_size, record.CRC)
        new.close()
    assert compare(loader, model, moved, 40) <= TOLERANCE


def test_a_model_above_2_gib(loader: Path, tmp_path: Path) -> None:
    """One block 7,168 wide: 616 M parameters, 5 GB of memory."""
    sizes = {"img_size": 32, "embed_dim": 7168, "depth": 1, "num_heads": 56, "num_classes": 0}
    encoder = Encoder(timm.create_model("vit_tiny_patch16_224", **sizes), 32)
    path = tmp_path / "saved_model.pt"
    model = exported(encoder, 32, path)
    assert path.stat().st_size > 2 * GIB
    assert compare(loader, model, path, 32) <= TOLERANCE
