"""`torch.export`'s file, .pt2: what PyTorch itself opens after TorchScript."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

from guie.base.files import replacing
from guie.export.parity import Answer


def write_program(program: ExportedProgram, path: Path) -> None:
    """Save the program. Raises UserError if there is no room for the file."""
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which line of which file it came from, on this machine
    with replacing(path, durable=False) as temporary:
        torch.export.save(program, temporary)


def open_program(path: Path) -> Answer:
    """What `write_program` wrote, as a function of uint8 images (B, 3, H, W)."""
    return torch.export.load(path).module()
