"""Bad input that no other test has: each is one clear line, told before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, load_config
from guie.data.dataset import training_rows
from guie.data.manifest import Manifest, Sidecar
from guie.training.run_folder import read_metrics

PRETRAINED = {"library": "timm", "name": "vit_tiny_patch16_224", "pretrained": "w.safetensors"}


def load(tmp_path: Path, **changes) -> RunConfig:
    values = {
        "name": "t",
        "data": {"manifest": "m.csv"},
        "model": {"backbone": PRETRAINED, "image": {"size_px": 32}},
        "train": {"epochs": 1},
        "stages": [
            {"name": "head", "lr": {"head": 0.1, "classes": 0.1}},
            {"name": "full", "lr": {"backbone": 0.1, "head": 0.1, "classes": 0.0}},
        ],
        **changes,
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    return load_config(tmp_path / "c.yaml", RunConfig)


def stages(**changes) -> dict:
    return {"stages": [{"name": "s", "lr": {"classes": 0.1}, **changes}]}


def pairs(name: str) -> dict:
    return {"task": {"loss": {"name": name}}}


RESET, ALONE = stages(classes="reset"), stages(softmax_over="stage")
CONTRASTIVE = {"task": {"name": "contrastive"}}
RANDOM = {"model": {"backbone": {**PRETRAINED, "pretrained": None}, "image": {"size_px": 32}}}
GENERIC = {"manifest": "g.csv"}
BLENDS = stages(augment={"mixup": 0.5}, lr={"head": 0.1})
OF_CARS = {
    "name": "distillation",
    "teachers": [{"model": "t", "domains": ["cars"]}],
    "criteria": [{"relation": {"name": "rkd"}}],
}
CASES = {
    "an unknown loss": (pairs("arcfase"), "task.loss.name: .*'arcfase'.*arcface"),
    "a stage without domains": (stages(domains=[]), "stages.0.domains: .* at least 1 item"),
    "reset of pairs": (
        RESET | pairs("triplet"),
        "stages.0.classes: reset .*arcface.* triplet allows carry",
    ),
    "reset of proxies": (RESET | pairs("proxy_nca"), "proxy_nca allows carry"),
    "a stage's pairs": (ALONE | pairs("batch_all"), "softmax_over: stage .* batch_all allows run"),
    "reset of captions": (
        RESET | CONTRASTIVE,
        "stages.0.lr.classes: this task has no such part; allowed: backbone",
    ),
    "reset, then frozen": (
        stages(classes="reset", lr={"head": 0.1, "classes": 0}),
        "lr.classes 0 .* raise",
    ),
    "other choices": (stages(softmax_over="domain"), "softmax_over: .*'run' or 'stage'"),
    "nothing to hold to": (RANDOM | {"retention": {"weights": 1}}, "pretrained is null"),
    "retention of nothing": ({"retention": {}}, "retention: weights and features are both 0"),
    "idle generic images": (
        {"retention": {"weights": 1, "generic": GENERIC}},
        "retention: generic needs features, which is 0",
    ),
    "retention while frozen": (
        {"retention": {"weights": 1}, **stages()},
        "retention: no stage trains the backbone",
    ),
    "blends of captions": (
        CONTRASTIVE | stages(augment={"mixup": 0.5}, lr={"backbone": 0.1, "classes": 0}),
        "stages.0.augment.mixup: a blend of two images has no label or caption",
    ),
    "blends for a specialist": (
        BLENDS | {"task": OF_CARS},
        "stages.0.augment.mixup: a blend may mix two domains",
    ),
    "negative retention": ({"retention": {"features": -1}}, "retention.features: .*equal to 0"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_config_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    changes, said = CASES[case]
    with pytest.raises(UserError, match=said) as refusal:
        load(tmp_path, **changes)
    assert str(refusal.value).count("\n") == 0


@pytest.mark.parametrize("name", ["softmax", "arcface", "cosface", "curricularface"])
def test_what_is_allowed_loads(tmp_path: Path, name: str) -> None:
    load(tmp_path, **stages(classes="reset", softmax_over="stage"), **pairs(name))
    both = {"weights": 1, "features": 2, "generic": GENERIC}
    assert load(tmp_path, retention=both).retention.generic.batch_size == 32
    blocks = stages(lr={"blocks": {3: 0.1}, "classes": 0})
    assert load(tmp_path, retention={"weights": 1}, **blocks).retention.features == 0.0


def test_a_domain_that_has_no_classes_to_train_is_refused(tmp_path: Path) -> None:
    rows = [("a.jpg", "a/0", "a", "train", "train"), ("b.jpg", "b/0", "b", "test", "both")]
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split", "role"])
    manifest = Manifest(table, tmp_path, tmp_path / "m.csv", Sidecar())
    with pytest.raises(UserError, match="unknown domains b; known: a, which have training images"):
        training_rows(manifest, ["a", "b"])


@pytest.mark.parametrize("domain", ["a|b", "a\nb", ""])
def test_a_domain_that_no_manifest_can_hold_is_refused(domain: str, tmp_path: Path) -> None:
    source = {"kind": "folder", "path": "images", "domain": domain}
    (tmp_path / "mix.yaml").write_text(
        yaml.safe_dump({"name": "m", "out": "m.csv", "seed": 0, "sources": [source]})
    )
    with pytest.raises(UserError, match="domain"):
        load_config(tmp_path / "mix.yaml", MixConfig)


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step":')
    with pytest.raises(UserError, match="metrics.jsonl: a line is not JSON"):
        read_metrics(tmp_path / "metrics.jsonl")
