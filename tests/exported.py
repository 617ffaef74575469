"""Small backbones to export, and a check that the challenge's runtime answers like the model."""

from pathlib import Path

from guie.data.preprocess import Preprocess
from guie.export.operators import check_operators
from guie.export.parity import parity
from guie.export.torchscript import downgrade, package
from guie.models.embedder import Embedder
from guie.models.opening import ExportModule
from scorer.archive import MAX_FORMAT_VERSION, format_version
from scorer.runtime import check_runtime

TINY_VIT = {
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 1, "num_heads": 3},
}
RESNET = {
    "library": "timm",
    "name": "resnet18",
    "kwargs": {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8]},
}


def check_exported(embedder: Embedder, preprocess: Preprocess, folder: Path) -> None:
    path = folder / "saved_model.pt"
    package(embedder, preprocess, path)
    downgrade(path)
    check_runtime(path)
    assert check_operators(path) == [] and format_version(path) <= MAX_FORMAT_VERSION
    [row] = parity(ExportModule(preprocess, embedder), path, [(61, 97)])
    assert row["difference"] <= 1e-5
