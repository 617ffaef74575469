"""The reference of config keys: complete, current, and true."""

import re
import runpy
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def keys() -> dict:
    return runpy.run_path(str(CONFIGS / "keys.py"))


def test_the_reference_is_current(keys: dict) -> None:
    _, mark, written = keys["README"].read_text(encoding="utf-8").partition(keys["MARK"])
    assert mark and written == keys["reference"](), "run: python configs/keys.py"


def test_every_key_is_described_and_every_link_leads_somewhere(keys: dict) -> None:
    text = keys["reference"]().replace("`\\*", "`")  # stars of required keys
    assert not re.findall(r"^ *\* `\w+` \((?!.*\[block\]|.*\): ).*\)$", text, re.MULTILINE)
    headings = {re.sub(r"\W", "", path) for path in re.findall(r"^### `(.+)`$", text, re.MULTILINE)}
    assert set(re.findall(r"\(#(\w+)\)", text)) <= headings
    assert len(headings) > 40 and len(re.findall(r"^ *\* `\w+` \(", text, re.MULTILINE)) > 250


@pytest.mark.parametrize(
    "row",
    [
        "* `val_fraction` (≥ 0, < 1; `0.1`): ",
        "* `epochs`\\* (> 0): ",
        "* `warmup` (duration): ",
        "* `checkpoint_every` (steps; `500 steps`): ",
        "* `precision` (`no`, `bf16` or `fp16`): ",
        "* `crop_scale` (list (2) of > 0; `[0.5, 1.0]`): ",
        "* `optimizer` ([block](#stagesoptimizer); `{}`)\n",
        "* `classes`\\* (mapping of text to list of text): ",
        "* **`arcface`** (default `arcface`): ArcFace",
    ],
)
def test_types_ranges_and_defaults(row: str, keys: dict) -> None:
    assert row in keys["reference"]()
