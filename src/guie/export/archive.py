"""Writing the TorchScript file, and rewriting it in the format of PyTorch 1.11."""

from __future__ import annotations

import io
import os
import warnings
import zipfile
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn

from guie.base.files import replacing
from guie.export.half import keep_in_half
from guie.export.portable import follow_input_device, portable_operators
from guie.export.stored import StoredZip
from guie.model import Scored
from guie.model.composition import Composition
from guie.model.looks import AnyPreprocess

# The newest file format that PyTorch 1.11 reads. Today's writes 10 where gelu is called (it gained
# an argument, which `check_operators` guards) and down to 4 elsewhere, low ones in another record.
RUNTIME_FORMAT = 9
VERSION_RECORDS = ("version", ".data/version")
# What a file takes beside its tensors, at most: code, headers, padding.
REST_BYTES = 2**24


def package(
    encoder: nn.Module, preprocess: AnyPreprocess, path: str | Path, half: bool = False
) -> None:
    """Save encoder and preprocessing as one TorchScript file, on the CPU, in fp32 and eval mode.

    The file holds `Scored`: uint8 (1, 3, H, W) of any size -> (1, D), all that the challenge's
    scorer calls. The encoder, what the preprocessing gives and shapes (1, 3), both float, -> (1, D),
    is traced at the preprocessing's size. The rest is scripted: a trace would keep the steps and the
    shape of one image. Of a composition each member is traced, and what joins them scripted: it may
    leave out a pass. Both are changed to what is saved: a copy would double the memory.

    Args:
        half: keep the matrices in fp16 (see `guie.export.half`).

    Raises UserError if there is no room for the file, or a weight has none in fp16.
    """
    encoder.cpu().float().eval().requires_grad_(False)
    if half:
        keep_in_half(encoder)
    preprocess.cpu()
    with warnings.catch_warnings(), torch.no_grad():
        # That shapes become constants is wanted, and so is TorchScript, though deprecated.
        for category in (torch.jit.TracerWarning, DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        if isinstance(encoder, Composition):
            traced: nn.Module = encoder.exchanged(_traced)
        else:
            prepared = preprocess(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
            traced = _traced(encoder, (prepared, torch.ones(1, 3)))
        module = torch.jit.script(Scored(preprocess, traced).eval())
        with replacing(path, durable=False) as temporary:
            _reserve(temporary, sum(tensor.nbytes for tensor in module.state_dict().values()))
            torch.jit.save(module, str(temporary))


def _traced(encoder: nn.Module, example: tuple[Tensor, Tensor]) -> nn.Module:
    with portable_operators():
        # `parity` compares the saved file on many images, so not on one here.
        traced = torch.jit.trace(encoder, example, check_trace=False)
    follow_input_device(traced)
    return traced


def downgrade(path: str | Path) -> None:
    """Rewrite a TorchScript file so that PyTorch 1.11 opens it: same code, same tensors.

    A version above 9 becomes 9, the `.debug_pkl` records, whose layout 1.11 does not know, go, and
    offsets stand where 1.11 finds them (`StoredZip`).
    """
    with (
        zipfile.ZipFile(path) as old,
        replacing(path, durable=False) as temporary,
        temporary.open("wb") as file,
    ):
        new = StoredZip(file)
        for record in old.infolist():
            name = record.filename.partition("/")[2]
            if name.endswith(".debug_pkl"):
                continue
            # The folder repeats the file's name; `torch.jit.save` saw a temporary one.
            renamed = f"{Path(path).stem}/{name}"
            if name in VERSION_RECORDS:
                version = b"%d\n" % min(int(old.read(record)), RUNTIME_FORMAT)
                new.add(renamed, io.BytesIO(version), len(version), zlib.crc32(version))
                continue
            with old.open(record) as data:
                new.add(renamed, data, record.file_size, record.CRC)
        new.close()


def format_version(path: str | Path) -> int:
    """The file format that the archive declares."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.partition("/")[2] in VERSION_RECORDS)
        return int(archive.read(record))


def _reserve(path: Path, tensor_bytes: int) -> None:
    """Raise OSError where the file will not fit: PyTorch's writer would abort the process.

    Its other way, through memory, takes three times the model.
    """
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, tensor_bytes + REST_BYTES)
