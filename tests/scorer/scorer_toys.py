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


class Crashes(torch.nn.Module):
    """Divides integers by zero, which TorchScript leaves to the processor."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rest = images.size(2) % (images.size(1) - 3)
        return images.float().mean([2, 3]) + rest


class Hangs(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count = 0
        while images.size(1) == 3:
            count += 1
        return images.float().mean([2, 3]) + count


class TakesAllMemory(torch.nn.Module):
    """A gibibyte."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([2, 3]) + torch.ones([1024, 1024, 256]).mean()


class CountsCalls(torch.nn.Module):
    """Answers as it should, for now."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: int = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images.float().mean([2, 3]) * (1.0 if self.calls < 1000000 else 0.0)


class Reads(torch.nn.Module):
    """Answers with a file's first four bytes."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.from_file(self.path, False, 4, dtype=torch.uint8).float()[None]


class Writes(torch.nn.Module):
    """Makes a file of its own, by a tensor that is mapped to it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mapped = torch.from_file(self.path, True, 3, dtype=torch.float32)
        return images.float().mean([2, 3]) + mapped.fill_(0.0)


def arguments(submission: Path, manifest: Path, out: Path) -> list[str]:
    """Of score.py, on one thread."""
    paths = ["--submission", str(submission), "--manifest", str(manifest), "--out", str(out)]
    return [*paths, "--threads", "1"]
