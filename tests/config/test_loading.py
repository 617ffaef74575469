"""YAML as configs have it: what a text says is what is read, and no text can fill the memory."""

import math
import os
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import RunConfig, load_config, to_yaml
from guie.config.loading import MAX_BYTES, Values, merged, override, parsed, read_values

# Each alias stands for nine of the one before: 9 ** 9 in the end.
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train:\n  epochs: 2\n  epochs: 3", '3: not valid YAML: found duplicate key "epochs"'),
        ("a: {b: 1, 'b': 2}", '1: not valid YAML: found duplicate key "b"'),
        ("a: [1\nb: 2", "2: not valid YAML: "),
        (BOMB, "1: more than 100,000 values"),
        ("[" * 60 + "]" * 60, "1: more than"),
        ("[" * 500, "more than 50 levels"),
        ("a: *b", "1: not valid YAML: found undefined alias 'b'"),
        ("a: -_", "not valid YAML"),
        ("a: 1\nb: 9223372036854775808", "2: b: a whole number beyond 64 bits"),
        ("a: " + "9" * 6_000, "not valid YAML: .{,200}$"),
        ("a: !!int x", "1: not valid YAML: a tag"),
    ],
)
def test_what_no_config_holds_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^c.yaml:? ?{said}") as refused:
        parsed(text, "c.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1_000", 1000),
        ("-9223372036854775807", -(2**63) + 1),
        ("1e-4", 1e-4),
        (".5", 0.5),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("true", True),
        ("~", None),
        ("null", None),
        *((text, text) for text in ("yes", "no", "on", "off", "1:30", "2026-01-02", "2026-13-45")),
        *((f"'{text}'", text) for text in ("010", "true", "1e-4", "~", "=")),
        ("=", "="),
        ("{a: &a {x: 1, y: 2}, b: {<<: *a, x: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}),
        ("|\n two\n lines", "two\nlines"),
    ],
)
def test_values_are_those_of_yaml_1_2_without_dates(text: str, value: object) -> None:
    found = parsed(text, "c.yaml").plain
    assert found == value and type(found) is type(value)
    again = parsed(to_yaml({"a": value}), "c.yaml").plain["a"]
    assert again == value and type(again) is type(value)


def test_each_value_knows_its_line_and_the_key_it_was_written_with() -> None:
    text = "a: 1\nlist:\n  - {x: 1}\n  -\n    y: &y [1,\n      2]\n    z: *y\n"
    values = parsed(text, "c.yaml")
    lines = {".".join(keys): place.line for keys, place in values.places.items()}
    assert lines == {"": 1, "a": 1, "list": 2, "list.0": 3, "list.0.x": 3, "list.1": 5} | {
        "list.1.y": 5,
        "list.1.y.0": 5,
        "list.1.y.1": 6,
        "list.1.z": 7,
        "list.1.z.0": 5,
        "list.1.z.1": 6,
    }
    assert values.at("list", 1).location("y") == "c.yaml:5: list.1.y"
    assert values.location("list", 1, "none", "such") == "c.yaml:5: list.1.none.such"


def test_places_follow_what_replaces_a_value() -> None:
    base = parsed("loss: {name: arcface, margin_rad: 1}\nlr: {head: 1}\n", "base.yaml")
    own = parsed("\nloss: {name: softmax}\nlr: {classes: 2}\n", "own.yaml")
    both = merged(base, own)
    assert both.plain == {"loss": {"name": "softmax"}, "lr": {"head": 1, "classes": 2}}
    assert both.location("loss", "margin_rad") == "own.yaml:2: loss.margin_rad"
    assert both.location("lr", "head") == "base.yaml:2: lr.head"
    override(both, "lr.head", {"x": 1}, "--set lr.head={x: 1}")
    override(both, "new.block", 3, "--set new.block=3")
    assert both.location("lr", "head", "x") == "--set lr.head={x: 1}: lr.head.x"
    assert both.location("new", "other") == "--set new.block=3: new.other"
    assert base.plain["lr"] == {"head": 1} and both.plain["new"] == {"block": 3}


def test_set_is_read_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("name: t\n")
    for words, said in {
        "train={epochs: 2, epochs: 3}": "not valid YAML: found duplicate key",
        "seed=1:30": "seed=1:30: .*found '1:30'",
        f"seed={'x' * 9_000}": r"seed=x.*found 'x{199}\.\.\.\)",
        "name=1:30\nx: [": "not valid YAML",
        "out=runs #2": "out=runs #2: a # after a space begins a YAML comment; put the value in qu",
        "name=2024": "must be text; put it in quotes.*found 2024",
    }.items():
        with pytest.raises(UserError, match=said):
            load_config(tmp_path / "c.yaml", RunConfig, [words])


def test_a_file_that_is_none_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("# " + "x" * MAX_BYTES)
    with pytest.raises(UserError, match=f"c.yaml: is larger than {MAX_BYTES:,} bytes"):
        read_values(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml", "."):
        with pytest.raises(UserError, match="not a regular file|is a folder"):
            read_values(tmp_path / name)
    path.write_text("- a\n")
    with pytest.raises(UserError, match="c.yaml: must be a mapping"):
        read_values(path)
    path.write_text("# nothing\n")
    assert read_values(path).plain == Values.of({}, "x").plain
