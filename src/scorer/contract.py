"""The scoring contract as a list of checks. The first one that fails ends the scoring.

Shape legend: H height, W width, D numbers of the embedding (at most 64).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from scorer.archive import (
    MAX_FORMAT_VERSION,
    MODEL_NAME,
    Violation,
    check_format_version,
    load,
    one_line,
    unpack_model,
)

MAX_DIMENSION = 64
# Two answers to one image may differ by rounding: on a GPU the JIT fuses kernels after its first
# calls, which shows at half precision. Randomness and leaking state show far above either bound.
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}
# Height and width in px: the degenerate, both orientations, and the usual input square.
SIZES_HW = ((1, 1), (1, 2000), (2000, 1), (320, 240), (240, 320), (224, 224))


@dataclass(frozen=True)
class Check:
    """One check of the contract and its outcome."""

    name: str
    passed: bool
    detail: str


class Checklist:
    """The checks so far, in the order in which they were made."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    @contextmanager
    def check(self, name: str, demand: str) -> Iterator[None]:
        """Record the outcome of the block; a `Violation` in it is recorded and passed on."""
        try:
            yield
        except Violation as violation:
            self.checks.append(Check(name, False, f"{violation}; demanded: {demand}"))
            raise
        self.checks.append(Check(name, True, demand))


def to_batch(pixels_HW3: np.ndarray) -> torch.Tensor:
    """Make the host's input: uint8, (1, 3, H, W), original size.

    Like torchvision's `PILToTensor` it leaves the memory in pixel order, so a model that needs
    contiguous channels fails here as it would there.
    """
    return torch.from_numpy(pixels_HW3).permute(2, 0, 1).unsqueeze(0)


def forward(
    model: torch.jit.ScriptModule, pixels_HW3: np.ndarray, device: torch.device
) -> torch.Tensor:
    """Call the model as the host does: `flatten(model(batch)[0])`, on the CPU.

    Raises:
        Violation: the model raises, or its output has no `[0]` that is a tensor.
    """
    try:
        with torch.no_grad():
            output = model(to_batch(pixels_HW3).to(device))
        return torch.flatten(output[0]).cpu()
    except Exception as error:  # whatever the submitted model raises, it breaks the contract
        height, width, _ = pixels_HW3.shape
        raise Violation(f"fails at height {height}, width {width}: {one_line(error)}") from error


def _type_fault(output_D: torch.Tensor) -> str | None:
    # bfloat16 is left out: NumPy, through which the host reads the numbers, has no such type.
    allowed = (torch.float16, torch.float32, torch.float64)
    return None if output_D.dtype in allowed else f"numbers of type {output_D.dtype}"


def _count_fault(output_D: torch.Tensor) -> str | None:
    count = output_D.numel()
    return None if 1 <= count <= MAX_DIMENSION else f"{count} numbers"


def _finite_fault(output_D: torch.Tensor) -> str | None:
    bad = int((~output_D.float().isfinite()).sum())
    return f"{bad} of {output_D.numel()} numbers are NaN or infinite" if bad else None


OUTPUT_RULES = (
    ("floating_point", "numbers of type float16, float32 or float64", _type_fault),
    ("dimension", f"1 to {MAX_DIMENSION} numbers", _count_fault),
    ("finite", "finite numbers only", _finite_fault),
)


def embed(
    model: torch.jit.ScriptModule, pixels_HW3: np.ndarray, device: torch.device
) -> np.ndarray:
    """Embed one image: float32, [D].

    Raises:
        Violation: the model fails or its output breaks one of `OUTPUT_RULES`.
    """
    output_D = forward(model, pixels_HW3, device)
    for _, _, fault_of in OUTPUT_RULES:
        if fault := fault_of(output_D):
            raise Violation(fault)
    return output_D.float().numpy()


def verify(
    path: Path, checklist: Checklist, device: torch.device, folder: Path
) -> torch.jit.ScriptModule:
    """Check the submission against the contract, recording each outcome; return its model.

    It is unpacked into `folder`, which may go afterwards.

    Raises:
        Violation: at the first check that fails.
    """
    with checklist.check("zip_layout", f"one file, {MODEL_NAME}, at the root of a zip"):
        unpacked = unpack_model(path, folder)
    with checklist.check("format_version", f"at most {MAX_FORMAT_VERSION}, as PyTorch 1.11 reads"):
        check_format_version(unpacked)
    with checklist.check("loads", "TorchScript that torch.jit.load opens"):
        model = load(unpacked, device)
    with checklist.check("original_size", "uint8 images (1, 3, H, W) of any size are accepted"):
        outputs = {name: forward(model, image, device) for name, image in _probes().items()}
    _check_outputs(outputs, checklist)
    one, other = _noise(320, 240), _noise(240, 320)
    bound = f"equal to within {TOLERANCE[device.type]:g} of the embedding's scale"
    with checklist.check("same_answer_twice", bound):
        first_D = embed(model, one, device)
        _compare(first_D, embed(model, one, device), "two calls on one image", device)
    with checklist.check("independent_of_other_images", bound):
        late_D = embed(model, other, device)
        _compare(first_D, embed(model, one, device), "an image before and after another", device)
        del model  # peak memory is reported: hold one copy of the weights at a time
        model = load(unpacked, device)
        _compare(embed(model, other, device), late_D, "an image alone and after others", device)
    return model


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _compare(a_D: np.ndarray, b_D: np.ndarray, what: str, device: torch.device) -> None:
    difference = float(np.abs(a_D - b_D).max()) if a_D.shape == b_D.shape else np.inf
    if difference > TOLERANCE[device.type] * max(1.0, float(np.abs(a_D).max())):
        raise Violation(f"{what} differ by {difference:.3g}")


def _probes() -> dict[str, np.ndarray]:
    """Noise of every size, and two flat images, which tempt a model to divide by zero."""
    noise = {f"a {height}x{width} image": _noise(height, width) for height, width in SIZES_HW}
    flat = {"a black image": np.zeros((224, 224, 3), np.uint8)}
    return noise | flat | {"a white image": np.full((224, 224, 3), 255, np.uint8)}


def _check_outputs(outputs: dict[str, torch.Tensor], checklist: Checklist) -> None:
    for name, demand, fault_of in OUTPUT_RULES:
        with checklist.check(name, demand):
            for image, output_D in outputs.items():
                if fault := fault_of(output_D):
                    raise Violation(f"{fault} for {image}")
    with checklist.check("same_dimension", "the same number of numbers for every image"):
        counts = {image: output_D.numel() for image, output_D in outputs.items()}
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[least] != counts[most]:
            raise Violation(f"{counts[least]} for {least}, {counts[most]} for {most}")
