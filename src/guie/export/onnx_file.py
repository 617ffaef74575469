"""The model as an ONNX file, for runtimes without PyTorch.

Opset 20: 18 brought Resize its antialias, with which onnxruntime's bicubic is PyTorch's to 2e-4 grey
levels at every size tried, and 20 Gelu as one operator; onnxruntime has it since 1.17 (January 2024).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from guie.base.errors import UserError
from guie.export.parity import Answer

OPSET = 20
EXTRA = "requirements-export.txt"
IMAGES, EMBEDDINGS = "images", "embeddings"


def check_installed() -> None:
    """Raise UserError where the extra that ONNX needs is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _module(name)


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write `path` and, for weights above 2 GB, `path` with `.data` after it, which it calls by name.

    Input `images`, uint8 (batch, 3, height, width); output `embeddings`, float32 (batch, D).

    Raises UserError where the extra is missing or an operator has no translation.
    """
    check_installed()
    try:
        with _quiet():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[IMAGES],
                output_names=[EMBEDDINGS],
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise UserError(
            f"{path}: this model has no translation to ONNX: {_reason(error)}"
        ) from error
    assert exported is not None
    _without_origins(exported.model)
    exported.save(path)


def open_onnx(path: Path, threads: int = 0) -> Answer:
    """The file in onnxruntime on the CPU, as a function of uint8 images (B, 3, H, W).

    Args:
        threads: 0: one for each core.
    """
    runtime = _module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([EMBEDDINGS], {IMAGES: images.numpy()})[0])

    return answer


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"no module {name}: --format onnx needs an extra; `pip install -r {EXTRA}`, or"
            " `make formats`, which has it in .venv-export"
        ) from None


def _reason(error: BaseException) -> str:
    """The first line of what began it: the exporter wraps it in reports of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _without_origins(model: Any) -> None:
    """Take out which line of which file each node came from: it tells of a machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes on constants that it did not fold."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
