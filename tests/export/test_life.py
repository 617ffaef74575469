"""Files for use outside the challenge: .pt2 here, ONNX if onnxruntime is installed (`make formats`)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import export
from exported import RESNET, TINY_VIT
from guie.base.errors import UserError
from guie.data.preprocess import Preprocess
from guie.export import formats
from guie.export.formats import exported_program, open_onnx
from guie.models import open_model
from guie.models.opening import ExportModule, composed
from tiny_runs import tiny_run
from torch111.architectures import ARCHITECTURES, build

SHAPED = {"dim": 8, "norm": "bn", "image_shape": True}


@pytest.fixture
def onnxruntime() -> None:
    """With it there is also a PyTorch that can export pad and crop."""
    pytest.importorskip("onnxruntime", reason="make formats has it")


def written(kind: str, run: Path, out: Path) -> dict:
    export.main(["--run", str(run), "--out", str(out), "--format", kind])
    return json.loads((out / f"model.{kind}.json").read_text())


def cards_embedding(card: Path) -> torch.Tensor:
    """The embedding of picture.jpg by the card's code, in a process without this package."""
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    ahead = 'import sys\nsys.modules["guie"] = None\n'
    behind = '\nnp.save("x.npy", np.asarray(x.detach() if hasattr(x, "detach") else x))\n'
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", ahead + code + behind]
    subprocess.run(command, cwd=card.parent, check=True, env=environment)
    return torch.from_numpy(np.load(card.parent / "x.npy"))


# torch 2.7 loses the least side of 2 px, so that the export of `fit: pad` is refused
ON_BLACK = {} if torch.__version__.startswith("2.7.") else {"fit": "pad", "pad_color": "black"}


def test_a_program_takes_any_number_of_images_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [(1, 1), (1, 2000), (2000, 1), (32, 32), (33, 31), (64, 42)]  # large ones take the time
    monkeypatch.setattr(formats, "odd_sizes", lambda size_px: few)
    image = {"size_px": 32, **ON_BLACK}
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT, head=SHAPED, image=image)
    facts = written("pt2", run, tmp_path)
    assert {row["images"] for row in facts["made"]["parity"] if "images" in row} == {3}
    assert all(row["difference"] <= 1e-5 for row in facts["made"]["parity"])
    saved, model = torch.export.load(tmp_path / "model.pt2").module(), open_model(run).scored
    for shape in [(1, 3, 1, 1), (2, 3, 9, 200), (7, 3, 64, 48)]:
        images = torch.randint(0, 256, shape, dtype=torch.uint8)
        with torch.no_grad():
            torch.testing.assert_close(saved(images), model(images), atol=1e-5, rtol=0)
    assert str(Path(export.__file__).parent).encode() not in (tmp_path / "model.pt2").read_bytes()


class Identity(torch.nn.Module):
    """An encoder that returns the preprocessed images."""

    def forward(self, prepared: torch.Tensor, shapes: torch.Tensor) -> torch.Tensor:
        return prepared


def test_a_model_that_chooses_by_size_is_refused(tmp_path: Path) -> None:
    class Choosing(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.float().mean((2, 3)) * (2 if images.size(2) > images.size(3) else 1)

    scored = ExportModule(Choosing(), Identity())
    model = SimpleNamespace(scored=scored, preprocess=SimpleNamespace(size_px=32), source="run")
    with pytest.raises(UserError, match="run: .*2000 x 1.*branches on the image size") as refused:
        formats.write_format("pt2", model, tmp_path)
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_a_file_that_differs_is_refused_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.pt2").write_text("old")
    (tmp_path / "model.pt2.json").write_text("{}")  # it is of an earlier export
    monkeypatch.setattr(formats, "exported_program", lambda model, source: torch.fx.Graph())
    monkeypatch.setattr(formats, "write_program", lambda program, path: path.write_text("new"))
    monkeypatch.setattr(formats, "open_program", lambda path: lambda images: torch.zeros(1, 16))
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT)
    with pytest.raises(UserError, match=r"at 1 x 1 model\.pt2 differs from the trained model by"):
        written("pt2", run, tmp_path)
    assert (tmp_path / "model.pt2").read_text() == "old" and len(list(tmp_path.iterdir())) == 3


def test_without_the_extra_it_says_how_to_install_it(tmp_path: Path, monkeypatch) -> None:
    for name, module in (("onnxruntime", None), ("onnx", sys), ("onnxscript", sys)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(UserError, match="no module onnxruntime, .*requirements/export.txt"):
        written("onnx", tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- with onnxruntime: make formats


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_the_cards_code_runs_without_this_package(kind: str, tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT, head=SHAPED)
    written(kind, run, tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (70, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "picture.jpg")
    pixels = np.array(Image.open(tmp_path / "picture.jpg"))
    with torch.no_grad():
        expected = open_model(run).scored(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    written_bytes = (tmp_path / f"model.{kind}").read_bytes()
    assert str(Path(export.__file__).parent).encode() not in written_bytes
    found = cards_embedding(tmp_path / f"model.{kind}.md")
    torch.testing.assert_close(found, expected, atol=formats.FORMATS[kind], rtol=0)


@pytest.mark.usefixtures("onnxruntime")
def test_an_operator_without_a_translation_is_named(tmp_path: Path) -> None:
    class Eigen(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            colour = images.float().mean((2, 3))
            return torch.linalg.eigvals(colour[:, :, None] * colour[:, None]).real

    program = exported_program(ExportModule(Eigen(), Identity()), "run")
    with pytest.raises(UserError, match="no translation to ONNX: .*eig") as refused:
        formats.write_onnx(program, tmp_path / "model.onnx")
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("onnxruntime")
def test_weights_above_2_gb_are_in_a_file_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT)
    with monkeypatch.context() as patched:
        limit = "torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD"
        patched.setattr(limit, 1000)
        facts = written("onnx", run, tmp_path)
    data = tmp_path / "model.onnx.data"
    assert facts["made"]["data"]["bytes"] == data.stat().st_size > 100_000
    assert facts["made"]["data"]["sha256"] in (tmp_path / "model.onnx.md").read_text()
    images = torch.zeros(1, 3, 5, 5, dtype=torch.uint8)
    with torch.no_grad():
        found, expected = open_onnx(tmp_path / "model.onnx")(images), open_model(run).scored(images)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert written("onnx", run, tmp_path)["made"]["data"] is None and not data.exists()


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_an_ensemble_is_one_file(kind: str, tmp_path: Path) -> None:
    crop, large = {"size_px": 32, "fit": "crop"}, {"size_px": 40}
    one = tiny_run(tmp_path / "a", backbone=TINY_VIT, head=SHAPED, image=crop)
    other = tiny_run(tmp_path / "b", backbone=RESNET, head={"dim": 4}, size_px=40, image=large)
    made = formats.write_format(kind, composed([open_model(one), open_model(other)]), tmp_path)
    assert max(row["difference"] for row in made["parity"]) <= made["tolerance"]


@pytest.mark.usefixtures("onnxruntime")
@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "overlapping" not in name])
def test_every_architecture_in_every_format(name: str, tmp_path: Path) -> None:
    encoder, size_px = build(name)
    model = ExportModule(Preprocess(size_px, [0.5] * 3, [0.25] * 3, "pad"), encoder)
    program = exported_program(model, name)
    sizes = [(1, 2000), (size_px + 1, size_px - 1)]
    formats.write_program(program, tmp_path / "model.pt2")
    formats.write_onnx(program, tmp_path / "model.onnx")
    answers = {"pt2": formats.open_program(tmp_path / "model.pt2")}
    answers["onnx"] = open_onnx(tmp_path / "model.onnx")
    for kind, answer in answers.items():
        rows = formats.differences(model, answer, sizes, images=2)
        assert max(row["difference"] for row in rows) <= formats.FORMATS[kind], kind
