"""The hub folder: the code in its card runs with a library that knows nothing of this package."""

import json
import re
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import export
from exported import RESNET, TINY_VIT
from guie.base.errors import UserError
from guie.config.model import HeadConfig
from guie.export.hub import head_recipe, listing, write_hub_folder
from guie.models import open_model
from guie.models.embedder import Embedder
from guie.models.head import Head, Reduction
from guie.models.opening import composed
from tiny_runs import TINY_CLIP, tiny_run


def to_hub(run: Path, out: Path, *more: str) -> None:
    export.main(["--run", str(run), "--out", str(out), "--format", "hub", *more])


def picture(folder: Path) -> torch.Tensor:
    """A smooth picture.png, for which two resizes agree; uint8 (1, 3, H, W)."""
    y, x = np.mgrid[0:90, 0:70] / 20.0
    pixels = np.stack([np.sin(x + y), np.cos(x), np.sin(y)], -1)
    Image.fromarray((127.5 + 127.5 * pixels).astype(np.uint8)).save(folder / "picture.png")
    pixels = np.array(Image.open(folder / "picture.png"))
    return torch.from_numpy(pixels).permute(2, 0, 1)[None]


@pytest.mark.parametrize(
    ("backbone", "image", "head"),
    [
        (TINY_VIT, {"fit": "squash"}, {"dim": 8, "norm": "bn"}),
        (TINY_VIT, {"fit": "pad"}, None),
        (RESNET, {"fit": "crop"}, {"dim": 8, "norm": "bn", "image_shape": True}),
        (TINY_CLIP, {"fit": "pad", "pad_color": "black"}, {"dim": 8}),
        ({**TINY_CLIP, "features": "pooled"}, {"fit": "crop"}, {"dim": 8}),
    ],
    ids=["ViT", "ViT without head", "ResNet", "CLIP on black", "CLIP pooled"],
)
def test_the_cards_code_gives_the_models_embedding(
    backbone: dict, image: dict, head: dict | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {"size_px": 32, **image}
    run = tiny_run(tmp_path / "run", moved=0.02, backbone=backbone, head=head, image=image)
    to_hub(run, tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert "guie" not in code and (tmp_path / "hub/head/model.safetensors").exists() == bool(head)
    images, model = picture(tmp_path), open_model(run)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("picture.jpg", "picture.png"), names)

    def similarity(pixels: torch.Tensor) -> float:
        with torch.no_grad():
            return torch.cosine_similarity(names["x"], model.scored(pixels)).item()

    assert similarity(images) > 0.999 > similarity(255 - images)  # PIL resizes in 8 bits
    if image["fit"] == "pad":  # the border's colour counts
        model.preprocess.pad_level = 255.0 - model.preprocess.pad_level
        assert similarity(images) < 0.999


@pytest.mark.parametrize(
    "head",
    [
        {"norm": "l2"},
        {"norm": "none", "bias": False},
        {"norm": "bn"},
        {"norm": "bn_plain", "bias": False, "hidden": [7, 5]},
        {"norm": "bn", "hidden": [7, 5], "activation": "gelu"},
        {"norm": "bn", "image_shape": True},
        {"norm": "l2", "parts": 2},
        {"norm": "l2", "reduced_dim": 3},
    ],
    ids=str,
)
def test_head_lines_are_the_head(head: dict) -> None:
    torch.manual_seed(0)
    config = HeadConfig.model_validate({"dim": 4, **head})
    tower = nn.Identity()
    tower.dim = 6
    reduction = Reduction(4, 3) if config.reduced_dim else None
    embedder = Embedder(tower, Head(config, 6), reduction).eval()
    for tensor in embedder.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(torch.rand_like(tensor))  # variances stay positive
    features, height, width = torch.randn(1, 6), 60, 90
    tensors, lines = head_recipe(embedder)
    names = {"x": features, "head": tensors, "F": nn.functional, "torch": torch}
    exec("\n".join(lines), names | {"height": height, "width": width}, names)
    shapes = torch.tensor([[height / width, height / 224, width / 224]])
    with torch.no_grad():
        torch.testing.assert_close(names["x"], embedder(features, shapes), atol=1e-6, rtol=1e-5)


def test_a_model_that_the_library_lacks_is_refused(tmp_path: Path) -> None:
    adapters = [{"kind": "adaptformer", "dim": 2}]
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT, adapters=adapters)
    with pytest.raises(UserError, match="adapters, which timm does not support"):
        to_hub(run, tmp_path / "hub")
    model = open_model(tiny_run(tmp_path / "plain", backbone=TINY_VIT))
    with pytest.raises(UserError, match="one backbone, and this model has several"):
        write_hub_folder(composed([model, model]), tmp_path / "hub", {})
    model.embedder.backbone.tower.norm.eps = 0.1  # like an argument that the config format lacks
    with pytest.raises(UserError, match="timm returns other features with the same weights"):
        write_hub_folder(model, tmp_path / "hub", {})
    assert not list((tmp_path / "hub").iterdir())


def test_a_dry_run_lists_the_files_without_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", None)
    run, out = tiny_run(tmp_path / "run", backbone=TINY_VIT), tmp_path / "hub"
    to_hub(run, out, "--push", "me/tiny", "--dry-run")
    (out / "diary.txt").write_text("mine")
    printed = capsys.readouterr().out
    names = ["README.md", "config.json", "head/model.safetensors", "model.safetensors"]
    assert re.findall(r"to upload to me/tiny: (\S+), [\d,]+ bytes", printed) == names
    assert [name for name, _ in listing(out)] == names
    assert json.loads((out / "config.json").read_text())["architecture"] == "vit_tiny_patch16_224"
    for wrong in ("tiny", "me/ti ny", "a/b/c"):
        with pytest.raises(UserError, match="--push"):  # before it looks for a run
            to_hub(tmp_path / "nowhere", out, "--push", wrong)


def test_files_that_no_export_wrote_are_kept(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path / "run", backbone=TINY_VIT), tmp_path / "hub"
    out.mkdir()
    (out / "README.md").write_text("mine")
    with pytest.raises(UserError, match="hub: contains README.md, which export.py did not write"):
        to_hub(run, out)
    assert [path.read_text() for path in out.iterdir()] == ["mine"]
    with pytest.raises(UserError, match="run: contains model.safetensors, which export.py did"):
        to_hub(run, run)
    (out / "README.md").unlink()
    to_hub(run, out)
    to_hub(run, out)  # it may replace its own files
