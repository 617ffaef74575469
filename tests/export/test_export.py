"""A run becomes a submission: one file in a zip, a card, the facts; or is refused in one line."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import export
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.config.loading import parsed, to_yaml
from guie.export import submission
from guie.export.card import without_folders
from guie.models import narrowed, open_model
from guie.models.embedder import build_embedder
from guie.models.weights import save_model
from guie.training.run_folder import write_record
from scorer.archive import MAX_FORMAT_VERSION

TINY_CLIP = {"library": "open_clip", "name": "guie-tiny"}
TINY_VIT = {
    "library": "timm",
    "name": "vit_tiny_patch16_224",
    "kwargs": {"embed_dim": 48, "depth": 1, "num_heads": 3},
}
RMS_VIT = {**TINY_VIT, "kwargs": {**TINY_VIT["kwargs"], "norm_layer": "rmsnorm"}}


def make_run(folder: Path, backbone: dict = TINY_CLIP, head: dict | None = None, **model) -> Path:
    """A run folder as train.py leaves it, with random weights."""
    rates = {"classes": 1e-2} | ({"head": 3e-3} if head else {})
    config = config_from(
        {
            "name": folder.name,
            "data": {"manifest": "input/demo/manifest.csv"},
            "model": {"backbone": backbone, "image": {"size_px": 32}, "head": head, **model},
            "train": {"epochs": 2, "lr": rates},
        },
        RunConfig,
    )
    write_record(folder, config)
    torch.manual_seed(0)
    save_model(build_embedder(config.model), folder / "model.safetensors", 32)
    lines = [{"step": 10, "stage": "train", "loss": 3.5}]
    for step, score in ((20, 0.25), (40, 0.75), (60, 0.5)):
        scores = {"val_r_at_1": score, "val_mmp_at_5": score / 2, "val_r_at_1/toys": score}
        lines.append({"step": step, "stage": "train", **scores})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def few_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All odd sizes are compared in the first test alone: they are most of an export's time."""
    if request.function is not test_a_run_becomes_a_submission:
        monkeypatch.setattr(
            "guie.export.submission.odd_sizes", lambda size_px: [(1, 99), (size_px, size_px)]
        )


def main(run: Path, out: Path, *more: str) -> None:
    export.main(["--run", str(run), "--out", str(out), *more])


@pytest.mark.parametrize("head", [{"dim": 48, "norm": "bn"}, {"dim": 48, "bias": False}])
def test_the_first_numbers_are_kept(tmp_path: Path, head: dict) -> None:
    run = make_run(tmp_path / "run", head=head)
    image = torch.randint(0, 256, (1, 3, 40, 33), dtype=torch.uint8)
    with torch.inference_mode():
        first = open_model(run).scored(image)[:, :16]
        cut = narrowed(open_model(run), 16).scored(image)
    torch.testing.assert_close(cut, first / first.norm(dim=1, keepdim=True))


@pytest.mark.parametrize(
    ("head", "dim", "message"),
    [
        ({"dim": 48}, "48", "cannot keep 48 numbers, for it has 48 numbers; give fewer"),
        (None, "8", "cannot keep 8 numbers, for it has no head; give fewer"),
        ({"dim": 48, "reduced_dim": 32}, "8", "its head has a reduction; reduce it by compose.py"),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused(
    tmp_path: Path, head: dict | None, dim: str, message: str
) -> None:
    run = make_run(tmp_path / "run", head=head)
    with pytest.raises(UserError, match=message):
        main(run, tmp_path / "out", "--dim", dim)
    assert not (tmp_path / "out").exists()


def test_a_run_becomes_a_submission(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, out = make_run(tmp_path / "run", head={"dim": 48, "norm": "bn"}), tmp_path / "out"
    main(run, out)
    assert "48-D" in capsys.readouterr().out

    with zipfile.ZipFile(out / "submission.zip") as archive:
        (member,) = archive.infolist()
        assert (member.filename, member.compress_type) == ("saved_model.pt", zipfile.ZIP_STORED)
        saved = torch.jit.load(io.BytesIO(archive.read(member)))
    model = open_model(run)
    images = torch.randint(0, 256, (1, 3, 50, 31), dtype=torch.uint8)
    with torch.no_grad():
        expected, found = model.embedder(model.preprocess(images)), saved(images)
    assert found.shape == (1, 48) and found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    facts = json.loads((out / "export.json").read_text())
    assert facts["dimension"] == 48
    assert facts["torchscript"]["format"] <= MAX_FORMAT_VERSION
    assert facts["file"]["bytes"] == (out / "submission.zip").stat().st_size
    assert facts["validation"]["step"] == 40
    assert all(row["difference"] <= 1e-5 for row in facts["torchscript"]["parity"])
    card = (out / "card.md").read_text()
    for words in (
        *("guie-tiny", "squash to 32 px", facts["file"]["sha256"], "R@1 0.750", "| toys | 0.750 |"),
        *("2 epochs of batch 128 at 32 px, all domains", "| 1 x 2000 |", "PyTorch 1.11"),
        "--submission out/submission.zip",
    ):
        assert words in card
    assert "overlapping" not in card

    model.embedder.head.linear.weight.data[0, 0] = float("nan")
    save_model(model.embedder, run / "model.safetensors", 32)
    before = (out / "submission.zip").read_bytes()
    with pytest.raises(UserError, match="differs from the trained model by nan"):
        main(run, out)
    assert (out / "submission.zip").read_bytes() == before


def test_card_and_facts_name_no_place_of_the_machine_and_quote_a_folder_for_the_shell(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "my weights" / "tower.safetensors"
    run, out = make_run(tmp_path / "run", head={"dim": 8}), tmp_path / "x; touch PWN; y"
    (run / "metrics.jsonl").unlink()
    config = parsed((run / "config.yaml").read_text()).plain
    config["data"] = {"manifest": "input/mix.csv", "root": f"{tmp_path}/images/"}
    config["model"]["backbone"]["pretrained"] = str(weights)
    (run / "config.yaml").write_text(to_yaml(config))
    record = json.loads((run / "record.json").read_text())
    record["weights"] = {"file": weights.name, "sha256": "0123abcd", "from": str(weights)}
    record["command"] = [f"{tmp_path}/train.py", "--set", f"data.root={tmp_path}/images/"]
    (run / "record.json").write_text(json.dumps(record))
    main(run, out)
    text, card = (out / "export.json").read_text(), (out / "card.md").read_text()
    assert str(tmp_path) not in text + card
    facts = json.loads(text)
    assert facts["record"]["command"] == ["train.py", "--set", "data.root=images"]
    assert facts["models"][0]["run"]["data"]["root"] == "images"
    assert facts["models"][0]["run"]["data"]["manifest"] == "input/mix.csv"
    assert "| Pretrained weights | `tower.safetensors`, SHA-256 `0123abcd` |" in card
    assert "not validated" in card
    command = card.partition("```\npython src/score.py ")[2].partition("```")[0]
    words = shlex.split(command.replace("\\\n", ""))
    assert words[::2] == ["--submission", "--manifest", "--out"] and "PWN" in words[1]
    assert without_folders("/a/b c, runs/d, /e") == "b c, runs/d, e"


def test_every_part_of_a_model_is_exported_for_1_11(tmp_path: Path) -> None:
    """As trained, within 1e-5, or the export refuses; and by operators that 1.11 has."""
    head = {"dim": 80, "reduced_dim": 8, "norm": "bn_plain", "bias": False}
    run, out = make_run(tmp_path / "run", {**TINY_VIT, "stride_px": 8}, head), tmp_path / "out"
    main(run, out)
    facts = json.loads((out / "export.json").read_text())
    assert facts["dimension"] == 8 and facts["torchscript"]["runtime"] == "1.11"
    assert facts["models"][0]["model"]["backbone"]["stride_px"] == 8
    assert "overlapping, one every 8 px" in (out / "card.md").read_text()


def test_the_file_takes_the_shape_of_the_image_given_and_keeps_the_first_numbers(
    tmp_path: Path,
) -> None:
    head = {"dim": 12, "norm": "bn", "image_shape": True}
    run = make_run(tmp_path / "run", head=head)
    main(run, tmp_path / "out", "--dim", "8")
    assert json.loads((tmp_path / "out/export.json").read_text())["dimension"] == 8
    with zipfile.ZipFile(tmp_path / "out" / "submission.zip") as archive:
        saved = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))
    model = open_model(run)

    def first(grey: Tensor, shapes: Tensor) -> Tensor:
        return functional.normalize(model.embedder(model.preprocess(grey), shapes)[:, :8], dim=1)

    for height, width in [(64, 32), (32, 64), (640, 320)]:
        grey = torch.full((1, 3, height, width), 99, dtype=torch.uint8)  # squashed, all are one
        shapes = torch.tensor([[height / width, height / 224, width / 224]])
        with torch.no_grad():
            torch.testing.assert_close(saved(grey), first(grey, shapes), atol=1e-5, rtol=0)
            assert not torch.allclose(saved(grey), first(grey, 2 * shapes))


def test_exporting_twice_gives_the_same_zip_members(tmp_path: Path) -> None:
    saved = tmp_path / "saved_model.pt"
    saved.write_bytes(b"x" * 3_000_000)
    for name in ("a.zip", "b.zip"):
        submission.write_zip(saved, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.read("saved_model.pt") == saved.read_bytes()


def test_the_last_weights_are_exported_when_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", head={"dim": 8})
    model = open_model(run)
    with torch.no_grad():
        model.embedder.head.linear.weight.neg_()
    save_model(model.embedder, run / "last.safetensors", 32)
    main(run, tmp_path / "last", "--weights", "last")
    facts = json.loads((tmp_path / "last" / "export.json").read_text())
    assert facts["validation"]["val_r_at_1"] == 0.5  # the best is 0.75
    image = torch.randint(0, 256, (1, 3, 40, 33), dtype=torch.uint8)
    with zipfile.ZipFile(tmp_path / "last/submission.zip") as archive, torch.inference_mode():
        saved = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))(image)
        torch.testing.assert_close(saved, model.scored(image), atol=1e-5, rtol=0)
        assert not torch.allclose(saved, open_model(run).scored(image), atol=1e-2)


def test_matrices_in_fp16_take_half_the_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", TINY_VIT, head={"dim": 8, "norm": "bn"})
    main(run, tmp_path / "half", "--half")
    with zipfile.ZipFile(tmp_path / "half" / "submission.zip") as archive:
        saved = torch.jit.load(io.BytesIO(archive.read("saved_model.pt")))
    full = open_model(run).embedder.state_dict().values()
    size = sum(tensor.nbytes for tensor in saved.state_dict().values())
    assert size < 0.55 * sum(tensor.nbytes for tensor in full)
    facts = json.loads((tmp_path / "half" / "export.json").read_text())["torchscript"]
    assert 0 < facts["rounding"] < 1e-2 and facts["format"] <= MAX_FORMAT_VERSION
    assert all(row["difference"] <= 1e-5 for row in facts["parity"])  # with weights as rounded
    assert "| Matrices in fp16 | change the embedding by" in (tmp_path / "half/card.md").read_text()


def test_what_fp16_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = make_run(tmp_path / "run", head={"dim": 8}), tmp_path / "out"
    model = open_model(run)
    model.embedder.head.linear.weight.data[0, 0] = 1e5
    save_model(model.embedder, run / "model.safetensors", 32)
    with pytest.raises(UserError, match=r"head\.linear\.weight: .* 100000 exceeds .*--half"):
        main(run, out, "--half")
    model.embedder.head.linear.weight.data[0, 0] = 0.5
    save_model(model.embedder, run / "model.safetensors", 32)
    monkeypatch.setattr(submission, "ROUNDING", 1e-9)
    with pytest.raises(UserError, match="weights in fp16 change the embedding by .*, above 1e-09"):
        main(run, out, "--half")
    assert not list(out.iterdir())


def test_more_than_64_dimensions_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")  # without a head: the backbone's 128
    with pytest.raises(UserError, match=r"128 dimensions.*64.*model\.head\.dim"):
        main(run, tmp_path / "out")


def test_what_pytorch_1_11_cannot_run_is_refused_but_for_todays(tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", RMS_VIT, head={"dim": 16}), tmp_path / "out"
    with pytest.raises(UserError, match=r"aten::rms_norm in timm.*--torch current") as refused:
        main(run, out)
    assert "\n" not in str(refused.value) and not list(out.iterdir())
    main(run, out, "--torch", "current")
    facts = json.loads((out / "export.json").read_text())
    assert facts["torchscript"]["runtime"] == "current"


@pytest.mark.parametrize(
    ("name", "words"),
    [("card.md", []), ("submission.zip", []), ("model.pt2", ["--format", "pt2"])],
)
def test_a_file_that_no_export_wrote_is_kept(name: str, words: list[str], tmp_path: Path) -> None:
    run, out = make_run(tmp_path / "run", head={"dim": 8}), tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name}: export.py did not write it; choose another"):
        export.main(["--run", str(run), "--out", str(out), *words])
    assert [path.read_text() for path in out.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--run r", "--run needs --out"),
        ("--run r --out o --user me", "--run: leave out --user"),
        ("--kaggle k --half", "--kaggle: leave out --half"),
        ("--run r --out o --format pt2 --half", "--half needs --format torchscript, not pt2"),
        ("--run r --out o --format hub --torch current", "--torch needs --format torchscript"),
        ("--run r --out o --dim 0", "--dim 0: must be 1 or more"),
        ("--run r --out o --push me/it", "--push uploads a hub folder: add --format hub"),
        ("--run r --out o --format hub --dry-run", "--dry-run and --public need --push"),
        ("--kaggle k --no-images", "--root and --no-images need --manifest"),
        ("--kaggle k --slug guie-demo", "--slug needs --user"),
        ("--kaggle k --leaderboard 1 1 1", "--leaderboard takes one or two scores"),
        ("--kaggle k --log log.png", "--log log.png: must end in .csv"),  # the plot's name
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        export.main(words.split())
    assert stopped.value.code == 2 and message in capsys.readouterr().err
