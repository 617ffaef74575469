"""The guard sees what differs, wherever it stands, and nothing else; and says what it left out."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import guard
from guard_files import difference


class Mean(torch.nn.Module):
    """A model of one number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW.float().mean(dim=(2, 3)) * self.factor


def save_tensors(path: Path, value: float) -> None:
    save_file({"a": torch.zeros(3), "b": torch.tensor([1.0, value])}, path)


def save_log(path: Path, value: float) -> None:
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": value}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def save_json(path: Path, value: float) -> None:
    path.write_text(json.dumps({"mean": {"r_at_1": value}}))


def save_table(path: Path, value: float) -> None:
    path.write_text(f"image_path,weight\na.jpg,{value}\n")


def save_embeddings(path: Path, value: float) -> None:
    np.savez(path, image_path=["x", "y"], embedding=np.float32([[0, 1], [1, value]]))


def save_submission(path: Path, value: float) -> None:
    torch.jit.script(Mean(value)).save(path.with_suffix(".pt"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".pt"), "saved_model.pt")


def save_folder(path: Path, value: float) -> None:
    (path / "class").mkdir(parents=True)
    (path / "class" / "a.jpg").write_text(str(value))


KINDS: dict[str, tuple[Callable[[Path, float], None], str]] = {
    "model.safetensors": (save_tensors, r"b: apart by 1.2e-07 at most"),
    "metrics.jsonl": (save_log, r"line 2: loss: 1.0 \| 1.00000011"),
    "score.json": (save_json, r"mean.r_at_1: 1.0 \| 1.00000011"),
    "mix.csv": (save_table, r"line 2: a.jpg,1.0 \| a.jpg,1.00000011"),
    "E.npz": (save_embeddings, "y: apart by 1.2e-07 at most"),
    "submission.zip": (save_submission, r"1 x 1: apart by .* \(and 2 more\)"),
    "images": (save_folder, "class/a.jpg: "),
}


ONE, NEXT = 1.0, float(np.nextafter(np.float32(1), np.float32(2)))


def side(folder: Path, name: str) -> guard.Side:
    (folder / name).mkdir()
    return guard.Side(name, folder / name, folder / name)


@pytest.mark.parametrize("file", KINDS)
def test_one_bit_is_found_in_every_kind_of_file(file: str, tmp_path: Path) -> None:
    save, expected = KINDS[file]
    then, now, same = (side(tmp_path, name) for name in ("then", "now", "same"))
    save(then.folder / file, ONE)
    assert guard.compared("run", then, now, [file]) == [("run", file, "only in then")]
    save(now.folder / file, NEXT)
    save(same.folder / file, ONE)
    ((_, _, found),) = guard.compared("run", then, now, [file])
    assert re.match(expected, found), found
    assert guard.compared("run", then, same, [file]) == [("run", file, guard.EQUAL)]


def test_times_and_the_question_itself_are_no_difference(tmp_path: Path) -> None:
    then, now = (side(tmp_path, name) for name in ("then", "now"))
    for one, seconds in ((then, 1), (now, 2)):
        message = {
            "seconds": seconds,
            "peak_memory_mb": seconds,
            "config": {"key": seconds},
            "n": 3,
        }
        (one.folder / "s.json").write_text(json.dumps(message))
    assert guard.verdict("s.json", then, now) == guard.EQUAL


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


def test_a_refused_key_is_told_and_what_needs_the_run_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = "import sys; sys.exit('0%|\\rerror: a.yaml: lr.classes: unknown key\\nmore')"
    runs = {"a": {"do": "{tree}/train.py", "files": "x"}, "b": {"do": "-c pass", "needs": "a"}}
    runs["c"] = {"do": "{tree}/compose.py"}
    monkeypatch.setattr(guard, "PLAN", {"runs": runs})
    then, now = (side(tmp_path, name) for name in ("then", "now"))
    for one, text in ((then, ""), (now, refuses)):
        (one.tree / "train.py").write_text(text)
        for name in runs:
            one.do(name)
    rows = [guard.compared(name, then, now, guard.files_of(name, runs[name]))[0] for name in runs]
    assert rows == [
        ("a", "-", "fails in now: error: a.yaml: lr.classes: unknown key"),
        ("b", "-", "left out: no a in now"),
        ("c", "-", "left out: no compose.py in then; left out: no compose.py in now"),
    ]


def test_every_run_of_the_plan_comes_after_what_it_needs() -> None:
    done: set[str] = set()
    for name, run in guard.PLAN["runs"].items():
        assert set(run.get("needs", "").split()) <= done, name
        done.add(name)
    with pytest.raises(guard.Fault, match="--only nothing: no such run"):
        guard.with_needs(["nothing"])
