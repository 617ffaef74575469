"""Studies of runs that nobody trains: small files, and scripts that stand in for the four."""

import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from guie.config.loading import to_yaml
from guie.studies import runner
from guie.studies import study as studying
from guie.studies.grid import Job, Plan, read_plan
from guie.studies.results import Code, Record, read_results, stamp
from guie.studies.runner import Children

BASE = """
name: base
data: {manifest: m.csv}
model:
  backbone: {library: timm, name: resnet18}
  image: {size_px: 32}
train: {epochs: 2, lr: {head: 1e-3, classes: 1e-3}}
stages: [{name: head}, {name: full, epochs: 3}]
"""
STUDY: dict[str, Any] = {
    "run": {"base": "base.yaml"},
    "seeds": 2,
    "baseline": "plain",
    "rows": {"plain": {}, "softmax": {"task.loss": {"name": "softmax"}}},
}
CODE = Code(src="5c" * 20, commit="c0" * 20, dirty=False)

# Reads its config, writes what the real one would; a row named `bad` fails.
TRAIN = """
import json, re, sys, time
from pathlib import Path
written = Path(sys.argv[2]).read_text()
name, out, seed = (re.search(f"^{k}: (.*)$", written, re.M)[1] for k in ("name", "out", "seed"))
run = Path(out) / name
run.mkdir(parents=True, exist_ok=True)
(Path(out) / "trained").open("a").write(name + chr(10))
if name.startswith("bad"):
    sys.exit("error: " + str(Path.cwd()) + "/disk: the disk is full")
time.sleep(float((Path(out) / "seconds").read_text()) if (Path(out) / "seconds").exists() else 0)
(run / "config.yaml").write_text(written)
score = int(name[-2:], 16) / 256
lines = [{"step": 5, "val_r_at_1": score, "val_mmp_at_5": score, "val_r_at_1/cars": score}]
(run / "metrics.jsonl").write_text("".join(json.dumps(line) + chr(10) for line in lines))
best = {"val_r_at_1": score, "step": 5}
summary = {"best": best, "seconds": 7.0, "peak_memory_mb": 9, "trainable_parameters": 1234}
(run / "summary.json").write_text(json.dumps(summary))
"""
# Counts its members, and notes that their folders are there
COMPOSE = """
import json, sys
from pathlib import Path
from ruamel.yaml import YAML
config = YAML(typ="safe", pure=True).load(Path(sys.argv[2]).read_text())
run = Path(config["out"]) / config["name"]
run.mkdir()
runs = [Path(member["model"]) for member in config["members"]]
members = [str(path.name) for path in runs if (path / "summary.json").exists()]
(run / "composed.json").write_text(json.dumps({"members": members, "val": config["val"]}))
line = {"step": 0, "val_r_at_1": 0.5, "val_mmp_at_5": 0.5, "val_r_at_1/cars": 0.5}
(run / "metrics.jsonl").write_text(json.dumps(line) + chr(10))
(run / "summary.json").write_text(json.dumps({"best": {"step": 0, "val_r_at_1": 0.5}, "steps": 0}))
"""
EMBED = """
import sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
out.write_text("")
(out.parent / f"{out.stem}.words").write_text(" ".join(sys.argv[1:]))
"""
VALIDATE = """
import json, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
score = int(out.parent.name[-2:], 16) / 300
scores = {"r_at_1": score, "mmp_at_5": score}
report = {"mean": scores, "domains": {"cars": scores}}
if "--draws" not in sys.argv:
    report["intervals"] = {"mean": {"r_at_1": [score - 0.01, score + 0.02]}}
if "--protocol" in sys.argv:
    headline = {"unified R@1": score, "harmonic R@1": score / 2}
    report = {"protocols": {"puma": {"headline": headline | {"harmonic MAP@R": None}}}}
out.write_text(json.dumps(report))
(out.parent / f"{out.stem}.words").write_text(" ".join(sys.argv[1:]))
if "--write-queries" in sys.argv:
    queries = Path(sys.argv[sys.argv.index("--write-queries") + 1])
    lines = ["cars,1,1.0", "cars,1,0.0", "cars,0,1.0", "cars,0,"]  # the last has no positive
    queries.write_text(chr(10).join(["domain,class,r_at_1", *lines]))
"""
SCRIPTS = {"train": TRAIN, "compose": COMPOSE, "embed": EMBED, "validate": VALIDATE}


def written(folder: Path, **changes: Any) -> Path:
    """A study's file, with its base."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(BASE)
    path = folder / "s.yaml"
    path.write_text(to_yaml(STUDY | changes))
    return path


def student(*teachers: str) -> dict[str, Any]:
    """A row that learns from these models."""
    task = {"name": "distillation", "criteria": [{"relation": {"name": "rkd"}}]}
    teachers_of = {"teachers": [{"model": name} for name in teachers]}
    return {"task": task | teachers_of, "train.lr.classes": 0}


def plan(folder: Path, **changes: Any) -> Plan:
    return read_plan(written(folder, **changes))


def record(job: Job, test: float, code: Code = CODE, **more: Any) -> Record:
    """A result of that R@1; the other scores follow from it."""
    domains = more.pop("domains", {"cars": test})
    return {
        **stamp(job, code),
        "val": {"r_at_1": test + 0.1, "mmp_at_5": test + 0.05},
        "test": {"r_at_1": test, "mmp_at_5": test / 2}
        | {"domains": {n: {"r_at_1": v, "mmp_at_5": v / 2} for n, v in domains.items()}},
        "seconds": 100.0,
        **more,
    }


RUN_CHILD, ONE_AT_A_TIME = Children.run, threading.Lock()


def run_here(self: Children, script: Path, words: Sequence[object], log: Path) -> None:
    """In place of `Children.run`, without a process."""
    with ONE_AT_A_TIME, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [str(script), *map(str, words)])
        runpy.run_path(str(script), run_name="__main__")


def stand_in(folder: Path, patched: pytest.MonkeyPatch, processes: bool = False) -> None:
    """Stand-ins for the four scripts; `processes`: each in a process of its own, as ever."""
    patched.setattr(Children, "run", RUN_CHILD if processes else run_here)
    (folder / "fakes").mkdir(exist_ok=True)
    for name, text in SCRIPTS.items():
        (folder / "fakes" / f"{name}.py").write_text(text)
    patched.chdir(folder)
    patched.setattr(runner, "SCRIPTS", folder / "fakes")
    for module in (studying, runner):
        patched.setattr(module, "code_of", lambda: CODE)
    patched.setattr(studying, "decode_images", lambda jobs: None)
    patched.setattr(studying, "draw", lambda *args: None)


def trained(folder: Path) -> list[str]:
    """Names of the runs that were begun, in order."""
    path = folder / "runs/studies/s/trained"
    return path.read_text().split() if path.exists() else []


def table(folder: Path) -> str:
    return (folder / "runs/studies/s/table.md").read_text()


def kinds(folder: Path) -> tuple[int, int]:
    results = read_results(folder / "s.json")
    return len(results.runs), len(results.failures)
