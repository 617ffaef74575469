"""What `make gpu` prints: without a GPU, after failures, from the tables of benchmarks."""

import sys
from pathlib import Path

import pytest

import on_gpu
from guie.config import RunConfig, load_config

TABLE = """
| images a step | images/s      | ms | of product | GB held |
| ------------- | ------------- | -- | ---------- | ------- |
| 32            | 240.1         | 13 | 0.413      | 21.5    |
| 128           | out of memory |    |            |         |

| images embedded at once | images/s | from files |
| 8                       | 4,353    | 38.2       |
"""
OUTPUT = """
FAILED tests/gpu/test_a.py::test_x[SAM, EMA] - AssertionError: 1 - 2
ERROR tests/gpu/test_b.py::test_y
2 failed, 3 passed in 4.00s
"""


def test_without_a_gpu_one_line_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert on_gpu.main([]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("make gpu: torch sees no GPU, so nothing was tested")


@pytest.mark.parametrize(("model", "options"), on_gpu.BENCHMARKS)
def test_benchmarks_are_runs_that_card_takes(
    model: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(on_gpu.ROOT)
    _, script, *words = on_gpu.command_of(model, options)
    assert Path(script).is_file()
    settings = [word for flag, word in zip(words, words[1:], strict=False) if flag == "--set"]
    config = load_config(words[words.index("--config") + 1], RunConfig, settings)
    assert config.model.backbone.name == model
    assert "full" in [stage.name for stage in config.stages]


def test_each_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_gpu, "_run", lambda command, seconds: (OUTPUT, 1))
    outcomes = on_gpu.tested(300)
    assert outcomes[:2] == [
        ("tests/gpu/test_a.py::test_x[SAM, EMA]", "FAILED", "AssertionError: 1 - 2"),
        ("tests/gpu/test_b.py::test_y", "FAILED", ""),
    ]
    assert outcomes[2].detail == "3 passed in 4.00s"
    assert on_gpu.summary(outcomes).splitlines()[-1] == "2 failed"
    monkeypatch.setattr(on_gpu, "_run", lambda command, seconds: ("", None))
    assert on_gpu.tested(300) == [("tests/gpu", "FAILED", "stopped after 300 s")]


def test_the_goal_is_compared_and_no_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([(TABLE, 0), ("Traceback\nValueError: no", 1)])
    monkeypatch.setattr(on_gpu, "_run", lambda command, seconds: next(answers))
    monkeypatch.setattr(on_gpu, "BENCHMARKS", on_gpu.BENCHMARKS[:3])
    now = iter([0.0, 10.0, 580.0])
    monkeypatch.setattr(on_gpu.time, "monotonic", lambda: next(now))
    ran, broke, late, goal = on_gpu.measured(600.0)
    shown = "share of a matrix product 0.41"
    assert ran == ("ViT-H-14 --batch 32 --batch 64 --batch 128", "ok", shown)
    assert (broke.verdict, broke.detail) == ("FAILED", "ValueError: no")
    assert (late.verdict, late.what) == ("not run", " ".join(on_gpu.BENCHMARKS[2]))
    assert (goal.verdict, goal.detail) == ("missed", "best 0.41")


def test_a_command_is_stopped_in_time() -> None:
    output, code = on_gpu._run([sys.executable, "-c", "print('begun'); raise SystemExit(3)"], 60)
    assert (output, code) == ("begun\n", 3)
    assert on_gpu._run([sys.executable, "-c", "import time; time.sleep(600)"], 1)[1] is None
