"""Writing the TorchScript file, and rewriting it in the format of PyTorch 1.11."""

from __future__ import annotations

import copy
import shutil
import struct
import warnings
import zipfile
from pathlib import Path

import torch
from torch import nn

from guie.files import replacing
from guie.model import Scored
from guie.torchscript.portable import follow_input_device, portable_operators

# The newest file format that PyTorch 1.11 reads. Today's writes 10 where gelu is called (it gained
# an argument, which `check_operators` guards) and down to 4 elsewhere, low ones in another record.
RUNTIME_FORMAT = 9
VERSION_RECORDS = ("version", ".data/version")
# PyTorch's writer aligns every record, so that its reader may map a tensor into memory.
ALIGNMENT_BYTES = 64
# A record's header in a zip file, without its name and its extra field.
HEADER_BYTES = 30


def package(encoder: nn.Module, preprocess: nn.Module, path: str | Path) -> None:
    """Save encoder and preprocessing as one TorchScript file, on the CPU, in fp32 and eval mode.

    The file holds `Scored`: uint8 (1, 3, H, W) of any size -> (1, D), all that the challenge's
    scorer calls. The encoder, what the preprocessing gives and shapes (1, 3), both float, -> (1, D),
    is traced at the preprocessing's size. The rest is scripted: a trace would keep the steps and the
    shape of one image. Neither argument is changed.
    """
    encoder = copy.deepcopy(encoder).cpu().float().eval().requires_grad_(False)
    prepared = preprocess(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)).cpu()
    example = (prepared, torch.ones(1, 3))
    with warnings.catch_warnings(), torch.no_grad():
        # That shapes become constants is wanted, and so is TorchScript, though deprecated.
        for category in (torch.jit.TracerWarning, DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        with portable_operators():
            # `parity` compares the saved file on many images, so not on one here.
            traced = torch.jit.trace(encoder, example, check_trace=False)
        follow_input_device(traced)
        module = torch.jit.script(Scored(copy.deepcopy(preprocess).cpu(), traced).eval())
        # Through a Python file: torch's own writer aborts the process on a full disk.
        with replacing(path) as temporary, temporary.open("wb") as file:
            torch.jit.save(module, file)


def downgrade(path: str | Path) -> None:
    """Rewrite a TorchScript file so that PyTorch 1.11 opens it: same code, same tensors.

    A version above 9 becomes 9, and the `.debug_pkl` records, whose layout 1.11 does not know, go.
    """
    with zipfile.ZipFile(path) as old, replacing(path) as temporary, open(temporary, "wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
            for record in old.infolist():
                name = record.filename.partition("/")[2]
                if name.endswith(".debug_pkl"):
                    continue
                # The folder repeats the file's name; `torch.jit.save` saw a temporary one.
                copied = zipfile.ZipInfo(f"{Path(path).stem}/{name}")
                copied.extra = _padding(file.tell() + HEADER_BYTES + len(copied.filename.encode()))
                if name in VERSION_RECORDS:
                    version = min(int(old.read(record)), RUNTIME_FORMAT)
                    new.writestr(copied, f"{version}\n")
                    continue
                copied.file_size = record.file_size  # lets zipfile choose the header's width
                with old.open(record) as source, new.open(copied, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)


def format_version(path: str | Path) -> int:
    """The file format that the archive declares."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.partition("/")[2] in VERSION_RECORDS)
        return int(archive.read(record))


def _padding(start: int) -> bytes:
    """An extra field (id "FB", as PyTorch writes it) after which the data is aligned."""
    length = -(start + 4) % ALIGNMENT_BYTES
    return b"FB" + struct.pack("<H", length) + b"Z" * length
