"""Compositions that cannot be: each is refused in one line, before a model is opened if possible."""

from pathlib import Path
from typing import Any

import pytest

import export
import train
from composing import composition, filled
from guie.base.errors import UserError
from guie.ensembles import joining

A, B, WIDE = "A", "B", "WIDE"  # names of runs
NESTED = {"members": [A, B], "join": "side_by_side"}
LAYER = {"of": ["x"]}


def own(model: Any, **keys: Any) -> dict[str, Any]:
    return {"model": model, **keys}


SIDE: list[tuple[list[Any], dict[str, Any], str]] = [
    ([A], {}, "side_by_side needs at least two"),
    ([A, "none"], {}, "no such run folder"),
    ([NESTED, A], {"join": "soup"}, "members.0: soup takes runs; compose this one separately"),
    ([A, B, WIDE], {"join": "average"}, "join: average: the members have 16, 16, 24 dimensions"),
    ([A, B], {"join": None}, "join: missing, and needed for 2 members"),
    ([own(A, layers=LAYER)], {"join": None}, "has no layer 'x'"),
    ([own(A, layers=LAYER), B], {"join": "soup"}, "layers do not apply to soup"),
    ([A, A], {"join": "soup"}, "given twice"),
    ([A], {"join": "soup"}, "soup needs at least two"),
    ([own(A, checkpoints=True)], {"join": "soup"}, "no checkpoints"),
    ([A, B], {"join": {"name": "soup", "greedy": True}}, "val: a greedy soup needs a val split"),
    ([A, B, WIDE], {"reduce": {"name": "first", "dim": 56}}, "has 56 dimensions; use 1 to 55"),
    # Views
    ([A, B], {"views": ["flop"]}, "unknown view 'flop'; allowed: whole, flip, five_crops"),
    ([A, B], {"views": [{"at": "top_left"}]}, "needs a crop; set part below 1"),
    ([A, B], {"views": [{"aspect": {"max": 1.0}}]}, r"none applies to all images of aspect ratio"),
    ([A, B], {"views": [{}, {"domains": ["cars"]}]}, "classifier: .*a view needs it"),
    ([A, B], {"classifier": "data"}, "classifier: .*no view needs it"),
    ([A, A], {"average": "raw"}, "average: .*raw needs a mean; set join: average"),
    (
        [{"members": [A], "views": "flip"}],
        {"average": "raw", "join": None},
        "members.0: .*an ensemble has unit length; average: raw needs models",
    ),
    (
        [A, B],
        {"views": [{}, {"domains": ["sea"]}], "classifier": "data"},
        "domain 'sea' has no images to fit the classifier on; available:",
    ),
    # Reductions
    (
        [A, B],
        {"reduce": {"name": "pca", "dim": 4, "images": {"manifest": "m.csv", "split": "test"}}},
        r"reduce\.images\.split: Input should be 'train' or 'val'",
    ),
]


@pytest.mark.parametrize(("members", "keys", "message"), SIDE)
def test_an_impossible_composition_is_refused(
    members: list[Any],
    keys: dict[str, Any],
    message: str,
    kin: list[Path],
    wide: Path,
    data: dict[str, str],
    tmp_path: Path,
) -> None:
    values = {A: str(kin[0]), B: str(kin[1]), WIDE: str(wide), "data": data}

    with pytest.raises(UserError, match=message) as refused:
        composition(
            tmp_path / "x",
            filled(members, values),
            **{"join": "side_by_side", **filled(keys, values)},
        )
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "x").exists()


def test_missing_inputs_are_named_before_a_member_is_opened(
    kin: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "open_model", None)
    for other, reduce, message in (
        ("nowhere", {}, "nowhere: no such run folder"),
        (kin[1], {"texts": "gone.txt"}, "gone.txt: no such file or fol"),
        (kin[1], {"images": {"manifest": "gone.csv"}}, "gone.csv: no such file"),
    ):
        keys = {"reduce": {"name": "pca", **reduce}} if reduce else {}
        with pytest.raises(UserError, match=message):
            composition(tmp_path / "all", [kin[0], other], join="average", **keys)


def test_a_finished_composition_has_limits(kin: list[Path], wide: Path, tmp_path: Path) -> None:
    """Its members have sizes and layers of their own, no training runs there, 64 numbers are exported."""
    out = composition(tmp_path / "two", kin, join="side_by_side")
    for members, keys, message in (
        ([own(str(out), size_px=40)], {}, "state the size of each of its members"),
        ([own(str(out), layers=LAYER)], {}, "take layers of each of them"),
        ([out, kin[0]], {"join": "soup"}, "combines several models or views; average the runs"),
    ):
        with pytest.raises(UserError, match=message):
            composition(tmp_path / "x", members, **keys)
    config = tmp_path / "train.yaml"
    config.write_text(f"base: {kin[0] / 'config.yaml'}\nname: two\nout: {tmp_path}\n")
    with pytest.raises(UserError, match="holds an ensemble"):
        train.main(["--config", str(config)])
    broad = composition(tmp_path / "broad", [wide] * 3, join="side_by_side")
    with pytest.raises(UserError, match=r"72 dimensions, the challenge allows 64; .*compose\.py"):
        export.main(["--run", str(broad), "--out", str(tmp_path / "submission")])
