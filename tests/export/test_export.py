"""A run becomes a submission: one file in a zip, a card, the facts; or is refused in one line."""

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
from exported import TINY_VIT
from guie.base.errors import UserError
from guie.config.loading import parsed, to_yaml
from guie.export import submission
from guie.export.card import without_folders
from guie.models import open_model
from guie.models.embedder import build_embedder
from guie.models.weights import save_model
from scorer.archive import MAX_FORMAT_VERSION
from tiny_runs import tiny_config, tiny_run

RMS_VIT = {**TINY_VIT, "kwargs": {**TINY_VIT["kwargs"], "norm_layer": "rmsnorm"}}
SMALL = {"dim": 8}


def exported(run: Path, *words: str) -> tuple[torch.jit.ScriptModule, dict, str]:
    """The saved model, the facts and the card of an export next to the run."""
    out = run.with_name("out")
    export.main(["--run", str(run), "--out", str(out), *words])
    with zipfile.ZipFile(out / "submission.zip") as archive:
        (member,) = archive.infolist()
        assert (member.filename, member.compress_type) == ("saved_model.pt", zipfile.ZIP_STORED)
        saved = torch.jit.load(io.BytesIO(archive.read(member)))
    return saved, json.loads((out / "export.json").read_text()), (out / "card.md").read_text()


def log_scores(run: Path, *scores: float) -> None:
    """Write metrics.jsonl, with one validation a step."""
    with (run / "metrics.jsonl").open("w") as file:
        for step, score in enumerate(scores, 1):
            line = {"val_r_at_1": score, "val_mmp_at_5": score / 2, "val_r_at_1/toys": score}
            print(json.dumps({"step": step, "loss": 3.5}), file=file)
            print(json.dumps({"step": step, **line}), file=file)


def change_weight(run: Path, value: float) -> None:
    """Write the run's model with another first weight of its head."""
    model = open_model(run)
    model.embedder.head.linear.weight.data[0, 0] = value
    save_model(model.embedder, run / "model.safetensors")


@pytest.fixture(autouse=True)
def few_sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all odd sizes in the first test alone, because they take most of an export's time."""
    if request.function is not test_a_run_becomes_a_submission:
        monkeypatch.setattr(
            submission.parity, "odd_sizes", lambda size_px: [(1, 99), (size_px, size_px)]
        )


def test_a_run_becomes_a_submission(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, out = tiny_run(tmp_path / "run", head={"dim": 48, "norm": "bn"}), tmp_path / "out"
    log_scores(run, 0.25, 0.75, 0.5)
    saved, facts, card = exported(run)
    assert "48-D" in capsys.readouterr().out
    model = open_model(run)
    images = torch.randint(0, 256, (1, 3, 50, 31), dtype=torch.uint8)
    with torch.no_grad():
        expected, found = model.embedder(model.preprocess(images)), saved(images)
    assert found.shape == (1, 48) and found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert facts["dimension"] == 48
    assert facts["torchscript"]["format"] <= MAX_FORMAT_VERSION
    assert facts["file"]["bytes"] == (out / "submission.zip").stat().st_size
    assert facts["validation"]["step"] == 2
    assert all(row["difference"] <= 1e-5 for row in facts["torchscript"]["parity"])
    for words in (
        *("guie-tiny", "squash to 32 px", facts["file"]["sha256"], "R@1 0.750", "| toys | 0.750 |"),
        *("epochs of batch 128 at 32 px, all domains", "| 1 x 2000 |", "PyTorch 1.11"),
        "--submission out/submission.zip",
    ):
        assert words in card
    assert "overlapping" not in card

    before = (out / "submission.zip").read_bytes()
    change_weight(run, float("nan"))
    with pytest.raises(UserError, match="differs from the trained model by nan"):
        exported(run)
    assert (out / "submission.zip").read_bytes() == before


def test_card_and_facts_have_no_absolute_path_and_quote_the_folder(tmp_path: Path) -> None:
    weights = tmp_path / "my weights" / "tower.safetensors"
    run, out = tiny_run(tmp_path / "run", head=SMALL), tmp_path / "x; touch PWN; y"
    config = parsed((run / "config.yaml").read_text()).plain
    config["data"] = {"manifest": "input/mix.csv", "root": f"{tmp_path}/images/"}
    config["model"]["backbone"]["pretrained"] = str(weights)
    (run / "config.yaml").write_text(to_yaml(config))
    record = json.loads((run / "record.json").read_text())
    record["weights"] = {"file": weights.name, "sha256": "0123abcd", "from": str(weights)}
    record["command"] = [f"{tmp_path}/train.py", "--set", f"data.root={tmp_path}/images/"]
    (run / "record.json").write_text(json.dumps(record))
    export.main(["--run", str(run), "--out", str(out)])
    text, card = (out / "export.json").read_text(), (out / "card.md").read_text()
    assert str(tmp_path) not in text + card
    facts = json.loads(text)
    assert facts["record"]["command"] == ["train.py", "--set", "data.root=images"]
    data = facts["models"][0]["run"]["data"]
    assert (data["root"], data["manifest"]) == ("images", "input/mix.csv")
    assert "| Pretrained weights | `tower.safetensors`, SHA-256 `0123abcd` |" in card
    command = card.partition("```\npython src/score.py ")[2].partition("```")[0]
    words = shlex.split(command.replace("\\\n", ""))
    assert words[::2] == ["--submission", "--manifest", "--out"] and "PWN" in words[1]
    assert without_folders("/a/b c, runs/d, /e") == "b c, runs/d, e"


def test_every_part_of_a_model_is_exported(tmp_path: Path) -> None:
    head = {"dim": 80, "reduced_dim": 8, "norm": "bn_plain", "bias": False}
    model = {"backbone": {**TINY_VIT, "stride_px": 8}, "head": head}
    run = tiny_run(tmp_path / "run", **model)
    save_model(build_embedder(tiny_config(run, **model).model), run / "model.safetensors")
    _, facts, card = exported(run)
    assert facts["dimension"] == 8 and "overlapping, one every 8 px" in card


def test_the_file_uses_the_shape_of_the_image_and_keeps_the_first_numbers(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", head={"dim": 12, "norm": "bn", "image_shape": True})
    saved, facts, _ = exported(run, "--dim", "8")
    model = open_model(run)
    assert facts["dimension"] == 8

    def first(grey: Tensor, shapes: Tensor) -> Tensor:
        return functional.normalize(model.embedder(model.preprocess(grey), shapes)[:, :8], dim=1)

    for height, width in [(64, 32), (32, 64), (640, 320)]:
        grey = torch.full((1, 3, height, width), 99, dtype=torch.uint8)  # equal after squashing
        shapes = torch.tensor([[height / width, height / 224, width / 224]])
        with torch.no_grad():
            torch.testing.assert_close(saved(grey), first(grey, shapes), atol=1e-5, rtol=0)
            assert not torch.allclose(saved(grey), first(grey, 2 * shapes))


def test_the_last_weights_are_exported_on_request(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", head=SMALL)
    log_scores(run, 0.75, 0.5)
    model = open_model(run)
    model.embedder.head.linear.weight.data.neg_()
    save_model(model.embedder, run / "last.safetensors")
    saved, facts, _ = exported(run, "--weights", "last")
    assert facts["validation"]["val_r_at_1"] == 0.5
    image = torch.randint(0, 256, (1, 3, 40, 33), dtype=torch.uint8)
    with torch.inference_mode():
        torch.testing.assert_close(saved(image), model.scored(image), atol=1e-5, rtol=0)


def test_matrices_in_fp16_take_half_the_file(tmp_path: Path, monkeypatch) -> None:
    run = tiny_run(tmp_path / "run", backbone=TINY_VIT, head={"dim": 8, "norm": "bn"})
    saved, facts, card = exported(run, "--half")
    full = open_model(run).embedder.state_dict().values()
    size = sum(tensor.nbytes for tensor in saved.state_dict().values())
    assert size < 0.55 * sum(tensor.nbytes for tensor in full)
    facts = facts["torchscript"]
    assert 0 < facts["rounding"] < 1e-2 and facts["format"] <= MAX_FORMAT_VERSION
    assert all(row["difference"] <= 1e-5 for row in facts["parity"])  # with rounded weights
    assert "| Matrices in fp16 | change the embedding by" in card
    monkeypatch.setattr(submission, "ROUNDING", 1e-9)
    with pytest.raises(UserError, match="weights in fp16 change the embedding by .*, above 1e-09"):
        exported(run, "--half")


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ({"head": {"dim": 48}}, ["--dim", "48"], "cannot keep 48 numbers, for it has 48 numbers"),
        ({"head": {**SMALL, "reduced_dim": 4}}, ["--dim", "2"], "its head has a reduction"),
        ({"head": None}, [], r"128 dimensions.*64.*model\.head\.dim"),  # the backbone's
        (
            {"backbone": RMS_VIT, "head": SMALL},
            [],
            r"aten::rms_norm in timm.*--torch current",
        ),
        ({"head": SMALL}, ["--half"], r"head\.linear\.weight: .* 100000 exceeds .*--half"),
    ],
    ids=["48", "reduction", "large", "rms_norm", "half"],
)
def test_a_model_that_cannot_be_exported_is_refused(
    tmp_path: Path, model: dict, words: list[str], message: str
) -> None:
    run, out = tiny_run(tmp_path / "run", **model), tmp_path / "out"
    if words == ["--half"]:
        change_weight(run, 1e5)
    with pytest.raises(UserError, match=message) as refused:
        exported(run, *words)
    assert "\n" not in str(refused.value) and not (out.exists() and list(out.iterdir()))
    if "current" in message:
        assert exported(run, "--torch", "current")[1]["torchscript"]["runtime"] == "current"


def test_the_zip_does_not_depend_on_the_time(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pt").write_bytes(b"x" * 3_000_000)
    for name in ("a.zip", "b.zip"):
        submission.write_zip(tmp_path / "saved_model.pt", tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)


def test_a_file_that_no_export_wrote_is_kept(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path / "run", head=SMALL), tmp_path / "out"
    out.mkdir()
    for name, words in (
        ("card.md", []),
        ("submission.zip", []),
        ("model.pt2", ["--format", "pt2"]),
    ):
        (out / name).write_text("mine")
        with pytest.raises(UserError, match=f"{name}: export.py did not write it; choose another"):
            exported(run, *words)
        assert [path.read_text() for path in out.iterdir()] == ["mine"]
        (out / name).unlink()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--run r", "--run needs --out"),
        ("--run r --out o --user me", "--run: leave out --user"),
        ("--kaggle k --half", "--kaggle: leave out --half"),
        ("--run r --out o --format pt2 --half", "--half needs --format torchscript, not pt2"),
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
