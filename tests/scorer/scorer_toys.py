"""Toy modules and the files that hold them."""

import io
import zipfile
from pathlib import Path

import torch


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


def rewritten(content: bytes, changed: dict[str, bytes], compression: int = 0) -> bytes:
    """A TorchScript archive as PyTorch 1.11 reads it, with other contents of some records."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(buffer, "w", compression) as new,
    ):
        for name in old.namelist():
            if not name.endswith(".debug_pkl"):
                new.writestr(name, changed.get(name.partition("/")[2], old.read(name)))
    return buffer.getvalue()


def write_submission(path: Path, module: torch.nn.Module) -> Path:
    return write_zip(path, {"saved_model.pt": rewritten(torchscript_bytes(module), {})})


class Hangs(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count = 0
        while images.size(1) == 3:
            count += 1
        return images.float().mean([2, 3]) + count


def arguments(submission: Path, manifest: Path, out: Path) -> list[str]:
    """Of score.py, on one thread."""
    paths = ["--submission", str(submission), "--manifest", str(manifest), "--out", str(out)]
    return [*paths, "--threads", "1"]
