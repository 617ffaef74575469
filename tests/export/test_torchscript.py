"""The TorchScript file: portable, readable by PyTorch 1.11, equal to the eager model.

tests/models/test_families.py exports the backbones that configs name; this file exports others.
tests/torch111/check.py runs all of them in PyTorch 1.11 itself.
"""

import resource
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.data.preprocess import Preprocess
from guie.export.operators import check_operators
from guie.export.parity import odd_sizes, parity
from guie.export.torchscript import downgrade, package, portable_operators
from guie.models.opening import ExportModule
from scorer.archive import MAX_FORMAT_VERSION, format_version
from scorer.runtime import check_runtime
from torch111.architectures import OTHERS, build

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


def test_portable_functions_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    boolean = (torch.rand(5, 5) > 0.3).fill_diagonal_(True)  # no query without a key
    calls: list[tuple[str, tuple[Tensor, ...], dict]] = [
        ("scaled_dot_product_attention", (query, key, value, mask), arguments)
        for mask in (None, boolean, torch.randn(2, 4, 5, 5))
        for arguments in ({}, {"scale": 0.5}, {"is_causal": mask is None})
    ]
    x = (torch.linspace(-6, 6, 300).view(1, 3, 10, 10),)
    calls += [("gelu", x, {"approximate": "tanh"}), ("gelu", x, {})]
    calls += [("pad", x, {"pad": [1, 2], "value": -0.5})]
    calls += [("pad", x, {"pad": [1, 1, 2, 2], "mode": "reflect"})]
    for name, inputs, arguments in calls:
        expected = getattr(F, name)(*inputs, **arguments)
        with portable_operators():
            found = getattr(F, name)(*inputs, **arguments)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_functions_are_restored_after_an_error() -> None:
    before = (F.scaled_dot_product_attention, F.gelu, F.pad)
    with pytest.raises(RuntimeError, match="oops"), portable_operators():
        assert F.gelu is not before[1]
        assert not torch.backends.mha.get_fastpath_enabled()
        raise RuntimeError("oops")
    assert (F.scaled_dot_product_attention, F.gelu, F.pad) == before
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_newer_operator_or_argument_is_named(tmp_path: Path) -> None:
    for name, function, problem in (
        ("rms_norm", lambda x: torch.rms_norm(x, (8,)), "has no such operator"),
        ("mean", lambda x: torch.mean(x, dim=None, keepdim=True), "does not accept torch.mean("),
    ):
        package(Wrapped(function), preprocess(), tmp_path / "saved_model.pt")
        (line,) = check_operators(tmp_path / "saved_model.pt")
        where = f"aten::{name} in test_torchscript.Wrapped"
        assert line.startswith(f"{where}: PyTorch 1.11 {problem}")


def test_new_tensors_follow_the_input(tmp_path: Path) -> None:
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


def test_downgrade_keeps_tensors_and_code(tmp_path: Path) -> None:
    encoder, size_px = build("timm ViT")
    path = tmp_path / "saved_model.pt"
    package(encoder, preprocess(size_px), path)
    with zipfile.ZipFile(path) as old:
        before = {n.partition("/")[2]: old.read(n) for n in old.namelist()}
    assert before.pop(".data/version") == b"10\n"
    downgrade(path)
    with zipfile.ZipFile(path) as new:
        after = {n.partition("/")[2]: new.read(n) for n in new.namelist()}
        assert {n.partition("/")[0] for n in new.namelist()} == {"saved_model"}
        assert {record.compress_type for record in new.infolist()} == {zipfile.ZIP_STORED}
    assert after.pop(".data/version") == b"9\n"
    assert after == {n: data for n, data in before.items() if not n.endswith(".debug_pkl")}


def test_the_saved_model_is_in_fp32_and_frozen(tmp_path: Path) -> None:
    encoder = Wrapped(torch.relu).train().double()
    package(encoder, preprocess(), tmp_path / "saved_model.pt")
    saved = torch.jit.load(tmp_path / "saved_model.pt")
    assert saved(torch.zeros(1, 3, 5, 9, dtype=torch.uint8)).dtype == torch.float32
    assert not saved.training and not any(p.requires_grad for p in saved.parameters())


def test_a_full_disk_gives_one_line(tmp_path: Path) -> None:
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
    for change, low, high in ((0.0, 0, 0), (1e-3, 1e-5, 1e-2)):
        encoder.scale.data += change
        [row] = parity(ExportModule(preprocess(), encoder), path, [(5, 9)])
        assert low <= row["difference"] <= high
    encoder.scale.data *= float("nan")
    [row] = parity(ExportModule(preprocess(), encoder), path, [(5, 9)])
    assert not row["difference"] <= 1e-5
