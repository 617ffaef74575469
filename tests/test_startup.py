"""Scripts parse their arguments and check their config before they import what takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    path.stem for path in (ROOT / "src").glob("*.py") if "__main__" in path.read_text()
)
FOLDERS = {"get_small": "input"}  # of scripts outside src/
HEAVY = {
    *("torch", "torchvision", "timm", "open_clip", "albumentations", "accelerate"),
    *("pandas", "faiss", "sklearn", "scipy", "matplotlib"),
}
WRONG_KEY = ["--set", "nonsense=1"]
FILES = ["--embeddings", "E", "--manifest", "M", "--out", "O"]
REFUSED = [
    *((script, ["--no-such-flag"], f"usage: {script}.py") for script in [*SCRIPTS, *FOLDERS]),
    ("get_small", ["--only", "cars", "--from", "/nowhere", "--out", "/nowhere"], "no such archive"),
    ("train", ["--config", "configs/demo/train.yaml", *WRONG_KEY], "nonsense"),
    ("train", ["--config", "configs/demo/train.yaml", "--set", "seed=x"], "seed"),
    ("curate", ["--config", "configs/demo/mix.yaml", *WRONG_KEY], "nonsense"),
    ("compose", ["--config", "configs/compose/soup.yaml", *WRONG_KEY], "nonsense"),
    ("validate", [*FILES, "--draws", "-1"], "0 or more"),
    ("validate", ["--embeddings", "E", "--manifest", "E", "--out", "E"], "would replace"),
    ("embed", ["--model", "M", "--manifest", "E", "--out", "E"], "would replace"),
    ("search", ["query", "--index", "I", "--box", "1,2", "a.jpg"], "left,top,right,bottom"),
    ("search", ["index", "--shard", "4/4"], "from 0 to M - 1"),
]
HELPED = [(script, ["--help"], "usage:") for script in [*SCRIPTS, *FOLDERS]]

# Runs scripts one after the other; a heavy package is told by the first that has imported it.
RUNS = """
import io, json, runpy, sys
from contextlib import redirect_stderr, redirect_stdout

ended = []
for path, words in json.loads(sys.argv[1]):
    before, code, said = set(sys.modules), None, io.StringIO()
    sys.argv, sys.path[0] = [path, *words], path.rpartition("/")[0]
    with redirect_stdout(said), redirect_stderr(said):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as stop:
            code = stop.code or 0
    ended.append((code, said.getvalue(), sorted(set(sys.modules) - before)))
print(json.dumps(ended))
"""


def test_neither_help_nor_a_refusal_imports_what_is_heavy() -> None:
    cases = [*HELPED, *REFUSED]
    files = [str(ROOT / FOLDERS.get(name, "src") / f"{name}.py") for name, _, _ in cases]
    words = json.dumps([(file, case[1]) for file, case in zip(files, cases, strict=True)])
    command = [sys.executable, "-c", RUNS, words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for case, (code, said, modules) in zip(cases, json.loads(done.stdout), strict=True):
        script, _, message = case
        assert code == (0 if case in HELPED else 2) and message in said, (case, said)
        heavy = {name.partition(".")[0] for name in modules} & HEAVY
        assert not heavy, (case, heavy)


@pytest.mark.slow
def test_what_takes_a_second_is_imported_only_where_it_is_used() -> None:
    modules = "guie.curation.mix, guie.report.scoring, guie.losses"
    slow = {"torchvision", "timm", "sklearn", "scipy.stats", "torch.distributed.tensor"}
    code = f"import sys, {modules}; sys.exit(', '.join({slow} & sys.modules.keys()) or None)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
