"""The guard finds each difference, and names what it left out."""

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import guard
from guard_files import difference
from guie.config.data import DatasetName


class Mean(torch.nn.Module):
    """A model of one number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW.float().mean(dim=(2, 3)) * self.factor


def save_log(path: Path, value: float) -> None:
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": value}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def save_table(path: Path, value: float) -> None:
    path.write_text(f"image_path,weight\na.jpg,{value}\n")


def save_parquet(path: Path, value: float) -> None:
    rows = {"image_path": ["x", "y"], "embedding": [np.float32([0, 1]), np.float32([1, value])]}
    pd.DataFrame(rows).to_parquet(path)


def save_program(path: Path, value: float) -> None:
    images = torch.zeros((2, 3, 5, 7), dtype=torch.uint8)
    sizes = ({n: torch.export.Dim.AUTO for n in (0, 2, 3)},)
    torch.export.save(torch.export.export(Mean(value), (images,), dynamic_shapes=sizes), path)


def save_submission(path: Path, value: float) -> None:
    torch.jit.script(Mean(value)).save(path.with_suffix(".pt"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".pt"), "saved_model.pt")


def save_folder(path: Path, value: float) -> None:
    (path / "class").mkdir(parents=True)
    (path / "class" / "a.jpg").write_text(str(value))


KINDS: dict[str, tuple[Callable[[Path, float], None], str]] = {
    "model.safetensors": (
        lambda path, value: save_file({"a": torch.zeros(3), "b": torch.tensor([1.0, value])}, path),
        "b: apart by 1.2e-07 at most",
    ),
    "metrics.jsonl": (save_log, r"line 2: loss: 1.0 \| 1.00000011"),
    "score.json": (
        lambda path, value: path.write_text(json.dumps({"mean": {"r_at_1": value}})),
        r"mean.r_at_1: 1.0 \| 1.00000011",
    ),
    "mix.csv": (save_table, r"line 2: a.jpg,1.0 \| a.jpg,1.00000011"),
    "E.npz": (
        lambda path, value: np.savez(path, image_path=["x"], embedding=np.float32([[1, value]])),
        "x: apart by 1.2e-07 at most",
    ),
    "E.parquet": (save_parquet, "row 2: embedding: apart by 1.2e-07 at most"),
    "model.pt2": (save_program, r"1 x 1: apart by .* \(and 2 more\)"),
    "shard.tar": (save_table, "sha256: "),
    "submission.zip": (save_submission, r"1 x 1: apart by .* \(and 2 more\)"),
    "images": (save_folder, "class/a.jpg: "),
}


ONE, NEXT = 1.0, float(np.nextafter(np.float32(1), np.float32(2)))


Sides = tuple[guard.Side, guard.Side]


def side(folder: Path, name: str) -> guard.Side:
    (folder / name).mkdir()
    return guard.Side(name, folder / name, folder / name)


@pytest.fixture
def sides(tmp_path: Path) -> Sides:
    return side(tmp_path, "then"), side(tmp_path, "now")


def compared_json(sides: Sides, *contents: dict) -> str:
    """The verdict on `s.json` of these contents, then and now."""
    for one, values in zip(sides, contents, strict=True):
        (one.folder / "s.json").write_text(json.dumps(values))
    ((_, _, verdict),) = guard.compared("run", *sides, ["s.json"])
    return verdict


@pytest.mark.parametrize("file", KINDS)
def test_one_bit_is_found_in_every_kind_of_file(file: str, sides: Sides, tmp_path: Path) -> None:
    (then, now), same = sides, side(tmp_path, "same")
    save, expected = KINDS[file]
    save(then.folder / file, ONE)
    assert guard.compared("run", then, now, [file]) == [("run", file, "only in then")]
    save(now.folder / file, NEXT)
    save(same.folder / file, ONE)
    ((_, _, found),) = guard.compared("run", then, now, [file])
    assert re.match(expected, found), found
    assert guard.compared("run", then, same, [file]) == [("run", file, guard.EQUAL)]


def test_times_and_the_question_itself_are_no_difference(sides: Sides) -> None:
    then, now = ({"seconds": t, "peak_memory_mb": t, "config": {"key": t}, "n": 3} for t in (1, 2))
    assert compared_json(sides, then, now) == guard.EQUAL


def test_results_of_a_study_are_compared_by_their_job(sides: Sides) -> None:
    a, b, changed = (
        {"row": "a", "seed": seed, "fold": None, "test": value}
        for seed, value in ((0, 0.5), (1, 0.6), (1, 0.7))
    )
    assert compared_json(sides, {"runs": [a, b]}, {"runs": [b, a]}) == guard.EQUAL
    found = compared_json(sides, {"runs": [a, b]}, {"runs": [a, changed]})
    assert found == "runs.a, seed 1, fold None.test: 0.6 | 0.7"


def test_what_may_differ_passes_alone_within_its_limit_and_only_while_it_differs(
    sides: Sides,
) -> None:
    then, now = sides
    contents = [{"limits": {"a": value}, "n": value, "k": 3} for value in (1.0, 1.5)]
    assert compared_json(sides, *contents) == "limits.a: 1.0 | 1.5 (and 1 more)"
    (now.folder / "page.html").touch()

    def found(**may_differ: float | None) -> dict[str, str]:
        patterns = {key.replace("_", ": "): limit for key, limit in may_differ.items()}
        rows = guard.compared("run", then, now, ["s.json", "*.html"], {**patterns, "*.html": None})
        return {file: verdict for _, file, verdict in rows if verdict != guard.PASSED}

    allowed = {"s.json_limits*": None, "s.json_n": 0.5}
    assert found(**allowed) == {}
    assert found(**{**allowed, "s.json_n": 0.4}) == {
        "s.json": "n: 1.0 | 1.5",
        "s.json: n": "may differ and does not; remove it",
    }
    assert found(**allowed, s_k=None) == {"s: k": "may differ and does not; remove it"}


def test_the_older_tree_does_what_then_says(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    write = "-c \"open('x', 'w').write('{}')\""
    run = {"do": [write.format(1), write.format(2)], "then": {"do": write.format(3)}}
    monkeypatch.setattr(guard, "PLAN", {"runs": {"a": run}})
    then, now = sides
    then.older = True
    for one, expected in ((then, "3"), (now, "2")):
        one.do("a")
        assert not one.failed and (one.folder / "x").read_text() == expected
    run["then"] = {"do": "{tree}/gone.py"}
    then.do("a")
    assert then.failed == {"a": "remove `then`: no gone.py in then"}


def test_a_failure_is_named_and_what_needs_the_run_is_left_out(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = "import sys; sys.exit('0%|\\rerror: a.yaml: lr.classes: unknown key\\nmore')"
    runs = {"a": {"do": "{tree}/train.py", "files": "x"}, "b": {"do": "-c pass", "needs": "a"}}
    runs["c"] = {"do": "{tree}/compose.py"}
    monkeypatch.setattr(guard, "PLAN", {"runs": runs})
    for one, text in zip(sides, ("", refuses), strict=True):
        (one.tree / "train.py").write_text(text)
        for name in runs:
            one.do(name)
    rows = [guard.compared(name, *sides, guard.files_of(name, runs[name]))[0] for name in runs]
    assert rows == [
        ("a", "-", "fails in now: error: a.yaml: lr.classes: unknown key"),
        ("b", "-", "left out: no a in now"),
        ("c", "-", "left out: no compose.py in then; left out: no compose.py in now"),
    ]


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ({"a": None}, {}, "a: only in then: None"),
        ({}, {"a": 1}, "a: only in now: 1"),
        ({"a": 1}, {"a": 1.0}, "a: 1 | 1.0"),
        ({"a": 0.0, "b": 1}, {"a": 0.0, "b": 1}, None),
        ({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)}, "a: apart by 0 at most"),
        ({"a": torch.tensor(torch.nan)}, {"a": torch.tensor(torch.nan)}, None),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "a: (2,) torch.float32 | (3,) torch.float32"),
    ],
)
def test_first_difference(then: dict, now: dict, expected: str | None) -> None:
    assert difference(then, now) == expected


def test_the_plan_has_each_run_after_its_needs_in_a_group_and_reads_every_data_set() -> None:
    done: set[str] = set()
    for name, run in guard.PLAN["runs"].items():
        assert set(run.get("needs", "").split()) <= done, name
        done.add(name)
    grouped = [run for runs in guard.PLAN["groups"].values() for run in runs.split()]
    assert set(grouped) == done
    assert not set(guard.PLAN["groups"]) & done
    assert guard.with_needs(["search"]) >= {"search_folder", "search_archive", "clip"}
    with pytest.raises(guard.Fault, match="--only nothing: no such run"):
        guard.with_needs(["nothing"])
    read = guard.PLAN["runs"]["readers"]["config"]["sources"]
    assert {source["kind"] for source in read} == set(get_args(DatasetName))
