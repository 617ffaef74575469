"""Refusals: one line each, with the file or `--set`, the key, what is wrong and what is allowed."""

import re
from pathlib import Path

import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.data import MixConfig
from guie.config.loading import to_yaml
from guie.data.dataset import training_rows
from guie.data.manifest import Manifest, Sidecar

MINIMAL = """
name: t
data: {manifest: m.csv}
model:
  backbone: {library: timm, name: resnet18}
  image: {size_px: 32}
train:
  epochs: 2
  lr: {head: 1e-3, classes: 1e-3}
stages:
  - {name: head}
  - {name: full, epochs: 3, lr: {backbone: 1e-5}}
"""


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    return path


def only_line(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, RunConfig, overrides)
    (line,) = str(caught.value).splitlines()
    return line


# What follows the key; a dot: of a key below
ONE_FAULT = {
    "nonsense": "expected key=value",
    "name=[1": "not valid YAML",
    "name=a/b": "must be letters, digits",
    "data.manifest.x=1": "'manifest' is a single value and has no keys below it",
    "stages.7.epochs=1": "'7' is not an index below 2",
    "compile=yes": "must be true or false (found 'yes')",
    "model.backbone.kwargs={scriptable: no}": "scriptable: no is text; write true or false",
    "retention={}": "weights and features are both 0",
    "compile=true": "torch.compile disables the hooks of model.layers",
    "task.loss=arcface": "must be a mapping of name: softmax | arcface | ",
    "task.loss.name=cosfase": "unknown name 'cosfase'; did you mean cosface? Allowed: ",
    "task.loss.margin=3": "unknown key; did you mean margin_rad?",
    "task.loss.margin_rad=big": "must be a number, or a mapping of every, ",
    "task.loss.margin_rad={min: 2, max: 1}": "min is above max",
    "train.epocs=2": "unknown key; did you mean epochs?",
    "train.sampler=ballanced": ".name: unknown name 'ballanced'; did you mean balanced? A",
    "train.sampler=3": "must be a mapping of name: mixed | dataset_size | ",
    "train.schedule=linear": ".name: unknown name 'linear'; allowed: constant, cosine, step, expo",
    "train.schedule={end: 0.1}": "has no name; allowed: constant, cosine, step, exponential",
    "train.schedule=step": ".epochs: missing, and it has no default",
    "train.optimizer={momentum: 0.9}": ".momentum: is for name sgd; name is adamw; change one",
    "train.weight_decay=big": "must be a number, or a mapping of backbone, cl",
    "train.weight_decay={neck: 1}": ".neck: this task has no such part; allowed: ",
    "train.lr.bakbone=0.1": "this task has no such part; did you mean backbone?",
    "train.lr=0.1": "must be a mapping of backbone, blocks, classes, head (found 0.1)",
    "train.lr.blocks={last: 1}": ".last: a key: Input should be a valid integer (found 'last')",
    "train.lr.blocks={3: -1}": ".3: Input should be greater than or equal to 0",
    "train.augment.jpg=0.5": "unknown key; did you mean jpeg?",
    "train.augment.affine=1": "shift, zoom and rotate_deg are all 0; raise one",
    "train.augment.erase_side=[0.4, 0.1]": "a range must have its lower end first",
    "train.augment.full_size=true": "applies to auto, affine, hue, rgb_shift, blur and jpeg; r",
    "train.augment.mixup=0.5": "a blend of two images has no label or caption",
    "train=3": "must be a mapping, like each of stages (found 3)",
    "train.epochs=.inf": "Input should be a finite number (found inf)",
    "stages.1.warmup=3 epochs": "must be shorter than the stage's 3 epochs",
    "stages.1.warmup_every=1 epoch": "needs warmup; warmup is null; change one of the two",
    "stages.1.ema_carry=averaged": "needs ema_decay; ema_decay is null; ch",
    "stages.0.optimizer_state=carry": "carry needs the optimizer, image size and classes of a stage",
    "stages.1.repeated_views=2": "is for task distillation, not classification; set it to null",
}
NEEDS = {"compile=true": ["model.layers.of=[layer3]"]}


@pytest.mark.parametrize("override", ONE_FAULT)
def test_a_fault_is_one_line_at_the_words_that_made_it(minimal: Path, override: str) -> None:
    """Also where every stage has it from `train`, and where a key may be of several kinds."""
    said = ONE_FAULT[override]
    said = override.partition("=")[0] + said if said.startswith(".") else said
    line = only_line(minimal, override, *NEEDS.get(override, []))
    assert line.startswith(f"--set {override}: {said}")


NESTED = [o for o in ONE_FAULT if re.match(r"(task|train)\.(?!epochs|lr\.head)", o)]


@pytest.mark.parametrize("override", NESTED)
def test_a_fault_is_one_line_at_the_line_where_it_stands(
    minimal: Path, tmp_path: Path, override: str
) -> None:
    """Of three files, each the base of the next."""
    key, _, value = override.partition("=")
    *outer, last = key.split(".")
    text = "".join(f"{'  ' * n}{part}:\n" for n, part in enumerate(outer))
    middle, top = tmp_path / "middle.yaml", tmp_path / "top.yaml"
    middle.write_text(f"base: run.yaml\n{text}{'  ' * len(outer)}{last}: {value}\n")
    top.write_text("base: middle.yaml\ntrain: {batch_size: 8, augment: {flip: 0.5}}\n")
    said = "" if ONE_FAULT[override].startswith(".") else ": "
    place = f"{middle}:{len(outer) + 2}: {key}{said}{ONE_FAULT[override]}"
    assert only_line(top).startswith(place)


FROZEN = ["model.backbone.pretrained=x", "stages.1.lr.backbone=0"]
ADAPTED = [*FROZEN, "model.adapters={kind: lora}", "stages.1.lr.adapters=1"]
GENERIC = "generic: {manifest: g.csv}"
NO_CLASSES = "train.lr.classes=0"
CONTRASTIVE = ["task={name: contrastive}", NO_CLASSES, "train.lr.head=0"]
TASK = "task={name: distillation, teachers: [{model: t}], criteria: [{relation: {name: rkd}}]}"
DISTILLED = [TASK, NO_CLASSES]
OF_CARS = [TASK.replace("model: t", "model: t, domains: [cars]"), NO_CLASSES]
ARCFACE_OF_CARS = TASK.replace("}}]", "}}, {loss: {}, domains: [cars]}]")
METACLASSES = "task.metaclasses.count=4"
SOFTMAXES = "is for losses with a margin softmax, such as arcface"
PLAIN_CLIP = "task contrastive trains a plain CLIP"
TUNED = "{kind: tuned}"
TWO_PARTS = "model.head.parts=2"
NO_PART = "this task has no such part; allowed: backbone"
ONLINE = ["model.head=null", "train.lr.teachers=1", "train.lr.head=0", "task={name: online}"]


def relation(change: str) -> list[str]:
    """Distillation with something else in place of `relation: {name: rkd}`."""
    return [NO_CLASSES, TASK.replace("relation: {name: rkd}", change)]


def backbone(key: str) -> str:
    return f"model.backbone={{library: timm, name: x, {key}}}"


EXCLUSIVE = [
    (["stages.1.warmup=null", "stages.1.warmup_start=0.1"], "needs warmup;"),
    (["stages.1.lr.blocks={3: 1}", "stages.1.cached_views=2"], "features are computed once"),
    (["task.loss.name=triplet", "stages.1.classes=reset"], f"reset {SOFTMAXES}; triplet all"),
    (["task.loss.name=batch_all", "stages.1.softmax_over=stage"], f"stage {SOFTMAXES}; batch"),
    (["task.loss.name=softmax", "stages.1.margin=1"], "is for losses with a margin rule"),
    ([NO_CLASSES, "stages.1.classes=reset"], "reset with lr.classes 0 leaves class weights"),
    ([METACLASSES, "task.loss.classifier=separate"], "metaclasses mix domains; set it to jo"),
    (["train.lr.projector=1", METACLASSES, TWO_PARTS, "task.projector=[8]"], "would mix"),
    ([TWO_PARTS], "needs task.metaclasses"),
    ([METACLASSES, "task.nested=[8]"], "excludes task.metaclasses"),
    (["task.nested=[32,16]"], "needs rising widths below model.head.dim, 64"),
    (["model.head.parts=3"], "3 does not divide dim 64"),
    (["model.head.reduced_dim=65"], "65 is above dim 64"),
    (["model.head.norm_eps=1e-6"], "is for norm bn or bn_plain; norm is l2"),
    (["model.head.activation=gelu"], "needs hidden"),
    (["model.backbone.pretrained=x", "model.backbone.sha256=xyz"], "must be 64 hex digits"),
    ([backbone("revision: y")], "model.backbone.revision: needs pretrained; pretrained is nu"),
    (["model.backbone.name=hf-hub:b"], "'hf-hub:b': give the name alone"),
    (["model.backbone.kwargs={checkpoint_path: x}"], "checkpoint_path: not allowed"),
    (["model.backbone.kwargs={weights_only: false}"], "weights_only: not allowed"),
    (["train.lr.adapters=1", f"model.adapters=[{TUNED}, {TUNED}]"], "model.adapters.1.kind: tuned"),
    (["retention.weights=1"], "retention: model.backbone.pretrained is null"),
    ([*FROZEN, "retention.weights=1"], "retention: no stage trains the backbone;"),
    ([*ADAPTED, "retention.weights=1"], "no stage trains the backbone's own weights"),
    ([f"retention={{weights: 1, {GENERIC}}}"], "retention.generic: needs features; features is"),
    (["task={name: online, teachers: 0}"], "teachers is 0, or logits and similarity are bo"),
    (ONLINE, "task.backprop_to: is head, bu"),
    ([*CONTRASTIVE, "train.lr.classes=1"], NO_PART),
    ([*CONTRASTIVE, "stages.1.augment.mixup=0.5"], "a blend of two images has no label"),
    ([*CONTRASTIVE, "model.adapters={kind: lora}"], PLAIN_CLIP),
    ([*OF_CARS, "stages.1.augment.mixup=0.5"], "a blend may mix two domains"),
    ([*DISTILLED, "stages.0.cached_views=1", "stages.0.repeated_views=2"], "excludes cached_view"),
    (relation("loss: {}"), "criteria has no relation"),
    (relation("weight: 2"), "task.criteria.0: a criterion is a loss or a relation"),
    (relation("relation: {name: rkd, distance: 0}"), "task.criteria.0.relation: dista"),
    (relation("relation: {name: logits}"), "relation logits needs exactly one loss"),
    (relation("relation: {name: snd, sigma: {perplexity: 128}}"), "task.criteria.0.relation: perp"),
    ([ARCFACE_OF_CARS, "train.sampler=mixed"], "mixes domains in a batch, but the loss of ta"),
]


# The line starts with the last override
@pytest.mark.parametrize(("overrides", "said"), EXCLUSIVE)
def test_settings_that_exclude_each_other(minimal: Path, overrides: list[str], said: str) -> None:
    line = only_line(minimal, *overrides)
    assert line.startswith(f"--set {overrides[-1]}: {said}"), line


def test_a_key_that_is_missing_is_told_of_the_mapping_that_lacks_it(
    minimal: Path, tmp_path: Path
) -> None:
    top = tmp_path / "top.yaml"
    top.write_text("base: run.yaml\nstages:\n  - {name: only}\n")
    minimal.write_text(MINIMAL.replace("  epochs: 2\n", ""))
    assert only_line(top).startswith(f"{top}:3: stages.0.epochs: missing")
    assert only_line(top, "stages=null").startswith(f"{minimal}:7: train.epochs: missing")
    branches = "model.head.branches.linear=shared"
    line = only_line(top, "train.epochs=1", branches)
    assert line.startswith(f"--set {branches}: model.head.branches.dropouts: missing")


NEW_WEIGHTS = [
    (["model.adapters={kind: lora}"], "adapters", "missing in all stages, and adapters has new w"),
    (["model.prompts={kind: deep}"], "prompts", "missing in all stages, and prompts has new w"),
    (["task.projector=[8]"], "projector", "missing in all stages, and projector has new w"),
    *(
        ([f"task.loss.name={name}"], "classes", f"missing, and loss {name} can have class weights")
        for name in ("arcface", "proxy_nca", "soft_triple")
    ),
    (["task.loss={name: margin, learn_boundary: true}"], "classes", "missing, and loss margin"),
]


@pytest.mark.parametrize(("overrides", "part", "said"), NEW_WEIGHTS)
def test_new_weights_need_a_rate(minimal: Path, overrides: list, part: str, said: str) -> None:
    minimal.write_text(MINIMAL.replace(", classes: 1e-3", ""))
    both = [] if part == "classes" else [NO_CLASSES]
    with pytest.raises(UserError, match=f"lr.{part}: {said}.*; give their rate, or 0"):
        load_config(minimal, RunConfig, [*overrides, *both])
    load_config(minimal, RunConfig, [*overrides, *both, f"train.lr.{part}=0"])
    load_config(minimal, RunConfig, ["task.loss.name=supcon"])  # it has none


def test_several_faults_are_lines_and_each_stage_has_its_place(minimal: Path) -> None:
    with pytest.raises(UserError, match="seed=-1: Input .*\n.*sead=1: unknown key"):
        load_config(minimal, RunConfig, ["sead=1", "seed=-1"])
    line = only_line(minimal, "stages.1.lr.blocks={3: 1}", "stages.1.layer_decay=0.9")
    assert line.startswith(f"{minimal}:12: stages.1: lr.blocks and layer_decay")
    minimal.write_text("train: {epochs: 2}\n")
    with pytest.raises(UserError, match=r"--set stages.0.epochs=1: stages: .* such as train.epoch"):
        load_config(minimal, RunConfig, ["stages.0.epochs=1"])


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
        to_yaml({"name": "m", "out": "m.csv", "seed": 0, "sources": [source]})
    )
    with pytest.raises(UserError, match="domain"):
        load_config(tmp_path / "mix.yaml", MixConfig)
