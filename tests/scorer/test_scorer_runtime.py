"""Files that today's PyTorch opens and 1.11 would not: each is refused for what it is."""

import io
import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from scorer_toys import MeanColour, rewritten, torchscript_bytes, write_zip

from scorer.contract import Checklist, verify
from scorer.errors import Violation
from scorer.process import Limits
from scorer.runtime import check_runtime


class Attends(torch.nn.Module):
    """Calls what 1.11 has not: attention as one operator; gelu with an argument it has not."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.float().mean([2, 3])
        attended = torch.nn.functional.scaled_dot_product_attention(mean, mean, mean)
        return torch.nn.functional.gelu(attended, approximate="tanh")


def verdict(path: Path, runtime: str = "1.11") -> tuple[str, str]:
    checklist = Checklist()
    with suppress(Violation):
        verify(path, path.with_suffix(".pt"), checklist, Limits(threads=1), runtime)
    return checklist.result["verdict"], "; ".join(checklist.failed.values())


def submission(folder: Path, content: bytes) -> Path:
    return write_zip(folder / "s.zip", {"saved_model.pt": content})


def test_a_file_of_today_is_a_verdict_of_its_own_and_can_be_waived(tmp_path):
    path = submission(tmp_path, torchscript_bytes(MeanColour()))
    message, detail = verdict(path)
    assert message == "not_for_torch_1_11" and ".debug_pkl records" in detail
    assert verdict(path, "current")[0] == "keeps_the_contract"


def refusal(content: bytes, folder: Path) -> str:
    path = folder / "saved_model.pt"
    path.write_bytes(content)
    with pytest.raises(Violation) as caught:
        check_runtime(path)
    return str(caught.value)


def test_operators_are_read_from_the_code(tmp_path):
    content = rewritten(torchscript_bytes(Attends()), {})
    message = refusal(content, tmp_path)
    assert message.endswith(
        "has with other arguments: aten::gelu, aten::scaled_dot_product_attention"
    )


def test_an_offset_that_its_zip_reader_takes_for_another_is_refused(tmp_path):
    """The first record's offset goes to the zip64 extra field, as Python's zipfile does at 2 GiB."""
    content = rewritten(torchscript_bytes(MeanColour()), {})
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


def archive(folder: Path, code: bytes) -> Path:
    """As little as PyTorch's reader takes for a TorchScript archive."""
    members = {"m/version": b"9", "m/code/__torch__.py": code}
    return write_zip(folder / "m.pt", members)


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
        ("ops.torchvision.nms(x, x, 0.5)", False),
        ("(self.layer).forward(x, )", True),
    ],
)
def test_calls_are_matched_with_the_overloads(tmp_path, call, known):
    code = f"class M(Module):\n  def forward(self, x):\n    return {call}\n"
    path = archive(tmp_path, code.encode())
    if known:
        check_runtime(path)
    else:
        assert "lacks or has with other arguments" in refusal(path.read_bytes(), tmp_path)


def test_code_that_is_none_is_refused(tmp_path):
    for code in (b"def (", b"x = " + b"(" * 5000, b"\xff\xfe\0"):
        path = archive(tmp_path, code)
        assert refusal(path.read_bytes(), tmp_path).startswith("its code cannot be read")
