"""One file for life outside the challenge, ONNX or .pt2: written, compared, described."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.export.facts import file_facts
from guie.export.onnx_file import OPSET, check_installed, open_onnx, write_onnx
from guie.export.parity import Answer, differences, odd_sizes
from guie.export.program import open_program, write_program
from guie.export.symbolic import exported_program
from guie.model import LoadedModel

SEVERAL = 3  # images at once, in the last comparison
_PICTURE = 'np.array(Image.open("picture.jpg").convert("RGB"))'


@dataclass(frozen=True)
class FileFormat:
    """Attributes: `name`, of the file; `tolerance`, of an embedding's numbers against the trained
    model's; `use`, Python from a picture's file to its embedding; `note`, what else to know.
    """

    name: str
    tolerance: float
    use: str
    note: str


FORMATS = {
    "onnx": FileFormat(
        "model.onnx",
        1e-4,
        f"""\
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
images = {_PICTURE}.transpose(2, 0, 1)[None]
(x,) = session.run(["embeddings"], {{"images": images}})
""",
        "Images of one size can go together, any number of them: uint8 (B, 3, H, W). A file"
        " `model.onnx.data`, if there is one, belongs to it.",
    ),
    "pt2": FileFormat(
        "model.pt2",
        1e-5,
        f"""\
import numpy as np
import torch
from PIL import Image

model = torch.export.load("model.pt2").module()
images = torch.from_numpy({_PICTURE}.transpose(2, 0, 1)[None].copy())
x = model(images)
""",
        "Images of one size can go together, any number of them: uint8 (B, 3, H, W). PyTorch promises"
        " no older version than the one that wrote it to open it. It runs on the CPU;"
        " `torch.export.passes.move_to_device_pass` takes it to another device, where a reduction by"
        " more than 40 may find CUDA's resize wanting.",
    ),
}


def check_format(kind: str) -> None:
    """Raise UserError, before any work, where what a format needs is not installed."""
    if kind == "onnx":
        check_installed()


def write_format(kind: str, model: LoadedModel, folder: Path) -> dict[str, Any]:
    """Write the file and compare it with the model: what `export.json` has under `made`.

    Raises:
        UserError: the model cannot be exported, or the file differs from it beyond the tolerance; an
            old file stays then.
    """
    target = FORMATS[kind]
    program = exported_program(model.scored, model.source)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as scratch:
        written = Path(scratch, target.name)
        if kind == "onnx":
            write_onnx(program, written)
            answer, by = open_onnx(written), {"Opset": OPSET, "PyTorch": torch.__version__}
        else:
            write_program(program, written)
            answer, by = open_program(written), {"PyTorch": torch.__version__}
        rows = _compared(model, answer, target)
        data = folder / f"{target.name}.data"
        data.unlink(missing_ok=True)
        for file in sorted(Path(scratch).iterdir(), reverse=True):  # the data before what names it
            os.replace(file, folder / file.name)
    return {
        "format": kind,
        "name": target.name,
        "written_by": by,
        "parity": rows,
        "tolerance": target.tolerance,
        "note": target.note,
        "data": {"name": data.name, **file_facts(data)} if data.exists() else None,
    }


def _compared(model: LoadedModel, answer: Answer, target: FileFormat) -> list[dict[str, Any]]:
    """Differences by image size. Raises UserError where one is beyond the tolerance."""

    def answering(images: Tensor) -> Tensor:
        try:
            return answer(images)
        except Exception as error:  # of torch's guards, or of another runtime
            raise UserError(
                f"{model.source}: {target.name} refuses an image of {images.size(2)} x"
                f" {images.size(3)}, where the model chooses by the size of an image: `--format"
                " torchscript` keeps such a choice"
            ) from error

    sizes = odd_sizes(model.preprocess.size_px)
    rows: list[dict[str, Any]] = differences(model.scored, answering, sizes)
    several = differences(model.scored, answering, sizes[5:6], SEVERAL)
    rows += [row | {"images": SEVERAL} for row in several]
    for row in rows:
        if not row["difference"] <= target.tolerance:  # NaN is refused too
            raise UserError(
                f"{model.source}: at {row['height']} x {row['width']} {target.name} differs from the"
                f" model by {row['difference']:.1e}, above {target.tolerance:g}; does it choose by"
                " the size of an image, or do its weights hold a NaN?"
            )
    return rows
