"""Write a submission: submission.zip for the challenge's runtime, verified, with card.md and export.json."""

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from guie.base.errors import UserError
from guie.base.files import replacing, write_json, write_text
from guie.export import parity
from guie.export.card import file_facts, refuse_unmarked, render, without_folders
from guie.export.operators import check_operators
from guie.export.torchscript import downgrade, package
from guie.models.opening import LoadedModel
from scorer.archive import MODEL_NAME, format_version
from scorer.contract import MAX_DIMENSION

TOLERANCE = 1e-5
ROUNDING = 1e-2  # allowed effect of fp16 on a value of a unit-length embedding


def write_submission(
    model: LoadedModel, folder: Path, facts: dict[str, Any], runtime: str, half: bool
) -> dict[str, Any]:
    """Write submission.zip, card.md and export.json; return the entry `torchscript` of export.json.

    Args:
        facts: of the run, from `guie.export.card.describe`.
        runtime: PyTorch's version: 1.11 or current.
        half: store matrices in fp16.

    Raises UserError if the embedding is too large, PyTorch 1.11 lacks an operator, the saved model differs
    from the trained one, or another program wrote card.md. An old submission.zip is kept then.
    """
    if model.embedder.dim > MAX_DIMENSION:
        wrong = f"has {model.embedder.dim} dimensions, the challenge allows {MAX_DIMENSION}"
        remedy = (
            f"train with a head (model.head.dim: {MAX_DIMENSION}), or reduce it with compose.py"
        )
        raise UserError(f"{model.source}: the embedding {wrong}; {remedy}")
    folder.mkdir(parents=True, exist_ok=True)
    card, zipped = folder / "card.md", folder / "submission.zip"
    refuse_unmarked([card, zipped], folder / "export.json")
    # In the output folder, which needs the space anyway; the system's temporary folder may be small.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as scratch:
        saved = Path(scratch, MODEL_NAME)
        torchscript = write_torchscript(model, saved, runtime, half)
        write_zip(saved, zipped)
    facts = without_folders({**facts, "torchscript": torchscript, "file": file_facts(zipped)})
    write_json(folder / "export.json", facts)
    write_text(card, render("submission.md.j2", facts, answers=None))
    return torchscript


def write_torchscript(model: LoadedModel, saved: Path, runtime: str, half: bool) -> dict[str, Any]:
    """Write and verify the TorchScript file; return its entry of export.json."""
    sizes = parity.odd_sizes(model.preprocess.size_px)
    trained = parity.remembered(model.scored, sizes) if half else None
    package(model.embedder, model.preprocess, saved, half)
    if runtime == "1.11":
        downgrade(saved)
        if problems := check_operators(saved):
            others = f" (and {len(problems) - 1} more)" if problems[1:] else ""
            remedy = "or use --torch current, for current PyTorch"
            raise UserError(f"{model.source}: {problems[0]}{others}; {remedy}")
    rows = parity.parity(model.scored, saved, sizes)
    parity.refuse_differences(rows, TOLERANCE, model.source, MODEL_NAME)
    made: dict[str, Any] = {
        "runtime": runtime,
        "written_by": torch.__version__,
        "format": format_version(saved),
        "parity": rows,
        "tolerance": TOLERANCE,
    }
    if trained:
        rows = parity.differences(model.scored, trained, sizes)
        made["rounding"] = max(row["difference"] for row in rows)
        if not made["rounding"] <= ROUNDING:  # also true for NaN
            change = f"change the embedding by {made['rounding']:.1e}, above {ROUNDING:g}"
            raise UserError(f"{model.source}: weights in fp16 {change}; export it without --half")
    return made


def write_zip(saved: Path, zipped: Path) -> None:
    """Write one uncompressed member, as weights do not compress; the bytes are reproducible."""
    member = zipfile.ZipInfo(MODEL_NAME)
    member.file_size = saved.stat().st_size
    with replacing(zipped) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with saved.open("rb") as source, archive.open(member, "w") as target:
            shutil.copyfileobj(source, target, 1 << 20)
