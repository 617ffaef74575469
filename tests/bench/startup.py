"""How long scripts take before they work: the help, the refusal of a wrong config key, one small query.

python tests/bench/startup.py [--rounds 3] [--dim 64]

Each command runs in a process of its own, and the commands take turns. Told are the medians of the wall
time, the processor time and the memory of a process, and the wall time over that of `import torch`. The
query is one picture against an index of 30, by a ViT-Ti/16 of random weights.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[2]
TORCH = "import torch"
CONFIGS = {
    "train": "configs/demo.yaml",
    "curate": "configs/mix_demo.yaml",
    "compose": "configs/compose/soup.yaml",
}
PICTURES, SIZE_PX = 30, 224


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    seconds: float
    cpu_seconds: float
    memory_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64, help="of the query's embedding")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = {TORCH: ["-c", TORCH]} | helps() | refusals() | query(Path(folder), args.dim)
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for _ in range(args.rounds):
            for name, words in tqdm(commands.items(), "commands", disable=None):
                costs[name].append(cost(words))
    print("| command | s | CPU s | MB | of `import torch` |")
    print("|---|---|---|---|---|")
    for name, those in costs.items():
        seconds = statistics.median(one.seconds for one in those)
        cpu = statistics.median(one.cpu_seconds for one in those)
        memory = statistics.median(one.memory_mb for one in those)
        share = seconds / statistics.median(one.seconds for one in costs[TORCH])
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {memory:.0f} | {share:.2f} |")


def helps() -> dict[str, list[str]]:
    files = sorted((ROOT / "src").glob("*.py"))
    scripts = [file for file in files if "__main__" in file.read_text(encoding="utf-8")]
    return {f"{script.name} --help": [str(script), "--help"] for script in scripts}


def refusals() -> dict[str, list[str]]:
    return {
        f"{name}.py, a wrong key": [f"src/{name}.py", "--config", config, "--set", "nonsense=1"]
        for name, config in CONFIGS.items()
    }


def query(folder: Path, dim: int) -> dict[str, list[str]]:
    """Return the command that asks a small index.

    Another process makes the index, as the memory of a child counts from that of its parent.
    """
    maker = multiprocessing.get_context("spawn").Process(target=make_index, args=(folder, dim))
    maker.start()
    maker.join()
    words = ["query", "--index", str(folder / "index"), str(folder / "pictures/0.jpg")]
    return {"search.py query": ["src/search.py", *words]}


def make_index(folder: Path, dim: int) -> None:
    """Write a run, pictures and their index."""
    import numpy as np
    import torch
    from PIL import Image

    import search
    from guie.config import RunConfig, config_from
    from guie.models import build_embedder, save_model
    from guie.training.run_folder import write_record

    run, pictures = folder / "run", folder / "pictures"
    config = {
        "name": run.name,
        "out": str(folder),
        "data": {"manifest": "none.csv"},
        "model": {
            "backbone": {"library": "timm", "name": "vit_tiny_patch16_224"},
            "head": {"dim": dim},
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
    words = ["--model", str(run), "--images", str(pictures), "--out", str(folder / "index")]
    search.main(["index", *words])


def cost(words: list[str]) -> Cost:
    """Run Python with these words; its output is dropped. Raises RuntimeError if it crashes."""
    began = time.perf_counter()
    command = [sys.executable, *words]
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 2):  # 2: refused
        raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
