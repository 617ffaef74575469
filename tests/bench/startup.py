"""How long scripts take before they work: the help, the refusal of a wrong config key, one small query.

python tests/bench/startup.py [--rounds 3]

Each command is a process of its own, and the commands take turns. Shown are the medians of its wall and CPU
time, and its wall time over that of `import torch`. The query is one picture in an index of 30, by a
ViT-Ti/16 with random weights.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import RATES, arguments, in_turn, photographs, ratio, show, timm_model
from embedding import children

import search
from guie.config import RunConfig, config_from
from guie.models.embedder import build_embedder
from guie.models.weights import save_model
from guie.training.run_folder import write_record

ROOT = Path(__file__).parents[2]
TORCH = "import torch"
CONFIGS = {
    "train": "configs/demo/train.yaml",
    "curate": "configs/demo/mix.yaml",
    "compose": "configs/compose/soup.yaml",
}


def main() -> None:
    args = arguments(__doc__, rounds=3)
    commands = {TORCH: ["-c", TORCH]}
    for script in sorted((ROOT / "src").glob("*.py")):
        commands[f"{script.name} --help"] = [str(script), "--help"]
    for name, config in CONFIGS.items():
        wrong = [f"src/{name}.py", "--config", config, "--set", "nonsense=1"]
        commands[f"{name}.py, a wrong key"] = wrong
    with tempfile.TemporaryDirectory() as folder:
        commands["search.py query"] = ["src/search.py", "query", *indexed(Path(folder))]
        ways = {name: partial(run, words) for name, words in commands.items()}
        costs = in_turn(ways, args.rounds, children, warm_up=False)
    rows = (
        [name, *np.median(of_one, axis=0), ratio(costs, name, TORCH)[0]]
        for name, of_one in costs.items()
    )
    show(["command", "s", "CPU s", "of `import torch`"], rows)


def run(words: list[str]) -> None:
    """Run Python with these words. Raises RuntimeError unless it ends well or refuses."""
    quiet = subprocess.DEVNULL
    code = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=quiet, stderr=quiet).returncode
    if code not in (0, 2):
        raise RuntimeError(f"{' '.join(words)}: exit code {code}")


def indexed(folder: Path) -> list[str]:
    """Write a run, pictures and their index; return the arguments that query the first picture."""
    run, index = folder / "run", folder / "index"
    values = {"name": run.name, "out": str(folder), "data": {"manifest": "none.csv"}}
    values["model"] = timm_model("vit_tiny_patch16_224", 224)
    config = config_from(values | {"train": {"epochs": 1, "lr": RATES}}, RunConfig)
    write_record(run, config)
    torch.manual_seed(0)
    save_model(build_embedder(config.model), run / "model.safetensors")
    first, *_ = photographs(folder / "pictures", 30, 240)
    words = ["--model", str(run), "--images", str(first.parent), "--out", str(index)]
    search.main(["index", *words])
    return ["--index", str(index), str(first)]


if __name__ == "__main__":
    main()
