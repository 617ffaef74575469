"""Run the numbered notebooks in order, headless, and print the score.

python notebooks/run.py           the demo, notebooks 01 to 06: from drawing images to the score
python notebooks/run.py --all     the tour: all notebooks
python notebooks/run.py --smoke   all notebooks on tiny configs, as CI does
python notebooks/run.py --save    the tour; the outputs of a clean commit are kept in notebooks/

The kernel is this Python's and works in notebooks/, as Jupyter's does. Executed copies go to
runs/<size>/notebooks/.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from guie.base.errors import UserError, run
from guie.base.files import write_text
from guie.config.loading import parsed
from guie.report.notebook import ROOT
from guie.training.run_folder import git_state

NOTEBOOKS = Path(__file__).resolve().parent
DEMO = 6  # notebooks from the first image to the score
PICTURES = ("01_classes", "03_curves", "04_domains", "04_map", "06_gallery")  # to open first


def main(argv: Sequence[str] | None = None) -> None:
    """Run all; exits with code 1 at the first cell that fails.

    Raises UserError: --save with changes that are not committed.
    """
    args = parse_args(argv)
    state = git_state()
    if args.save and (state is None or state["dirty"]):
        raise UserError("--save keeps the outputs of a commit: commit the changes first")
    size = "smoke" if args.smoke else "demo"
    done = {}
    paths = numbered(NOTEBOOKS)
    if not (args.all or args.smoke or args.save):
        paths = paths[:DEMO]
    minutes = [0.0 if args.smoke else minutes_of(path) for path in paths]
    if sum(minutes):
        print(f"{len(paths)} notebooks, about {sum(minutes):.0f} minutes on 2 CPU cores")
    for number, (path, about) in enumerate(zip(paths, minutes, strict=True), 1):
        estimate = f" (about {about:g} min)" if about else ""
        print(f"{number} of {len(paths)}: {path.name}{estimate} ...", end=" ", flush=True)
        began = time.monotonic()
        try:
            done[path] = execute(path, ROOT / "runs" / size / "notebooks" / path.name, size)
        except CellExecutionError as error:
            print(f"failed\n{error}")
            sys.exit(1)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    if args.save:  # all or none
        for path, notebook in done.items():
            made_by = {"commit": state["commit"], "sources": fingerprint(notebook)}
            write_text(path, nbformat.writes(cleaned(notebook, made_by)) + "\n")
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


def minutes_of(path: Path) -> float:
    """Minutes that the notebook's first cell states for 2 CPU cores; 0 if it states none."""
    title = nbformat.read(path, as_version=4).cells[0].source
    stated = re.search(r"\*\*Minutes\*\* \| ([\d.]+)", title)
    return float(stated[1]) if stated else 0.0


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
    # Notebook 01 runs toydomains, also if it is not installed
    paths = [str(ROOT / "input"), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        client.execute(env=os.environ | {"GUIE_SIZE": size, "PYTHONPATH": os.pathsep.join(paths)})
    finally:
        write_text(copy, nbformat.writes(notebook) + "\n")
    return notebook


def fingerprint(notebook: NotebookNode) -> str:
    """Hash of what the outputs depend on: the code cells, the demo's configs, the results of studies."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    configs = {  # parsed, so that a comment may change
        path.name: parsed(path.read_text(encoding="utf-8")).plain
        for path in sorted((ROOT / "configs" / "demo").glob("*.yaml"))
    }
    studies = sorted(set(re.findall(r"configs/studies/\w+(?=\.yaml)", "".join(code))))
    results = [(ROOT / f"{study}.json").read_text(encoding="utf-8") for study in studies]
    return hashlib.sha256(json.dumps([code, configs, results]).encode()).hexdigest()


def cleaned(notebook: NotebookNode, made_by: dict[str, str]) -> NotebookNode:
    """What is worth committing: no progress bars or warnings, no machine's versions."""
    notebook.metadata = {
        "guie": made_by,
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
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
    run(main)
