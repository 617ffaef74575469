"""All that needs a real GPU, in one call of under ten minutes on an H100: tests, then benchmarks.

python tests/on_gpu.py [--minutes 9.5] [--only tests|benchmarks]

Weights are random and images drawn: nothing is downloaded. The most important benchmark runs first, and
none is started without time for it. The summary at the end names each failure.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from guie.base.processes import usable_cores

ROOT = Path(__file__).parents[1]
# Share of a matrix product's FLOP/s that a step of ViT-H/14 should reach
GOAL = 0.45
TESTS_S, LONGEST_S = 330, 150


# Steps of CLIPs of random weights by tests/bench/card.py: the model and options, the most important first
BENCHMARKS = [
    ("ViT-H-14", "--batch 32 --batch 64 --batch 128"),
    ("ViT-B-16", "--batch 64 --batch 256 --embed"),
    ("ViT-H-14", "--batch 64 --batch 128 --set compile=true"),
    ("ViT-L-14", "--batch 64 --batch 256"),
    ("ViT-B-16", "--batch 256 --set compile=true --set channels_last=true"),
]


class Outcome(NamedTuple):
    """What happened: `ok`, `FAILED` or `not run`; a line about it."""

    what: str
    verdict: str
    detail: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all; return 1 if anything failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--only", choices=["tests", "benchmarks"])
    args = parser.parse_args(argv)
    import torch  # takes seconds, and --help does not need it

    if not torch.cuda.is_available():
        print("make gpu: torch sees no GPU, so nothing was tested; run it on a machine with one")
        return 2
    ends = time.monotonic() + 60 * args.minutes
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    outcomes: list[Outcome] = []
    if args.only != "benchmarks":
        outcomes += tested(min(TESTS_S, ends - time.monotonic()))
    if args.only != "tests":
        outcomes += measured(ends)
    print(summary(outcomes))
    return int(any(outcome.verdict == "FAILED" for outcome in outcomes))


def tested(seconds: float) -> list[Outcome]:
    """Run tests/gpu; each failed one is an outcome, all others are another."""
    words = ["-m", "pytest", "tests/gpu", "-q", "-rfE", "-p", "no:cacheprovider", "--durations=8"]
    words += ["-n", str(min(8, usable_cores()))]
    output, code = _run([sys.executable, *words], seconds)
    failures = [Outcome(*one) for one in failed(output)]
    counts = re.findall(r"\d+ passed[^\n]*", output)
    if code is None:
        failures.append(Outcome("tests/gpu", "FAILED", f"stopped after {seconds:.0f} s"))
    elif code and not failures:
        failures.append(Outcome("tests/gpu", "FAILED", f"pytest ended with code {code}"))
    return [*failures, Outcome("tests/gpu, the others", "ok", counts[-1])] if counts else failures


def failed(output: str) -> Iterator[tuple[str, str, str]]:
    """Yield each failed test in pytest's short summary, with its message."""
    for name, message in re.findall(
        r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - (.*))?$", output, re.M
    ):
        yield name, "FAILED", message


def command_of(model: str, options: str) -> list[str]:
    words = "--config configs/vit_h14.yaml --stage full --steps 10 --set model.backbone.name="
    return [sys.executable, "tests/bench/card.py", *f"{words}{model} {options}".split()]


def measured(ends: float) -> Iterator[Outcome]:
    """Run the benchmarks while there is time, and compare the best with the goal."""
    best = 0.0
    for model, options in BENCHMARKS:
        title, left = f"{model} {options}", ends - time.monotonic()
        if left < 30:
            yield Outcome(title, "not run", "no time was left; raise --minutes")
            continue
        output, code = _run(command_of(model, options), min(LONGEST_S, left))
        found = shares(output)
        if model == "ViT-H-14":
            best = max([best, *found])
        shown = f"share of a matrix product {', '.join(f'{share:.2f}' for share in found)}"
        if code is None:
            yield Outcome(title, "not run", f"stopped by the time limit; {shown}")
        elif code or not found:
            lines = [line for line in output.splitlines() if line.strip()]
            yield Outcome(title, "FAILED", lines[-1] if lines else f"code {code}")
        else:
            yield Outcome(title, "ok", shown)
    reached = "reached" if best >= GOAL else "missed"
    yield Outcome(f"goal: {GOAL} of a matrix product by ViT-H/14", reached, f"best {best:.2f}")


def shares(output: str) -> list[float]:
    """Return the column `of product` of card.py's table of steps."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    heads = next((row for row in rows if "of product" in row), [])
    steps = [row for row in rows if heads and len(row) == len(heads) and row[0].isdigit()]
    found = [row[heads.index("of product")] for row in steps]
    return [float(cell) for cell in found if cell]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return the lines that end the call."""
    width = max(len(outcome.what) for outcome in outcomes)
    lines = [f"{one.verdict:8} {one.what:{width}}  {one.detail}".rstrip() for one in outcomes]
    failures = sum(outcome.verdict == "FAILED" for outcome in outcomes)
    return "\n".join(["", "== summary", *lines, f"{failures} failed"])


def _run(command: Sequence[str], seconds: float) -> tuple[str, int | None]:
    """Run a command of this repository; show and return its output, and its exit code as `run_within`."""
    print(f"\n== {' '.join(command[1:])}", flush=True)
    environment = os.environ | {"GUIE_GPU_TESTS": "1", "PYTHONUNBUFFERED": "1"}
    text, code = run_within(command, ROOT, environment, max(1, seconds))
    print(re.sub(r"[^\n]*\r", "", text), flush=True)  # without progress bars
    return text, code


def run_within(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> tuple[str, int | None]:
    """Return a command's output and exit code, None if it was stopped after these seconds."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, code = process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # with its own processes
        output, code = process.communicate()[0], None
    return output.decode(errors="replace"), code


if __name__ == "__main__":
    sys.exit(main())
