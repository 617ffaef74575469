"""Export to ONNX or .pt2: one `torch.export` program for any number of images of any size, verified."""

import copy
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from guie.base.errors import UserError, optional_module
from guie.base.files import replacing, write_json, write_text
from guie.data.preprocess import Preprocess, _half
from guie.export.card import file_facts, refuse_unmarked, render, without_folders
from guie.export.parity import Answer, differences, odd_sizes, refuse_differences
from guie.models.opening import ExportModule, LoadedModel
from scorer.errors import one_line

# By format, as in model.onnx: the largest allowed difference of an embedding to the trained model's.
FORMATS = {"onnx": 1e-4, "pt2": 1e-5}
SEVERAL = 3  # images at once, in the last comparison
OPSET = 20
IMAGES, EMBEDDINGS = "images", "embeddings"
# An int that is symbolic while exporting. torch names it SymInt, but its functions declare int.
Side = Any
# The traced input: not square, and more than one image, as sizes 0 and 1 would become constants.
EXAMPLE_SHAPE = (2, 3, 37, 53)
MOST = 2**31 - 1  # without a bound, torch 2.7 rejects the size 2**63 - 1


def exported_program(model: ExportModule, source: str) -> ExportedProgram:
    """Export uint8 (B, 3, H, W), B, H, W >= 1 -> (B, D) as a program that does not need this package.

    Afterwards the model is on the CPU, in fp32 and eval mode.

    If the model branches on the image size, the program always takes the branch of `EXAMPLE_SHAPE`. Only
    images of other shapes show this. Raises UserError if the model cannot be exported.
    """
    model.cpu().float().eval().requires_grad_(False)
    images = torch.zeros(EXAMPLE_SHAPE, dtype=torch.uint8)
    sizes = {dim: Dim(n, max=MOST) for dim, n in ((0, "batch"), (2, "height"), (3, "width"))}
    try:
        with torch.no_grad():
            symbolic = SymbolicExport(model).eval()
            return torch.export.export(symbolic, (images,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:  # torch raises many types, with many lines
        wrong = f"torch.export cannot export this model for images of any size: {one_line(error)}"
        remedy = "use --format torchscript, which supports branches on the size"
        raise UserError(f"{source}: {wrong}; {remedy}") from error


class SymbolicExport(ExportModule):
    """The same module, which computes preprocessing and shapes without branches on the image size."""

    def __init__(self, model: ExportModule):
        super().__init__(_symbolic(model.preprocess), model.embedder)

    def forward(self, images: Tensor) -> Tensor:
        height, width = (_scalar(images.size(dim)).float() for dim in (2, 3))
        shape_3 = torch.stack([height / width, height / 224.0, width / 224.0])
        return self.embedder(self.preprocess(images), shape_3.expand(images.size(0), 3))


def _symbolic(preprocess: Any) -> Any:
    """Return a copy in which every `Preprocess` is symbolic."""
    if isinstance(preprocess, Preprocess):
        return SymbolicPreprocess(preprocess)
    copied = copy.deepcopy(preprocess)
    for name, child in copied.named_children():
        setattr(copied, name, _symbolic(child))
    return copied


class SymbolicPreprocess(Preprocess):
    """Preprocessing in which height and width may be symbols of torch.export."""

    def __init__(self, preprocess: Preprocess):
        super().__init__(**preprocess.recipe())
        self.mean, self.std = preprocess.mean, preprocess.std  # to the bit

    def resized(self, images: Tensor) -> Tensor:
        size = self.size_px
        height: Side = images.size(2)
        width: Side = images.size(3)
        if self.fit == "squash":
            return self._resize(images, size, size)
        if self.fit == "crop":
            shorter = torch.sym_min(height, width)
            for dim in (2, 3):
                length: Side = torch.sym_min(4 * shorter + images.size(dim) % 2, images.size(dim))
                images = _central(images, dim, length)
            height, width = (size * images.size(dim) // shorter for dim in (2, 3))
            return _central(_central(self._resize(images, height, width), 2, size), 3, size)
        longer = torch.sym_max(height, width)
        height = torch.sym_max(2, (2 * size * height + longer) // (2 * longer))
        width = torch.sym_max(2, (2 * size * width + longer) // (2 * longer))
        return self._resize(images, height, width)

    def padded(self, images: Tensor) -> Tensor:
        """Fill each pixel of the square from the image, or with the padding colour outside it."""
        if self.fit != "pad":
            return images
        size = self.size_px
        for dim in (2, 3):
            length = images.size(dim)
            place = torch.arange(size, device=images.device) - (size - length) // 2
            inside = (place >= 0) & (place < length)
            last = _scalar(length) - 1
            images = images.index_select(dim, torch.minimum(place.clamp(min=0), last))
            shape = [1, 1, 1, 1]
            shape[dim] = size
            images = torch.where(inside.view(shape), images, self.pad_level)
        return images

    def _resize(self, images: Tensor, height: Side, width: Side) -> Tensor:
        return self.upsampled(images.float(), height, width).clamp(0.0, 255.0)


def _central(images: Tensor, dim: int, length: Side) -> Tensor:
    """Return `length` rows (dim 2) or columns (dim 3) from the middle."""
    first = _half(images.size(dim) - length)
    return images.index_select(dim, torch.arange(length) + _scalar(first))


def _scalar(size: Side) -> Tensor:
    return torch.full((), size, dtype=torch.int64)


def write_program(program: ExportedProgram, path: Path) -> None:
    """Save the program. Raises UserError if the disk is full."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has file paths of this machine
    with replacing(path, durable=False) as temporary:
        torch.export.save(program, temporary)


def open_program(path: Path) -> Answer:
    """Load a file of `write_program` as a function of uint8 images (B, 3, H, W)."""
    return torch.export.load(path).module()


def check_installed() -> None:
    """Raise UserError if a package that ONNX export needs is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        optional_module(name, "--format onnx", "export")


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write `path` and, for weights above 2 GB, `path` + `.data`, which it references by name.

    Input `images`, uint8 (batch, 3, height, width); output `embeddings`, float32 (batch, D).

    Raises UserError if a package is missing or an operator has no ONNX translation.
    """
    check_installed()
    logging.disable(logging.WARNING)  # the exporter's notes on constants that it did not fold
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[IMAGES],
                output_names=[EMBEDDINGS],
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # torch wraps it in its own reports
            cause = cause.__cause__
        wrong = f"this model has no translation to ONNX: {one_line(cause)}"
        raise UserError(f"{path}: {wrong}; use another --format") from error
    finally:
        logging.disable(logging.NOTSET)
    assert exported is not None
    for node in exported.model.graph.all_nodes():  # its source location has paths of this machine
        node.metadata_props.clear()
        node.doc_string = None
    exported.save(path)


def open_onnx(path: Path) -> Answer:
    """Load the file in onnxruntime on the CPU, as `open_program`."""
    runtime = optional_module("onnxruntime", "--format onnx", "export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([EMBEDDINGS], {IMAGES: images.numpy()})[0])


def write_file(
    kind: str, model: LoadedModel, folder: Path, facts: dict[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """Write the file, its model card and its JSON; return its path and the `made` entry of the JSON.

    `facts` of the run are from `guie.export.card.describe`. Raises UserError as `write_format`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = write_format(kind, model, folder)
    path = folder / made["name"]
    facts = without_folders({**facts, "made": made, "file": file_facts(path)})
    write_json(path.with_name(f"{path.name}.json"), facts)
    write_text(path.with_name(f"{path.name}.md"), render("file.md.j2", facts))
    return path, made


def write_format(kind: str, model: LoadedModel, folder: Path) -> dict[str, Any]:
    """Write the file, compare it with the model, and return the `made` entry of its JSON.

    Raises UserError if the model cannot be exported, or the file's embeddings differ by more than the
    tolerance. An old file is kept then.
    """
    name, tolerance = f"model.{kind}", FORMATS[kind]
    data = folder / f"{name}.data"
    refuse_unmarked([folder / name, data, folder / f"{name}.md"], folder / f"{name}.json")
    program = exported_program(model.scored, model.source)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as scratch:
        written = Path(scratch, name)
        written_by: dict[str, Any] = {"PyTorch": torch.__version__}
        if kind == "onnx":
            write_onnx(program, written)
            answer, written_by = open_onnx(written), {"Opset": OPSET, **written_by}
        else:
            write_program(program, written)
            answer = open_program(written)

        def answering(images: Tensor) -> Tensor:
            try:
                return answer(images)
            except Exception as error:  # raised by torch's guards or by onnxruntime
                where = f"{name} fails on an image of {images.size(2)} x {images.size(3)}"
                why = "as the model branches on the image size"
                remedy = "use --format torchscript, which supports that"
                raise UserError(f"{model.source}: {where}, {why}: {remedy}") from error

        sizes = odd_sizes(model.preprocess.size_px)
        rows: list[dict[str, Any]] = differences(model.scored, answering, sizes)
        several = differences(model.scored, answering, sizes[5:6], SEVERAL)
        rows += [row | {"images": SEVERAL} for row in several]
        refuse_differences(rows, tolerance, model.source, name)
        data.unlink(missing_ok=True)
        # The .data file before the file that references it
        for file in sorted(Path(scratch).iterdir(), reverse=True):
            os.replace(file, folder / file.name)
    return {
        "format": kind,
        "name": name,
        "written_by": written_by,
        "parity": rows,
        "tolerance": tolerance,
        "data": {"name": data.name, **file_facts(data)} if data.exists() else None,
    }
