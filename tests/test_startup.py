"""Scripts parse their arguments and check their config before they import what takes seconds."""

from __future__ import annotations

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
# The process that scores imports no torch at all; pandas and faiss take half a second.
NEEDED = {"score": {"pandas", "faiss"}}
WRONG_KEY = ["--set", "nonsense=1"]


def run(script: str, *words: str) -> tuple[int, str, set[str]]:
    """Run a script; return its exit code, what it printed, and the heavy packages it imported."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        f"{FOLDERS.get(script, 'src')}/{script}.py",
        *words,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = ended.stderr.splitlines()
    imports = [line for line in lines if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports}
    assert "argparse" in names, "the list of imports has another form"
    said = "\n".join(line for line in lines if line not in imports)
    return ended.returncode, ended.stdout + said, names & HEAVY - NEEDED.get(script, set())


@pytest.mark.parametrize("script", [*SCRIPTS, *FOLDERS])
def test_help_imports_nothing_heavy(script: str) -> None:
    code, printed, heavy = run(script, "--help")
    assert code == 0 and printed.startswith("usage:")
    assert not heavy


@pytest.mark.parametrize(
    "script, words, message",
    [
        *((script, ["--no-such-flag"], f"usage: {script}.py") for script in [*SCRIPTS, *FOLDERS]),
        (
            "get_small",
            ["--only", "cars", "--from", "/nowhere", "--out", "/nowhere"],
            "no such archive",
        ),
        ("train", ["--config", "configs/demo/train.yaml", *WRONG_KEY], "nonsense"),
        ("train", ["--config", "configs/demo/train.yaml", "--set", "seed=x"], "seed"),
        ("curate", ["--config", "configs/demo/mix.yaml", *WRONG_KEY], "nonsense"),
        ("compose", ["--config", "configs/compose/soup.yaml", *WRONG_KEY], "nonsense"),
        (
            "validate",
            ["--embeddings", "E", "--manifest", "M", "--out", "O", "--draws", "-1"],
            "0 to",
        ),
        ("validate", ["--embeddings", "E", "--manifest", "E", "--out", "E"], "would replace"),
        ("embed", ["--model", "M", "--manifest", "E", "--out", "E"], "would replace"),
        ("search", ["query", "--index", "I", "--box", "1,2", "a.jpg"], "left,top,right,bottom"),
        ("search", ["index", "--shard", "4/4"], "from 0 to M - 1"),
    ],
)
def test_a_refusal_imports_nothing_heavy(script: str, words: list[str], message: str) -> None:
    code, printed, heavy = run(script, *words)
    assert code == 2 and message in printed
    assert not heavy


@pytest.mark.slow
def test_what_takes_a_second_is_imported_only_where_it_is_used() -> None:
    modules = "guie.curation.mix, guie.report.scoring, guie.losses"
    slow = {"torchvision", "timm", "sklearn", "scipy.stats", "torch.distributed.tensor"}
    code = f"import sys, {modules}; sys.exit(', '.join({slow} & sys.modules.keys()) or None)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
