"""Toy modules and the files that hold them."""

import io
import zipfile
from pathlib import Path
from textwrap import indent

import torch

MEAN = "images.float().mean([2, 3])"


def toy(forward: str, **attributes: float | torch.Tensor) -> torch.jit.ScriptModule:
    """A model by the lines of its forward, or the expression that it returns; `images` are uint8."""

    def init(self) -> None:
        torch.jit.ScriptModule.__init__(self)
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, torch.jit.Attribute(value, type(value)))

    module = type("Toy", (torch.jit.ScriptModule,), {"__init__": init})()
    lines = forward if "return " in forward else f"return {forward}"
    module.define(f"def forward(self, images):\n{indent(lines, '    ')}\n")
    return module


class MeanColour(torch.nn.Module):
    """Mean colour of each cell of a 4x4 grid: 48 numbers."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scaled = images.float() / 255
        return torch.nn.functional.adaptive_avg_pool2d(scaled, [4, 4]).flatten(1)


def torchscript_bytes(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def for_1_11(module: torch.nn.Module, **changed: bytes) -> bytes:
    """A TorchScript archive as PyTorch 1.11 reads it, with other contents of some records."""
    old, buffer = zipfile.ZipFile(io.BytesIO(torchscript_bytes(module))), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            if not name.endswith(".debug_pkl"):
                new.writestr(name, changed.get(name.partition("/")[2], old.read(name)))
    return buffer.getvalue()


def write_submission(path: Path, module: torch.nn.Module) -> Path:
    return write_zip(path, {"saved_model.pt": for_1_11(module)})


def arguments(submission: Path, manifest: Path, out: Path) -> list[str]:
    """Of score.py, on one thread."""
    paths = ["--submission", str(submission), "--manifest", str(manifest), "--out", str(out)]
    return [*paths, "--threads", "1"]
