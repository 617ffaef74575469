"""bf16 on a CPU without instructions for it: float32 products of the same numbers, rounded."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import timm
import torch
from torch import Tensor, nn

from guie.base.devices import make_accelerator
from guie.base.slow_bf16 import Float32Products, float32_products


@pytest.mark.parametrize("gradients", [True, False])
def test_products_are_rounded_float32_products(gradients: bool) -> None:
    torch.manual_seed(0)
    linear, conv = nn.Linear(64, 32), nn.Conv2d(3, 8, 3)
    flat_ND, image_BCHW = torch.randn(16, 64).bfloat16(), torch.randn(2, 3, 8, 8).bfloat16()
    for layer, x in ((linear, flat_ND), (conv, image_BCHW)):
        expected = layer.bfloat16().float()(x.float())
        with torch.set_grad_enabled(gradients), Float32Products():
            assert torch.equal(layer(x.float()), expected)  # float32 stays as it is
            y = layer.bfloat16()(x)
        assert y.dtype == torch.bfloat16 and torch.equal(y, expected.bfloat16())
    one_BND, other_BDM = torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    with torch.inference_mode(not gradients), Float32Products():
        expected = (one_BND.float() @ other_BDM.float()).bfloat16()
        assert torch.equal(one_BND @ other_BDM, expected)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mobilenetv2_050"])
def test_gradients_are_as_near_to_float32_as_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    size = {"img_size": 32, "depth": 2} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=8, **size).eval()
    images_BCHW = torch.randn(4, 3, 32, 32)

    def gradient(bf16: bool, products: Float32Products | None = None) -> Tensor:
        model.zero_grad()
        with products or nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                logits_BK = model(images_BCHW)
            logits_BK.float().logsumexp(1).mean().backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    true = gradient(bf16=False)
    of_torch, ours = gradient(bf16=True), gradient(bf16=True, products=Float32Products())
    assert ours.dtype == torch.float32
    assert (ours - true).norm() < 1.2 * (of_torch - true).norm()


@pytest.mark.parametrize(
    ("supported", "precision"), [(True, "bf16"), (False, "bf16"), (False, "no")]
)
def test_only_where_the_cpu_needs_it(supported, precision, capsys, monkeypatch):
    accelerator = make_accelerator(mixed_precision=precision)
    operations = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: supported)
    monkeypatch.setattr(torch.ops, "mkldnn", operations)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    with float32_products(accelerator):
        modes = torch.utils._python_dispatch._len_torch_dispatch_stack()
    needed = precision == "bf16" and not supported
    assert modes == int(needed)
    assert ("note: this CPU has no bf16" in capsys.readouterr().out) == needed
