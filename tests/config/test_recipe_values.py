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

A table may have a `base`, as a config; null in place of a row takes away the base's. siglip2 with its heirs
and puma_clip_vit_h are nobody's recipe: they have no rows.

Its `departures` hold the other sentences of `departs`, each by

    told      words of the sentence
    source    file and line, or section
    and one of
    key       a key of the resolved config, with `ours`, what it has, and `value`, what the source has;
              without `value` the source has it too. Of a list, a number is its length. `config` names a
              mix or an ensemble in place of the recipe, `set` changes it
    test      a test that holds what no key says: FILE::NAME below tests/
    fact      a sentence on the source alone, or on the data as they are: nothing of ours to hold

A sentence `as OTHER.yaml` takes the departures of that recipe over: they hold here too, but for keys that
have a departure of their own.
"""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import open_clip
import pytest
import timm
from pydantic import BaseModel
from recipe_configs import recipe_config

from guie.config import RunConfig, load_config
from guie.config.data import MixConfig
from guie.config.durations import Duration
from guie.config.ensemble import ComposeConfig
from guie.config.loading import parsed
from guie.config.model import BackboneConfig

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
TABLES = Path(__file__).with_name("recipes")
NOBODYS = {"siglip2", "dinov3", "pe", "tipsv2", "c_radio", "eva02_clip", "puma_clip_vit_h"}
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem not in NOBODYS)
COLUMNS = {"value", "source", "ours", "why", "told", "verified"}
KINDS = ({"key", "value", "ours"}, {"key", "ours"}, {"test"}, {"fact"})
each = pytest.mark.parametrize("name", NAMES)
every = pytest.mark.parametrize("name", sorted({*NAMES, *NOBODYS}))


class Row(NamedTuple):
    """A row, and the recipe whose table it stands in."""

    recipe: str
    value: Any
    source: str
    ours: Any = None
    why: str = ""
    told: str = ""
    verified: bool = True


@cache
def table(name: str) -> dict[str, Row]:
    """The rows of a recipe's table over those of its base."""
    values = parsed((TABLES / f"{name}.yaml").read_text()).plain
    base, _ = values.pop("base", None), values.pop("departures", None)
    rows = table(base.removesuffix(".yaml")) if base else {}
    rows = {key: row for key, row in rows.items() if values.get(key, row)}  # null: it has none
    values = {key: row for key, row in values.items() if row}
    for key, row in values.items():
        assert {"value", "source"} <= row.keys() <= COLUMNS, (name, key)
        assert row["source"], (name, key)
    return rows | {key: Row(name, **row) for key, row in values.items()}


@cache
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
    tables = {path.stem for path in TABLES.glob("*.yaml")}
    assert tables - NOBODYS == set(NAMES)
    for name in tables & NOBODYS:
        assert parsed((TABLES / f"{name}.yaml").read_text()).plain.keys() == {"departures"}
    assert {path.stem for path in RECIPES.glob("*.yaml")} - set(NAMES) == NOBODYS
    for name in NOBODYS:
        assert "it is nobody's recipe" in departs(name)


@each
def test_every_value_is_its_sources(name: str) -> None:
    """Or it is ours on purpose, and the recipe tells."""
    config = recipe_config(name)
    for key, row in table(name).items():
        own = bool(row.why)
        assert not own or (row.told and not alike(row.ours, row.value)), f"{name}: {key}"
        assert not row.told or row.told in departs(row.recipe), f"{name}: {key}: {row.told}"
        for place, value in found(config, key).items():
            wanted = row.ours if own else row.value
            assert alike(value, wanted), f"{name}: {place}: {value}; {row.source}: {wanted}"


def sentences(name: str) -> list[str]:
    """Those of `departs`."""
    parts = re.split(r"(?:^|\s)- ", departs(name))
    return [
        one for part in parts for one in re.split(r"(?<=\.)(?<!\beq\.)(?<!\bal\.) ", part) if one
    ]


@cache
def departures(name: str) -> list[dict[str, Any]]:
    """Those of its own table."""
    table_file = TABLES / f"{name}.yaml"
    return (
        parsed(table_file.read_text()).plain.get("departures", []) if table_file.is_file() else []
    )


def taken_over(name: str) -> list[dict[str, Any]]:
    """Those of the recipes that `departs` begins from, by `as OTHER.yaml`."""
    others = [match[1] for one in sentences(name) if (match := re.match(r"[Aa]s (\w+)\.yaml", one))]
    own = {departure.get("key") for departure in departures(name)} - {None}
    found_there = [one for other in others for one in departures(other) + taken_over(other)]
    return [one for one in found_there if one.get("key") not in own]


@cache
def changed(path: str, *words: str) -> Any:
    """A config below configs/, of the kind that its folder has."""
    model = {"recipes": RunConfig, "mixes": MixConfig, "compose": ComposeConfig}[path.split("/")[0]]
    return load_config(RECIPES.parent / path, model, words)


def hold(name: str, departure: dict[str, Any]) -> None:
    """Raise AssertionError unless ours is what it says, and is not the source's."""
    words = {"told", "source", "config", "set"}
    assert departure.keys() - words in KINDS, f"{name}: {departure}"
    assert departure["source"], f"{name}: {departure}"
    if test := departure.get("test"):
        file, _, function = test.partition("::")
        text = (RECIPES.parents[1] / "tests" / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"{name}: {test}"
    if "key" not in departure:
        return
    path = departure.get("config", f"recipes/{name}.yaml")
    config = changed(path, *departure.get("set", []))
    ours = departure["ours"]
    assert "value" not in departure or not alike(ours, departure["value"]), f"{name}: {departure}"
    for place, there in found(config, departure["key"]).items():
        there = len(there) if isinstance(there, list) and isinstance(ours, int) else there
        assert alike(there, ours), f"{name}: {place} is {there}: {departure['told']}"


@every
def test_every_departure_is_true(name: str) -> None:
    """What `departs` says of a key is what the resolved config has, and not what the source has."""
    for departure in departures(name):
        assert any(departure["told"] in one for one in sentences(name)), departure["told"]
        hold(name, departure)
    for departure in taken_over(name):
        hold(name, departure)


@every
def test_every_sentence_of_departs_is_held(name: str) -> None:
    """By the table's rows or departures, or it offers a change, or names another recipe."""
    rows = table(name).values() if name in NAMES else ()
    told = [row.told for row in rows if row.told] + [one["told"] for one in departures(name)]
    for one in sentences(name):
        other = re.match(r"[Aa]s (\w+)\.yaml", one)
        assert not other or (RECIPES / f"{other[1]}.yaml").is_file(), one
        is_held = other or "--set " in one or any(words in one for words in told)
        assert is_held, f"{name}: no departure holds: {one}"


@every
def test_every_change_that_departs_offers_loads(name: str) -> None:
    changes = re.findall(r"--set (?:'([^']+)'|([\w.]+=[\w.-]*\w))", departs(name))
    for quoted, plain_text in changes:
        change = (quoted or plain_text).replace("=S", "=0.2")
        assert recipe_config(name) != changed(f"recipes/{name}.yaml", change), change
