"""The TorchScript file: portable, readable by PyTorch 1.11, equal to the eager model.

The backbones that configs name are exported in model/test_families.py, others here;
tests/torch111/check.py runs all of them in PyTorch 1.11 itself.
"""

from __future__ import annotations

import resource
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame
from torch import Tensor, nn

from exported import check_exported
from guie.base.errors import UserError
from guie.config.model import HeadConfig
from guie.data.preprocess import Preprocess
from guie.export.operators import check_operators
from guie.export.parity import odd_sizes, parity
from guie.export.torchscript import downgrade, package, portable_operators
from guie.models.embedder import Embedder
from guie.models.head import Head
from guie.models.opening import ExportModule
from scorer.archive import MAX_FORMAT_VERSION, format_version
from scorer.runtime import check_runtime
from torch111.architectures import FAMILIES, OTHERS, build
from torch111.compact import compact

HEAVY = {
    *("timm ResNet-50", "timm EfficientNet", "timm MobileNetV3", "timm MobileNetV2, same padding"),
    *("open_clip ConvNeXt", "open_clip with a timm tower"),  # as timm's
}


class Wrapped(nn.Module):
    """A function of (B, 3, S, S) as an encoder: its mean over space."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images: Tensor, shapes: Tensor) -> Tensor:
        return self.function(images * self.scale).flatten(1)


def preprocess(size_px: int = 8, fit: str = "squash") -> Preprocess:
    return Preprocess(size_px, [0.5] * 3, [0.25] * 3, fit)


def problems_of(function, tmp_path: Path) -> list[str]:
    path = tmp_path / "saved_model.pt"
    package(Wrapped(function), preprocess(), path)
    return check_operators(path)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in HEAVY else ()) for n in OTHERS]
)
def test_other_architectures_are_portable_and_unchanged(name: str, tmp_path: Path) -> None:
    encoder, size_px = build(name)
    path = tmp_path / "saved_model.pt"
    package(encoder, preprocess(size_px), path)
    downgrade(path)
    assert check_operators(path) == []
    check_runtime(path)
    assert format_version(path) <= MAX_FORMAT_VERSION
    eager = ExportModule(preprocess(size_px), encoder)
    for row in parity(eager, path, [*odd_sizes(size_px)[:-1], (300, 400)]):
        assert row["difference"] <= 1e-5, row


def test_without_portable_tracing_the_check_names_operator_and_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guie.export.torchscript._PORTABLE", {})
    encoder, size_px = build("timm SigLIP 2")
    encoder.tower = nn.Sequential(Conv2dSame(3, 3, 3), encoder.tower)
    package(encoder, preprocess(size_px), tmp_path / "saved_model.pt")
    found = check_operators(tmp_path / "saved_model.pt")
    for operator, module in [
        ("aten::scaled_dot_product_attention", "timm.layers.attention.Attention"),
        ("aten::gelu", "timm.layers.activations.GELUTanh"),
        ("aten::pad", "timm.layers.conv2d_same.Conv2dSame"),
    ]:
        assert any(f"{operator} in {module}" in line for line in found), found


def test_a_head_of_gelu_layers_runs_in_1_11_and_answers_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = FAMILIES["timm ViT"]()
    config = HeadConfig(norm="none", dim=8, hidden=[16, 12], activation="gelu")
    embedder = Embedder(backbone, Head(config, backbone.dim)).eval()
    check_exported(embedder, preprocess(backbone.size_px), tmp_path)


def test_portable_attention_is_attention() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    masks = (None, torch.rand(5, 5) > 0.3, torch.randn(2, 4, 5, 5))
    for mask in masks:
        if mask is not None and mask.dtype == torch.bool:
            mask.fill_diagonal_(True)  # no query without a key
        for arguments in ({}, {"scale": 0.5}, {"is_causal": mask is None}):
            expected = F.scaled_dot_product_attention(query, key, value, mask, **arguments)
            with portable_operators():
                found = F.scaled_dot_product_attention(query, key, value, mask, **arguments)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.gelu(x),
        lambda x: F.pad(x, [1, 2, 0, 3]),
        lambda x: F.pad(x, [1, 2], value=-0.5),
        lambda x: F.pad(x, [1, 1, 2, 2], mode="reflect"),
    ],
)
def test_portable_functions_are_the_libraries(call) -> None:
    x = torch.linspace(-6, 6, 300).view(1, 3, 10, 10)
    expected = call(x)
    with portable_operators():
        found = call(x)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_everything_is_put_back_even_after_an_error() -> None:
    before = (F.scaled_dot_product_attention, F.gelu, F.pad)
    with pytest.raises(RuntimeError, match="oops"), portable_operators():
        assert F.gelu is not before[1]
        assert not torch.backends.mha.get_fastpath_enabled()
        raise RuntimeError("oops")
    assert (F.scaled_dot_product_attention, F.gelu, F.pad) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_operator_of_today_is_refused(tmp_path: Path) -> None:
    (line,) = problems_of(lambda x: torch.rms_norm(x, (8,)), tmp_path)
    assert "aten::rms_norm in test_torchscript.Wrapped: PyTorch 1.11 has no such operator" in line


def test_an_argument_of_today_is_refused(tmp_path: Path) -> None:
    (line,) = problems_of(lambda x: torch.mean(x, dim=None, keepdim=True), tmp_path)
    assert "PyTorch 1.11 does not accept torch.mean(" in line


def test_tensors_made_on_the_way_follow_the_input(tmp_path: Path) -> None:
    path = tmp_path / "saved_model.pt"
    encoder = Wrapped(lambda x: x + torch.arange(8, device=x.device))
    package(encoder, preprocess(), path)
    assert check_operators(path) == []
    code = torch.jit.load(path).embedder.code
    assert "device=ops.prim.device(images)" in code
    rows = parity(ExportModule(preprocess(), encoder), path, [(5, 9)])
    assert rows[0]["difference"] == 0


def test_a_fixed_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "written.pt"
    code = 'class M(Module):\n  def f(self):\n    return torch.zeros([1], device=torch.device("cpu"))\n'
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("written/version", "9")
        file.writestr("written/code/__torch__/m.py", code)
    (line,) = check_operators(path)
    assert line.startswith("aten::device in m.M: torch.device('cpu') is a fixed device")


def test_downgrade_keeps_tensors_and_code_and_aligns_them(tmp_path: Path) -> None:
    encoder, size_px = build("timm ViT")
    path = tmp_path / "saved_model.pt"
    package(encoder, preprocess(size_px), path)
    with zipfile.ZipFile(path) as old:
        before = {n.partition("/")[2]: old.read(n) for n in old.namelist()}
    assert before.pop(".data/version") == b"10\n"
    downgrade(path)
    with zipfile.ZipFile(path) as new, path.open("rb") as file:
        after = {n.partition("/")[2]: new.read(n) for n in new.namelist()}
        assert {n.partition("/")[0] for n in new.namelist()} == {"saved_model"}
        for record in new.infolist():
            assert record.compress_type == zipfile.ZIP_STORED
            file.seek(record.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            assert (record.header_offset + 30 + name + extra) % 64 == 0, record.filename
    assert after.pop(".data/version") == b"9\n"
    assert after == {n: data for n, data in before.items() if not n.endswith(".debug_pkl")}


def test_what_is_saved_is_in_fp32_and_frozen(tmp_path: Path) -> None:
    encoder = Wrapped(torch.relu).train().double()
    package(encoder, preprocess(), tmp_path / "saved_model.pt")
    saved = torch.jit.load(tmp_path / "saved_model.pt")
    assert saved(torch.zeros(1, 3, 5, 9, dtype=torch.uint8)).dtype == torch.float32
    assert not saved.training and not any(p.requires_grad for p in saved.parameters())


def test_a_disk_without_room_is_told_in_one_line(tmp_path: Path) -> None:
    """PyTorch's writer would abort the process."""
    path = tmp_path / "saved_model.pt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"saved_model\.pt: larger than .*no file is left"):
            package(Wrapped(torch.relu), preprocess(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_parity_sees_a_difference_and_a_nan(tmp_path: Path) -> None:
    encoder, path = Wrapped(torch.tanh), tmp_path / "saved_model.pt"
    package(encoder, preprocess(), path)
    eager = ExportModule(preprocess(), encoder)
    assert parity(eager, path, [(5, 9)]) == [{"height": 5, "width": 9, "difference": 0}]
    encoder.scale.data += 1e-3
    assert 1e-5 < parity(eager, path, [(5, 9)])[0]["difference"] < 1e-2
    encoder.scale.data *= float("nan")
    assert not parity(eager, path, [(5, 9)])[0]["difference"] <= 1e-5


def test_compacting_keeps_what_a_call_needs() -> None:
    schemas = [
        "aten::f.o(Tensor(a!) self, int[2] n=[1, 1], *, Dict(str, t) d={}, str m='a') -> Tensor(a!)",
        "aten::f.out(Tensor self, *, Tensor(a!) out) -> (Tensor(a!))",
        "aten::f_backward(Tensor grad) -> (Tensor)",
        "quantized::f(Tensor x) -> (Tensor)",
        "prim::g() -> int",
    ]
    lines = [line for line in compact(schemas).splitlines() if not line.startswith("#")]
    assert lines == ["aten::f.o Tensor self, int[2] n=, *, Dict d=, str m=", "prim::g"]
