"""Helpers of the numbered notebooks: the repository's root, the config size, scripts, embeddings."""

import io
import os
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Thread
from typing import IO

import numpy as np
import pandas as pd
from IPython.display import Image
from matplotlib.figure import Figure

from guie.base.devices import make_accelerator
from guie.evaluation.knn import unit_vectors
from guie.models import LoadedModel
from guie.rows.embedding import stored_features

ROOT = Path(__file__).resolve().parents[3]
SIZE = os.environ.get("GUIE_SIZE", "demo")  # or smoke: the same steps in seconds, for CI
FIGURES = ROOT / "runs" / SIZE / "figures"
DPI = 100
LAST_LINES = 30


def run(command: str, quiet: bool = False) -> None:
    """Run a command from the repository's root and stream its output.

    Its stdout becomes the cell's, unless quiet, and its stderr (progress bars, warnings) too. Raises
    RuntimeError with the last lines of stderr if the command fails.
    """
    # Programs of this environment come first, whether it is activated or not.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr  # pipes
    last: deque[str] = deque(maxlen=LAST_LINES)
    errors = Thread(target=_forward, args=(process.stderr, sys.stderr, last))
    errors.start()
    _forward(process.stdout, io.StringIO() if quiet else sys.stdout, deque())
    errors.join()
    if process.wait():
        raise RuntimeError(f"{command}: exit code {process.returncode}\n{''.join(last)}")


def show(figure: Figure, name: str) -> Image:
    """Save a figure as `runs/<size>/figures/<name>.png` and return it as a cell's output.

    Sheets of photos are embedded as JPEG, because PNG would take megabytes.
    """
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", dpi=DPI)
    jpeg = io.BytesIO()
    figure.savefig(jpeg, format="jpeg", dpi=DPI, pil_kwargs={"quality": 85})
    png = (FIGURES / f"{name}.png").read_bytes()
    return Image(png if len(png) < 2 * len(jpeg.getvalue()) else jpeg.getvalue())


def embedded(model: LoadedModel, table: pd.DataFrame, root: Path) -> np.ndarray:
    """Return the unit embedding of each row's image (N, D), cached. Raises UserError if one is unreadable."""
    features, paths = ROOT / "runs" / SIZE / "features", table["image_path"]
    return unit_vectors(stored_features(make_accelerator(), model, paths, root, features)[:], paths)


def _forward(source: IO[bytes], target: IO[str], last: deque[str]) -> None:
    """Copy text as it arrives; keep the last lines, and only the final state of a progress bar."""
    for piece in io.TextIOWrapper(source, newline="", errors="replace"):
        target.write(piece)
        if not piece.endswith("\r"):
            last.append(piece)
