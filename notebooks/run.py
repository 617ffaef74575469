"""Run the numbered notebooks in order, headless, and print the score.

python notebooks/run.py           the demo, notebooks 01 to 06: from drawing images to the score
python notebooks/run.py --all     the tour: all notebooks
python notebooks/run.py --smoke   all notebooks on tiny configs, as CI does
python notebooks/run.py --save    the tour; its outputs are kept in notebooks/ for committing

The kernel is this Python's and works in notebooks/, as Jupyter's does. Executed copies go to
runs/<size>/notebooks/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from guie.base.files import write_text
from guie.report.notebook import ROOT

NOTEBOOKS = Path(__file__).resolve().parent
DEMO = 6  # notebooks from the first image to the score
PICTURES = ("01_classes", "03_curves", "04_domains", "04_map", "06_gallery")  # to open first


def main(argv: Sequence[str] | None = None) -> None:
    """Run all; exits with code 1 at the first cell that fails."""
    args = parse_args(argv)
    size = "smoke" if args.smoke else "demo"
    done = {}
    paths = numbered(NOTEBOOKS)
    if not (args.all or args.smoke or args.save):
        paths = paths[:DEMO]
    for number, path in enumerate(paths, 1):
        print(f"{number} of {len(paths)}: {path.name} ...", end=" ", flush=True)
        began = time.monotonic()
        try:
            done[path] = execute(path, ROOT / "runs" / size / "notebooks" / path.name, size)
        except CellExecutionError as error:
            print(f"failed\n{error}")
            sys.exit(1)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    if args.save:  # all or none, and after the last has recorded the state of the repository
        for path, notebook in done.items():
            write_text(path, nbformat.writes(cleaned(notebook)) + "\n")
    print(closing(size))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()  # what is committed shows the demo
    size.add_argument("--all", action="store_true", help="all notebooks")
    size.add_argument(
        "--smoke", action="store_true", help="all, on tiny configs: seconds a notebook"
    )
    size.add_argument("--save", action="store_true", help="keep the outputs in notebooks/")
    return parser.parse_args(argv)


def numbered(folder: Path) -> list[Path]:
    """`01_....ipynb`, `02_....ipynb`, ... in order."""
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def execute(path: Path, copy: Path, size: str) -> NotebookNode:
    """Run a notebook and write what came of it to `copy`, also if a cell failed.

    Raises CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],  # it warns of TCP, which stays on this machine
        coalesce_streams=True,  # of a progress bar only the last state
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(env=os.environ | {"GUIE_SIZE": size})
    finally:
        write_text(copy, nbformat.writes(notebook) + "\n")
    return notebook


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """What is worth committing: no counts, no progress bars or warnings, no machine's versions."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
            if "metadata" in output:
                output.metadata = {}
    return notebook


def closing(size: str) -> str:
    """The score, where the submission lies, which pictures to open."""
    submission = ROOT / "submissions" / size
    score = json.loads((submission / "score.json").read_text(encoding="utf-8"))
    groups = {"all": score["pooled"], "public": score["public"], "private": score["private"]}
    numbers = ", ".join(
        f"{name} " + ("-" if group["mmp_at_5"] is None else f"{group['mmp_at_5']:.4f}")
        for name, group in groups.items()
    )
    figures = ROOT / "runs" / size / "figures"
    pictures = [str((figures / f"{name}.png").relative_to(ROOT)) for name in PICTURES]
    return "\n".join(
        [
            f"\nmMP@5       {numbers}",
            f"submission  {(submission / 'submission.zip').relative_to(ROOT)}",
            "pictures    " + "\n            ".join(pictures),
        ]
    )


if __name__ == "__main__":
    main()
