"""The recipes, value by value: what their sources say, key by key, held against what would run.

tests/config/recipes/NAME.yaml is the table of configs/recipes/NAME.yaml. Its rows are keys of the resolved
config (`stages.*.epochs`: of every stage, `stages.0,2.epochs`: of these), each with

    value     what the source has; of a mapping what is neither null, 0 nor empty
    source    file and line, or section
    ours      what runs here instead, on purpose; with it
    why       the reason, and
    told      words of `departs` on top of the recipe that say so. Alone: the value is theirs, but
              does not say all
    verified  false: nobody has read it in the source

A table may have a `base`, as a config; null in place of a row takes away the base's. siglip2, dinov3, pe
and puma_clip_vit_h are nobody's recipe: they have none.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
import pytest
import timm
from pydantic import BaseModel

from guie.config import RunConfig, load_config
from guie.config.durations import Duration
from guie.config.losses import MarginSoftmaxConfig
from guie.config.model import BackboneConfig
from guie.config.reading import read_yaml
from guie.config.sampling import AugmentConfig
from guie.config.stages import StageConfig

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
TABLES = Path(__file__).with_name("recipes")
NOBODYS = {"siglip2", "dinov3", "pe", "puma_clip_vit_h"}
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem not in NOBODYS)
COLUMNS = {"value", "source", "ours", "why", "told", "verified"}
ALWAYS = (
    *("model.backbone.library", "model.backbone.name", "model.backbone.pretrained"),
    *("model.image.size_px", "model.image.fit", "model.image.mean", "model.image.std"),
    "precision",
)
HEAD = [f"model.head.{key}" for key in ("norm", "dropout", "dim", "bias", "branches")]
SOFTMAX = ("task.loss.name", "task.loss.scale", "task.loss.centers", "task.loss.init")
OF_A_STAGE = ("epochs", "batch_size", "lr", "optimizer", "weight_decay", "schedule", "warmup")

each = pytest.mark.parametrize("name", NAMES)


class Row(NamedTuple):
    """A row, and the recipe whose table it stands in."""

    recipe: str
    value: Any
    source: str
    ours: Any = None
    why: str = ""
    told: str = ""
    verified: bool = True


def table(name: str) -> dict[str, Row]:
    """The rows of a recipe's table over those of its base."""
    values = read_yaml(TABLES / f"{name}.yaml")
    base = values.pop("base", None)
    rows = table(base.removesuffix(".yaml")) if base else {}
    rows = {key: row for key, row in rows.items() if values.get(key, row)}  # null: it has none
    values = {key: row for key, row in values.items() if row}
    for key, row in values.items():
        assert {"value", "source"} <= row.keys() <= COLUMNS, (name, key)
        assert row["source"], (name, key)
    return rows | {key: Row(name, **row) for key, row in values.items()}


def departs(name: str) -> str:
    """What the header says under `departs`, in one line."""
    text = re.match(r"(#.*\n)+", (RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))[0]
    told = re.search(r"# departs(.*?)# command", text, re.DOTALL)[1]
    return " ".join(told.replace("#", " ").split())


def found(config: RunConfig, key: str) -> dict[str, Any]:
    """Every key that a row's key is, and what the config has there."""
    places: dict[str, Any] = {"": config}
    for part in key.split("."):
        further = {}
        for place, value in places.items():
            if isinstance(value, list):
                numbers = range(len(value)) if part == "*" else map(int, part.split(","))
                further |= {f"{place}.{number}": value[number] for number in numbers}
            else:
                further[f"{place}.{part}"] = getattr(value, part)
        places = further
    there = {place.removeprefix("."): plain(value) for place, value in places.items()}
    if key in ("model.image.mean", "model.image.std") and there[key] is None:
        there[key] = pretrained(config.model.backbone)[key.rpartition(".")[2]]
    return there


def pretrained(backbone: BackboneConfig) -> dict[str, list[float]]:
    """Mean and std of the weights: what an image config without them takes."""
    if backbone.library == "open_clip":
        given = open_clip.get_pretrained_cfg(backbone.name, backbone.pretrained)
    else:
        given = timm.get_pretrained_cfg(f"{backbone.name}.{backbone.pretrained}").to_dict()
    return {key: list(given[key]) for key in ("mean", "std")}


def plain(value: Any) -> Any:
    """A part of a config as a table has it."""
    if isinstance(value, Duration):
        return str(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items() if one not in (None, 0, [], {})}
    return value


def alike(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    numbers = (int, float)
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, numbers):
        return one == other and type(one) is type(other)
    return isinstance(other, numbers) and math.isclose(one, other, rel_tol=1e-9)


def test_every_recipe_of_somebody_has_a_table() -> None:
    assert sorted(path.stem for path in TABLES.glob("*.yaml")) == NAMES
    assert {path.stem for path in RECIPES.glob("*.yaml")} - set(NAMES) == NOBODYS
    for name in NOBODYS:
        assert "it is nobody's recipe" in departs(name)


@each
def test_every_value_is_its_sources(name: str) -> None:
    """Or it is ours on purpose, and the recipe tells."""
    config = load_config(RECIPES / f"{name}.yaml", RunConfig)
    for key, row in table(name).items():
        own = bool(row.why)
        assert not own or (row.told and not alike(row.ours, row.value)), f"{name}: {key}"
        assert not row.told or row.told in departs(row.recipe), f"{name}: {key}: {row.told}"
        for place, value in found(config, key).items():
            wanted = row.ours if own else row.value
            assert alike(value, wanted), f"{name}: {place}: {value}; {row.source}: {wanted}"


@each
def test_a_table_leaves_nothing_out(name: str) -> None:
    """Model, loss, precision; of every stage its length, rates, decay, schedule, views."""
    config = load_config(RECIPES / f"{name}.yaml", RunConfig)
    rows = {place for key in table(name) for place in found(config, key)}
    wanted = {*ALWAYS, *of_the_task(config)}
    model, head = config.model, config.model.head
    wanted |= set(HEAD) if head else {"model.head"}
    if head and head.norm.startswith("bn"):
        wanted.add("model.head.norm_eps")
    added = {"adapters": model.adapters, "prompts": model.prompts, "layers": model.layers}
    added |= {"head.hidden": head and head.hidden, "backbone.reset": model.backbone.reset}
    wanted |= {f"model.{key}" for key, value in added.items() if value}
    for number, stage in enumerate(config.stages):
        wanted |= {f"stages.{number}.{key}" for key in keys_of(stage)}
    assert not wanted - rows


def of_the_task(config: RunConfig) -> list[str]:
    """The keys of the task: of its one loss those that matter most, or its teachers and criteria."""
    if config.task.name == "distillation":
        return ["task.teachers", "task.criteria"]
    softmax = isinstance(config.task.loss, MarginSoftmaxConfig)
    own = [f"task.{key}" for key in ("metaclasses", "projector") if getattr(config.task, key, None)]
    own += ["task.projector_input"] if "task.projector" in own else []
    return [*own, *(SOFTMAX if softmax else SOFTMAX[:1]), *margins(config)]


def margins(config: RunConfig) -> list[str]:
    """The keys of the margin: of the loss, and where a stage has one, of the stages."""
    own = [f"task.loss.{key}" for key in type(config.task.loss).model_fields if "margin" in key]
    stages = [f"stages.{number}.margin" for number in range(len(config.stages))]
    return own + (stages if any(stage.margin for stage in config.stages) else [])


def keys_of(stage: StageConfig) -> list[str]:
    """The keys of a stage that its table must have."""
    keys = list(OF_A_STAGE)
    if plain(stage.weight_decay):
        keys.append("decay_vectors")
    sometimes = ("warmup_start", "warmup_every", "sam_rho", "size_px", "clip_grad_norm")
    sometimes += ("clip_grad_value", "stride_px", "accumulate", "cached_views")
    sometimes += ("ema_decay", "batch_norm")
    default = StageConfig(epochs=1, lr=stage.lr)
    keys += [key for key in sometimes if getattr(stage, key) != getattr(default, key)]
    drawn, usual = stage.augment, AugmentConfig()
    fields = AugmentConfig.model_fields
    return keys + [f"augment.{k}" for k in fields if getattr(drawn, k) != getattr(usual, k)]


def test_a_changed_value_is_seen() -> None:
    """The border of the 2nd place's images was mirrored here once, and nothing said so."""
    rows, recipe = table("winner_2"), RECIPES / "winner_2.yaml"
    key = "stages.0.augment.affine_border"
    for change in ("train.augment.affine_border=mirror", "train.lr.backbone=1e-6"):
        config = load_config(recipe, RunConfig, [change])
        wrong = [k for k, row in rows.items() if not alike(*found(config, k).values(), row.value)]
        assert wrong == [key if "border" in change else "stages.0.lr"]
