"""Write TorchScript that PyTorch 1.11 loads: portable operators, fp16 weights, old archive format."""

import io
import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.data.preprocess import AnyPreprocess
from guie.models.ensemble import Ensemble
from guie.models.opening import ExportModule
from scorer.archive import MAX_FORMAT_VERSION

# Current PyTorch writes format 10 if gelu is called (it gained an argument, which `check_operators`
# checks), else down to 4. Low versions are in another record.
VERSION_RECORDS = ("version", ".data/version")
# Upper bound for the rest of a file: code, headers, padding.
REST_BYTES = 2**24
# Values that mean "too large for this field": the ZIP64 record has the number.
ZIP64 = 2**32 - 1
ZIP64_RECORDS = 2**16 - 1
# PyTorch's writer aligns every record, so that its reader can memory-map a tensor.
ALIGNMENT_BYTES = 64
CHUNK_BYTES = 2**20

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_ZIP64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_VERSION, _VERSION_ZIP64 = 20, 45
_MIDNIGHT, _FIRST_DAY = 0, 33  # of 1980: the bytes do not depend on the time of writing


class Widened(nn.Module):
    """Convert stored fp16 weights to fp32 for use."""

    def forward(self, stored: Tensor) -> Tensor:
        return stored.float()


def keep_in_half(encoder: nn.Module) -> None:
    """Round every matrix and kernel of an encoder to fp16 and widen it in each forward pass.

    Raises UserError if a weight exceeds fp16's range, 65,504.
    """
    for module_name, module in list(encoder.named_modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.ndim < 2 or weight.dtype != torch.float32:
                continue
            stored = weight.detach().half()
            if not stored.isfinite().all():
                wrong = f"a weight of {weight.abs().max():.0f} exceeds fp16's maximum of 65,504"
                raise UserError(f"{module_name}.{name}: {wrong}; export without --half")
            parametrize.register_parametrization(module, name, Widened(), unsafe=True)
            module.parametrizations[name].original.data = stored


_attention, _gelu, _pad = F.scaled_dot_product_attention, F.gelu, F.pad


@contextmanager
def portable_operators() -> Iterator[None]:
    """Replace functions of `torch.nn.functional` by versions that use older operators.

    Attention becomes matmul and softmax, in timm, open_clip and nn.MultiheadAttention (whose fused fast
    path is off). gelu's tanh approximation becomes its formula, and constant padding `constant_pad_nd`.
    The functions are replaced in the whole process, and always restored at the end.
    """
    originals = {name: getattr(F, name) for name in _PORTABLE}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    vars(F).update(_PORTABLE)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        vars(F).update(originals)


def follow_input_device(traced: torch.jit.ScriptModule) -> None:
    """Make the traced code create its tensors on the device of its input.

    A trace records the device it ran on, so the file would fail on another (for example DINOv3's
    position grid). A module without a tensor input is not changed.
    """
    for module in traced.modules():
        try:
            graph: Any = module.graph  # a torch.Graph; the stubs declare a tensor or module
        except RuntimeError:  # a container without its own forward
            continue
        tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
        for node in graph.findAllNodes("prim::Constant") if tensors else ():
            if node.output().type().kind() == "DeviceObjType":
                device = graph.create("prim::device", tensors[:1], 1)
                device.output().setType(node.output().type())
                device.insertBefore(node)
                node.output().replaceAllUsesWith(device.output())


def _portable_attention(
    query_BND: Tensor,
    key_BMD: Tensor,
    value_BMD: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **other: Any,
) -> Tensor:
    """Return softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, equation 1)."""
    # Unused by image encoders; `check_operators` reports it
    if dropout_p or is_causal or any(other.values()):
        inputs = query_BND, key_BMD, value_BMD, attn_mask, dropout_p, is_causal
        return _attention(*inputs, scale=scale, **other)
    if scale is None:
        scale = 1 / math.sqrt(query_BND.size(-1))
    logits_BNM = (query_BND * scale) @ key_BMD.transpose(-2, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        logits_BNM = logits_BNM.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        logits_BNM = logits_BNM + attn_mask
    return logits_BNM.softmax(-1) @ value_BMD


def _portable_gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Compute the tanh approximation by its formula (Hendrycks and Gimpel 2016, section 2)."""
    if approximate != "tanh":
        return _gelu(input, approximate=approximate)
    cubic = input + 0.044715 * input * input * input
    return 0.5 * input * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))


def _portable_pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    if mode != "constant":
        return _pad(input, pad, mode, value)
    return torch.constant_pad_nd(input, [int(p) for p in pad], value or 0.0)


_PORTABLE = {
    "scaled_dot_product_attention": _portable_attention,
    "gelu": _portable_gelu,
    "pad": _portable_pad,
}


class StoredZip:
    """Write uncompressed zip records to a file in sequence, then their directory (`close`)."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.directory = b""
        self.records = 0

    def add(self, name: str, data: IO[bytes], size: int, crc: int) -> None:
        """Copy a record of `size` bytes with this CRC-32 from a stream."""
        encoded, offset = name.encode(), self.file.tell()
        large = _zip64(size, size) if size >= ZIP64 else b""
        # An extra field (id "FB", as in PyTorch) aligns the data after it
        padding = -(offset + _LOCAL.size + len(encoded) + len(large) + 4) % ALIGNMENT_BYTES
        extra = large + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        shared = _shared(large, size, crc)
        head = _LOCAL.pack(b"PK\3\4", *shared, len(encoded), len(extra))
        self.file.write(head + encoded + extra)
        while chunk := data.read(CHUNK_BYTES):
            self.file.write(chunk)
        large = _zip64(size, size, offset) if max(size, offset) >= ZIP64 else b""
        lengths = (len(encoded), len(large), 0, 0, 0)  # name, extra field, comment, disk, kind
        at = (0, ZIP64 if large else offset)  # permissions, offset
        shared = _VERSION_ZIP64, *_shared(large, size, crc)
        self.directory += _CENTRAL.pack(b"PK\1\2", *shared, *lengths, *at) + encoded + large
        self.records += 1

    def close(self) -> None:
        """Write the directory. The file stays open."""
        start, size, records = self.file.tell(), len(self.directory), self.records
        end = b""
        if start >= ZIP64 or records >= ZIP64_RECORDS:
            versions = (44, _VERSION_ZIP64, _VERSION_ZIP64)  # 44: the bytes that follow
            end = _END_ZIP64.pack(b"PK\6\6", *versions, 0, 0, records, records, size, start)
            end += _LOCATOR.pack(b"PK\6\7", 0, start + size, 1)
        records = min(records, ZIP64_RECORDS)
        end += _END.pack(b"PK\5\6", 0, 0, records, records, size, min(start, ZIP64), 0)
        self.file.write(self.directory + end)


def _shared(large: bytes, size: int, crc: int) -> tuple[int, ...]:
    """Return the fields that both headers share: version, flags, method, time, day, CRC, sizes."""
    version, shown = (_VERSION_ZIP64, ZIP64) if large else (_VERSION, size)
    return version, 0, 0, _MIDNIGHT, _FIRST_DAY, crc, shown, shown


def _zip64(*values: int) -> bytes:
    """Return an extra field (id 1) with 64-bit sizes, and optionally the offset."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def package(
    encoder: nn.Module, preprocess: AnyPreprocess, path: str | Path, half: bool = False
) -> None:
    """Save encoder and preprocessing as one TorchScript file, on the CPU, in fp32 and eval mode.

    The file contains `ExportModule`, which the scorer calls: uint8 (1, 3, H, W) of any size -> (1, D).
    The encoder is traced at the preprocessing's size. It maps the preprocessed image and shapes (1, 3), both
    float, to (1, D). The rest is scripted, as a trace would fix the steps and the shape of one image. For an
    ensemble, each member is traced and the combination is scripted, as it may skip a pass. Both arguments are
    modified in place, as a copy would double the memory.

    `half` stores the matrices in fp16 (see `keep_in_half`). Raises UserError if the disk is full, or a weight
    exceeds the range of fp16.
    """
    encoder.cpu().float().eval().requires_grad_(False)
    if half:
        keep_in_half(encoder)
    preprocess.cpu()
    with warnings.catch_warnings(), torch.no_grad():
        # Constant shapes are intended, and so is TorchScript, although it is deprecated.
        for category in (torch.jit.TracerWarning, DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        if isinstance(encoder, Ensemble):
            traced: nn.Module = encoder.exchanged(_traced)
        else:
            prepared = preprocess(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))
            traced = _traced(encoder, (prepared, torch.ones(1, 3)))
        module = torch.jit.script(ExportModule(preprocess, traced).eval())
        with replacing(path, durable=False) as temporary:
            _reserve(temporary, sum(tensor.nbytes for tensor in module.state_dict().values()))
            torch.jit.save(module, str(temporary))


def _traced(encoder: nn.Module, example: tuple[Tensor, Tensor]) -> nn.Module:
    with portable_operators():
        # `parity` compares the saved file on many images, so no check is needed here.
        traced = torch.jit.trace(encoder, example, check_trace=False)
    follow_input_device(traced)
    return traced


def downgrade(path: str | Path) -> None:
    """Rewrite a TorchScript file so that PyTorch 1.11 loads it, with the same code and tensors.

    A version above 9 becomes 9. The `.debug_pkl` records are removed, as 1.11 does not know their layout.
    Offsets are written where 1.11 reads them (`StoredZip`).
    """
    temporary = replacing(path, durable=False)
    with zipfile.ZipFile(path) as old, temporary as place, place.open("wb") as file:
        new = StoredZip(file)
        for record in old.infolist():
            name = record.filename.partition("/")[2]
            if name.endswith(".debug_pkl"):
                continue
            # The folder has the file's name; `torch.jit.save` saw a temporary name.
            renamed = f"{Path(path).stem}/{name}"
            if name in VERSION_RECORDS:
                version = b"%d\n" % min(int(old.read(record)), MAX_FORMAT_VERSION)
                new.add(renamed, io.BytesIO(version), len(version), zlib.crc32(version))
                continue
            with old.open(record) as data:
                new.add(renamed, data, record.file_size, record.CRC)
        new.close()


def _reserve(path: Path, tensor_bytes: int) -> None:
    """Raise OSError if the disk is full, as PyTorch's writer would abort the process.

    Writing through memory instead takes three times the model's size.
    """
    if hasattr(os, "posix_fallocate"):  # not on macOS
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, tensor_bytes + REST_BYTES)
