"""Losses in a file of the user's own: settings by type, refusals in one line, and whole runs."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import embed
import export
import train
from guie.base.errors import UserError
from guie.config.loading import load_config, to_yaml
from guie.config.losses import LossConfig
from guie.config.types import Config
from guie.losses.build import build_loss
from tiny_runs import TINY_CLIP, assert_same_bits, interrupted_after, logged_losses

OWN = '''
from typing import Literal
import torch
from torch import Tensor, nn
from guie.losses.base import Criterion
from guie.losses.in_batch import InBatchLoss
from guie.losses.rules import MarginRule


class Squared(MarginRule):
    """Takes the margin as ours do: a number, a schedule, by class size."""

    def own(self, cos_B, label_B, norm_B):
        return cos_B - self.margin(label_B) ** 2


class Pull(InBatchLoss):
    """Needs no setting, and has no weights."""

    def of_batch(self, emb_BD, label_B):
        same_BB = (label_B[:, None] == label_B).to(emb_BD)
        return (same_BB * (1 - emb_BD @ emb_BD.T)).sum() / same_BB.sum()


class Proxies(Criterion):
    def __init__(
        self,
        dim: int,
        sizes: list[int],
        scale: float = 8.0,
        kind: Literal["a", "b"] = "a",
    ):
        super().__init__()
        self.scale = scale
        self.proxy_CD = nn.Parameter(torch.randn(len(sizes), dim))

    def forward(self, emb_BD, label_B, raw_BD=None):
        logit_BC = self.scale * emb_BD.float() @ self.proxy_CD.T
        return nn.functional.cross_entropy(logit_BC, label_B.to(emb_BD.device)), {}
'''
RULE = {"name": "custom_rule", "source": "own.py:Squared", "settings": {"margin": 0.5}}


class Run(Config):
    loss: LossConfig


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the file and nothing of ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def read(**loss: object) -> LossConfig:
    Path("c.yaml").write_text(to_yaml({"loss": loss}))
    return load_config("c.yaml", Run).loss


def test_a_rule_takes_every_margin_and_the_keys_of_a_softmax(here: Path) -> None:
    sizes = [16, 1, 81]
    loss = build_loss(read(**RULE, scale=16.0, centers=2), 8, sizes, ["a"] * 3)
    assert (loss.scale, loss.centers, loss.rule.margin_C.item()) == (16.0, 2, 0.5)
    emb, labels = functional.normalize(torch.randn(6, 8), dim=1), torch.randint(3, (6,))
    plain = build_loss(
        read(name="cosface", margin_cos=0.25, scale=16.0, centers=2), 8, sizes, "aaa"
    )
    plain.weight_CD.data = loss.weight_CD.data
    assert loss(emb, labels)[0] == plain(emb, labels)[0]
    by_size = RULE | {"settings": {"margin": {"min": 0.1, "max": 0.5}}}
    margin_C = build_loss(read(**by_size), 8, sizes, ["a"] * 3).rule.margin_C
    assert margin_C.argmin() == 2 and margin_C[1] == 0.5
    schedule = {"start": 0.1, "rise_per_epoch": 0.1, "limit": 0.5}
    rule = build_loss(read(**RULE | {"settings": {"margin": schedule}}), 8, sizes, "aaa").rule
    rule.set_epoch(2.0)
    assert rule.margin_C.item() == pytest.approx(0.3)


def test_a_loss_has_weights_and_settings_of_its_own_or_none(here: Path) -> None:
    emb, labels = functional.normalize(torch.randn(6, 8), dim=1), torch.tensor([0, 0, 1, 1, 2, 2])
    pull = build_loss(read(name="custom_loss", source="own.py:Pull"), 8, [2, 2, 2], "aaa")
    apart = [1 - emb[i] @ emb[j] for i in range(6) for j in range(6) if labels[i] == labels[j]]
    torch.testing.assert_close(pull(emb, labels)[0], torch.stack(apart).mean())
    own = {"name": "custom_loss", "source": "own.py:Proxies", "settings": {"scale": 4.0}}
    proxies = build_loss(read(**own), 8, [2, 2, 2], "aaa")
    assert [len(weight) for weight in proxies.parameters()] == [3]
    logits = 4.0 * emb @ proxies.proxy_CD.T
    torch.testing.assert_close(proxies(emb, labels)[0], functional.cross_entropy(logits, labels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "none.py:Rule"}, r"c.yaml:\d+: loss.source: none.py: No such file .*; name"),
        ({"source": "own.py"}, r"c.yaml:\d+: loss.source: .*name a Python file and a class in it"),
        ({"source": "own.py:Sqared"}, "own.py: has no class Sqared; did you mean Squared"),
        ({"source": "own.py:Pull"}, "own.py:Pull: must be a subclass of .*MarginRule$"),
        ({"settings": {"margin": 1.0, "margn": 1.0}}, "own.py:Squared: settings: margn: unknown"),
        ({"settings": {}}, "own.py:Squared: settings: margin: missing"),
        ({"settings": {"margin": -1.0}}, "own.py:Squared: settings: margin: .*greater than"),
        ({"margin_rad": 0.3}, r"c.yaml:\d+: loss.margin_rad: unknown key"),
        ({"sha256": "0" * 64}, "own.py: is not the file of sha256 000"),
    ],
)
def test_faults_are_one_line(here: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as raised:
        build_loss(read(**RULE | changes), 8, [5, 6], "aa")
    assert len(str(raised.value).splitlines()) == 1


OWN_METHOD = "(MarginRule):\n def own(self, c, l, n): pass\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(MarginRule:", "own.py: SyntaxError: "),
        ("(MarginRule): pass", r"own.py:X: needs def own\(self, cos_B, label_B, norm_B\)$"),
        ("(MarginRule):\n def own(self, cos_B): pass", r"own.py:X: needs def own\(self, cos_B, "),
        ("(InBatchLoss):\n def of_batch(self, emb_BD): pass", r"own.py:X: needs def of_batch"),
        (OWN_METHOD + " def __init__(self, m): pass", "own.py:X: .* m needs a name and a type"),
        (OWN_METHOD + " def __init__(self): self.a = 1/0", "own.py:X: ZeroDivisionError: division"),
        (": pass\nraise SystemExit('run')", "own.py: SystemExit: run"),
    ],
)
def test_a_class_that_does_not_fit_is_one_line(here: Path, text: str, message: str) -> None:
    imported = "from guie.losses.rules import *\nfrom guie.losses.in_batch import InBatchLoss\n"
    (here / "own.py").write_text(imported + "class X" + text)
    config = read(name="custom_loss" if "InBatch" in text else "custom_rule", source="own.py:X")
    with pytest.raises(UserError, match=f"^{message}") as raised:  # reading a config ran nothing
        build_loss(config, 8, [5, 6], ["a"] * 2)
    assert len(str(raised.value).splitlines()) == 1


CUSTOM = Path(__file__).parents[2] / "configs" / "custom"
OWN_RULES = {
    "MagFace": {"l_a": 1, "u_a": 11, "lambda_g": 1.6},
    "AdaFace": {"t_alpha": 0.2},  # with a state: the cut run must restore it
}


def write_run(toy_manifest: Path, loss: dict, **changes: object) -> str:
    values = {
        "name": "t",
        "log_every": "1 step",
        "checkpoint_every": "2 steps",
        "data": {"manifest": str(toy_manifest), "workers": 0},
        "model": {"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16}},
        "task": {"loss": loss},
        "train": {"epochs": 6, "batch_size": 24, "domains": ["packages", "cars"]},
        **changes,
    }
    values["train"] |= {"lr": {"backbone": 1e-4, "head": 1e-2, "classes": 1e-2}}
    Path("run.yaml").write_text(to_yaml(values))
    return "run.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frozen"), [("MagFace", False), ("AdaFace", True)])
def test_a_rule_in_a_file_trains_resumes_and_is_exported_without_it(
    here: Path, toy_manifest: Path, monkeypatch: pytest.MonkeyPatch, name: str, frozen: bool
) -> None:
    text = (CUSTOM / f"{name.lower()}.py").read_text()
    (here / "mine.py").write_text(text)
    loss = {"name": "custom_rule", "source": f"mine.py:{name}", "settings": OWN_RULES[name]}
    config = write_run(toy_manifest, loss)
    more = ["--set", "model.head.norm=bn"]
    more += ["--set", "train.lr.backbone=0", "--set", "train.cached_views=2"] if frozen else []
    whole = train.main(["--config", config, *more])
    losses = logged_losses(whole)
    assert losses[-1] < losses[0]
    norms = [
        json.loads(line)["norm"] for line in (whole / "metrics.jsonl").open() if "norm" in line
    ]
    assert len(norms) == len(losses) and norms[0] == pytest.approx((16 / 3) ** 0.5, rel=0.2)
    assert norms[0] != norms[-1]
    record = json.loads((whole / "record.json").read_text())
    assert record["custom_losses"] == {"mine.py": text}

    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=3)
        with pytest.raises(KeyboardInterrupt):
            train.main(["--config", config, *more, "--set", "name=cut"])
    resume = ["--config", config, *more, "--set", "name=cut", "--resume"]
    (here / "mine.py").write_text(text + "# changed\n")
    with pytest.raises(UserError, match=r"another config \(task.loss.sha256: "):
        train.main(resume)
    (here / "mine.py").write_text(text)
    assert_same_bits(train.main(resume), whole)

    (here / "mine.py").write_text("raise SystemExit('a submission needs no loss')")
    words = ["--manifest", str(toy_manifest), "--split", "test", "--workers", "0"]
    embed.main(["--model", str(whole), *words, "--out", "E.npz"])
    (here / "mine.py").unlink()
    export.main(["--run", str(whole), "--out", "submission"])
    assert (here / "submission" / "submission.zip").is_file()
    with pytest.raises(UserError, match="loss.source: mine.py: No such file"):
        train.main(["--config", config, *more, "--set", "name=other"])
