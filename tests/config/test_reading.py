"""YAML as configs have it: what a text says is what is read, and no text can fill the memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.reading import MAX_BYTES, parsed, read_yaml

# Each alias stands for nine of the one before: 9 ** 9 in the end.
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP = "[" * 45 + "]" * 45


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train:\n  epochs: 2\n  epochs: 3", "line 3: key 'epochs' is already in line 2; drop"),
        ("a: {b: 1, 'b': 2}", "line 1: key 'b' is already"),
        ("1: a\n0x1: b", "line 2: key 1 is already in line 1"),
        (BOMB, "line 6: more than 100,000 values"),
        ("[" * 60 + "]" * 60, "line 1: more than 50 levels"),
        (f"a: &a {DEEP}\nb: {DEEP.replace('[]', '[*a]')}", "line 2: more than 50 levels"),
        ("[" * 1_500, "more than 50 levels"),
        ("a: &a [*a]", r"line 1: \*a is inside the value it names"),
        ("a: " + "9" * 6_000, "line 1: a whole number beyond 64 bits"),
        ("a: 0x" + "f" * 6_000, "line 1: a whole number beyond 64 bits"),
        ("a: 9223372036854775808", "line 1: a whole number beyond 64 bits"),
        ("a: !!int x", "line 1: not valid YAML: a tag"),
        ("a: !!timestamp x", "line 1: not valid YAML: a tag"),
        ("a: '\0'", "not valid YAML: unacceptable character"),
        ('a: "b\\0"', "line 1: a NUL in a string"),
        ("[1]: a\n[1]: b", "line 1: not valid YAML: found unhashable key"),
        ("a: !" + "x" * 9_000, "line 1: not valid YAML: .{,200}$"),
    ],
)
def test_what_no_config_holds_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=f"^c.yaml: {said}") as refused:
        parsed(text, "c.yaml")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", "010"),
        ("08", "08"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("2026-13-45", "2026-13-45"),
        ("0o10", "0o10"),
        ("0x1f", 31),
        ("1_000", 1000),
        ("+7", 7),
        ("-9223372036854775807", -(2**63) + 1),
        ("1e-4", 1e-4),
        ("1.5E3", 1500.0),
        (".5", 0.5),
        ("-.5e0", -0.5),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("on", True),
        ("~", None),
        ("'010'", "010"),
        ("{a: &a {x: 1, y: 2}, b: {<<: *a, x: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}),
    ],
)
def test_a_number_is_one_that_nobody_can_read_otherwise(text: str, value: object) -> None:
    found = parsed(text, "c.yaml")
    assert found == value and type(found) is type(value)


def test_set_is_read_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("name: t\n")
    for words, said in {
        "train={epochs: 2, epochs: 3}": "line 1: key 'epochs' is already",
        "train.epochs=" + "9" * 6_000: "a whole number beyond 64 bits",
        "train.epochs=010": r"train.epochs.*found '010'",
        "seed=1:30": "seed=1:30: .*found '1:30'",
        "train=" + "[" * 5_000: "more than 50 levels",
        "name=1:30\nx: [": "not valid YAML",
        "stages." + "9" * 6_000 + ".epochs=1": "stages: Input should be a valid list",
        "out=runs #2": "'#2' is a YAML comment; put the value in quotes",
        "name=2024": "must be text; put it in quotes.*found 2024",
        "stages.².epochs=1": "stages: Input should be a valid list",
    }.items():
        with pytest.raises(UserError, match=said):
            load_config(tmp_path / "c.yaml", RunConfig, [words])


def test_a_value_is_shown_as_far_as_a_line_goes(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"name: t\nseed: {'x' * 9_000}\n")
    with pytest.raises(UserError, match=r"seed: .* \(found 'xxx.*xxx\.\.\.\)") as refused:
        load_config(tmp_path / "c.yaml", RunConfig)
    assert all(len(line) < 500 for line in str(refused.value).splitlines())


def test_a_file_that_is_none_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("# " + "x" * MAX_BYTES)
    with pytest.raises(UserError, match=f"c.yaml: is larger than {MAX_BYTES:,} bytes"):
        read_yaml(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml", "."):
        with pytest.raises(UserError, match="not a regular file|is a folder"):
            read_yaml(tmp_path / name)
