"""Files that current PyTorch opens and 1.11 would not: each is refused for its own reason."""

import io
import struct
import zipfile

import pytest
from scorer_toys import MeanColour, for_1_11, write_zip

from scorer.errors import Violation
from scorer.runtime import check_runtime


def refusal(content: bytes, folder) -> str:
    path = folder / "saved_model.pt"
    path.write_bytes(content)
    with pytest.raises(Violation) as caught:
        check_runtime(path)
    return str(caught.value)


def test_an_offset_that_its_zip_reader_misreads_is_refused(tmp_path):
    """The first record's offset goes to the zip64 extra field, as Python's zipfile does at 2 GiB."""
    content = for_1_11(MeanColour())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        start, name = archive.start_dir, len(archive.infolist()[0].filename)
    entry, rest = content[start : start + 46 + name], content[start + 46 + name :]
    extra = struct.pack("<HHQ", 1, 8, 0)
    entry = entry[:30] + struct.pack("<H", len(extra)) + entry[32:42] + b"\xff" * 4 + entry[46:]
    end = bytearray(rest + b"")
    size = struct.unpack_from("<I", end, len(end) - 10)[0]
    struct.pack_into("<I", end, len(end) - 10, size + len(extra))
    message = refusal(content[:start] + entry + extra + end, tmp_path)
    assert message == "a zip64 offset that the zip reader of PyTorch 1.11 misreads"


def archive(folder, code: bytes):
    """A minimal TorchScript archive for PyTorch's reader."""
    return write_zip(folder / "m.pt", {"m/version": b"9", "m/code/__torch__.py": code})


@pytest.mark.parametrize(
    ("call", "known"),
    [
        ("torch.add(x, x)", True),
        ("torch.add(x, x, alpha=2)", True),
        ("torch.add(x)", False),
        ("torch.add(x, x, beta=2)", False),
        ("torch.gelu(x)", True),
        ('torch.gelu(x, approximate="tanh")', False),
        ("torch.conv2d(x, x, None, [1, 1])", True),
        ("torch.conv2d(x, None, None, [1, 1])", False),
        ("torch.constant_pad_nd(x, [1, 1])", True),
        ('torch.pad(x, [1, 1], "constant", None)', False),
        ("torch.softmax(x, -1)", True),
        ("torch.sum(x, [1], True)", True),
        ("torch.sum(x, [1], None, True, 3)", False),
        ("torch.layer_norm(x, None)", False),
        ("torch.mean(x, None)", False),
        ('torch.flatten(x, "first", "last")', False),
        ("torch._upsample_bicubic2d_aa(x, [8, 8], False)", True),
        ("torch._upsample_bicubic2d_aa(x, 8, False)", True),  # int[2] takes one int
        ("torch._upsample_bicubic2d_aa(x, [8, 8])", False),
        ("ops.prim.max(torch.size(x, 2), 1)", True),
        ("torch.scaled_dot_product_attention(x, x, x)", False),
        ("(self.layer).forward(x, )", True),
    ],
)
def test_calls_are_matched_with_the_overloads(tmp_path, call, known):
    code = f"class M(Module):\n  def forward(self, x):\n    return {call}\n"
    path = archive(tmp_path, code.encode())
    if known:
        check_runtime(path)
    else:
        operator = call.partition("(")[0].replace("torch.", "aten::")
        assert refusal(path.read_bytes(), tmp_path).endswith(f"with other arguments: {operator}")


def test_unreadable_code_is_refused(tmp_path):
    for code in (b"def (", b"x = " + b"(" * 5000, b"\xff\xfe\0"):
        path = archive(tmp_path, code)
        assert refusal(path.read_bytes(), tmp_path).startswith("its code cannot be read")
