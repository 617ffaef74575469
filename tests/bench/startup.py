"""How long scripts take before they work: the help, the refusal of a wrong config key, one small query.

python tests/bench/startup.py [--rounds 3]

Each command is a process of its own, and the commands take turns. Shown are the medians of its wall time,
processor time and peak memory, and its wall time over that of `import torch`. The query is one picture
against an index of 30, by a ViT-Ti/16 with random weights.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import arguments, show
from PIL import Image

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
PICTURES, SIZE_PX = 30, 224


def main() -> None:
    args = arguments(__doc__, rounds=3)
    files = sorted((ROOT / "src").glob("*.py"))
    scripts = [file for file in files if "__main__" in file.read_text(encoding="utf-8")]
    commands = {TORCH: ["-c", TORCH]}
    commands |= {f"{script.name} --help": [str(script), "--help"] for script in scripts}
    commands |= {
        f"{name}.py, a wrong key": [f"src/{name}.py", "--config", config, "--set", "nonsense=1"]
        for name, config in CONFIGS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        commands["search.py query"] = ["src/search.py", "query", *indexed(Path(folder))]
        costs = {name: np.zeros((args.rounds, 3)) for name in commands}
        for turn in range(args.rounds):
            for name, words in commands.items():
                costs[name][turn] = cost(words)
    of_torch = np.median(costs[TORCH][:, 0])
    medians = {name: np.median(of_one, axis=0) for name, of_one in costs.items()}
    show(
        ["command", "s", "CPU s", "MB", "of `import torch`"],
        ([name, *median, median[0] / of_torch] for name, median in medians.items()),
    )


def indexed(folder: Path) -> list[str]:
    """Write a run, pictures and their index; return the words that ask for the first picture."""
    run, pictures, index = folder / "run", folder / "pictures", folder / "index"
    config = {
        "name": run.name,
        "out": str(folder),
        "data": {"manifest": "none.csv"},
        "model": {
            "backbone": {"library": "timm", "name": "vit_tiny_patch16_224"},
            "image": {"size_px": SIZE_PX},
        },
        "train": {"epochs": 1, "lr": {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2}},
    }
    known = config_from(config, RunConfig)
    write_record(run, known)
    torch.manual_seed(0)
    save_model(build_embedder(known.model), run / "model.safetensors", SIZE_PX)
    pictures.mkdir()
    rng = np.random.default_rng(0)
    for number in range(PICTURES):
        pixels = rng.integers(0, 256, (240, 320, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(pictures / f"{number}.jpg")
    search.main(["index", "--model", str(run), "--images", str(pictures), "--out", str(index)])
    return ["--index", str(index), str(pictures / "0.jpg")]


def cost(words: list[str]) -> tuple[float, float, float]:
    """Run Python with these words; return wall and CPU seconds, and MB.

    The system's own peak of a child's memory counts what its parent held, so it is read as it runs.
    """
    began, megabytes = time.perf_counter(), 0.0
    child = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        about = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
        if held := re.search(r"VmHWM:\s+(\d+) kB", about):
            megabytes = int(held[1]) / 1024
        time.sleep(0.005)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 2):  # 2: refused
        raise RuntimeError(f"{' '.join(words)}: exit code {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, megabytes


if __name__ == "__main__":
    main()
