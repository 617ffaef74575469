"""The scoring contract as a list of checks. A failed check gives the verdict and prevents a score.

Shape legend: H height, W width, D dimension of the embedding (at most 64).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scorer.archive import MAX_FORMAT_VERSION, MODEL_NAME, format_version, unpack_model
from scorer.errors import Violation
from scorer.process import TYPES, Allowance, Answer, ModelProcess, UnpackedModel

MAX_DIMENSION = 64
# Two answers to one image may differ by rounding: on a GPU the JIT fuses kernels after its first
# calls, which matters at half precision. Randomness and leaking state exceed both bounds by far.
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}
# Height and width in px: degenerate sizes, both orientations, and the usual input square.
ONE, OTHER = "a 320x240 image", "a 240x320 image"  # those that are embedded repeatedly
SIZES_HW = ((1, 1), (1, 2000), (2000, 1), (320, 240), (240, 320), (224, 224))
# The verdict of each failed check. Those of a process that ends: crash, hang, out_of_memory, too_slow.
VERDICTS = {
    "zip_layout": "bad_archive",
    "format_version": "not_for_torch_1_11",
    "torch_1_11": "not_for_torch_1_11",
    "file_access": "reads_files",
    "loads": "does_not_load",
    "original_size": "refuses_an_image",
    "floating_point": "wrong_type",
    "dimension": "wrong_dimension",
    "finite": "not_finite",
    "same_dimension": "dimension_varies",
    "same_answer_twice": "random",
    "independent_of_other_images": "depends_on_order",
    "unchanged": "changes_itself",
    "every_image": "refuses_an_image",
}


@dataclass(frozen=True)
class Check:
    """One check of the contract and its outcome."""

    name: str
    passed: bool
    detail: str


class Checklist:
    """The checks so far, in order; `verdict` belongs to the first failed check."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.verdict = "keeps_the_contract"

    @property
    def failed(self) -> dict[str, str]:
        """Findings of the failed checks, by name."""
        return {check.name: check.detail for check in self.checks if not check.passed}

    @contextmanager
    def check(self, name: str, demand: str) -> Iterator[None]:
        """Record the outcome of the block; a `Violation` in it is recorded and not raised."""
        try:
            yield
        except Violation as violation:
            if not self.failed:
                self.verdict = violation.verdict or VERDICTS[name]
            self.checks.append(Check(name, False, f"{violation}; demanded: {demand}"))
        else:
            self.checks.append(Check(name, True, demand))


# Of each answer: the check, and what is demanded.
OUTPUT_RULES = {
    "floating_point": "numbers of type float16, float32 or float64",
    "dimension": f"1 to {MAX_DIMENSION} numbers",
    "finite": "finite numbers only",
}


def fault_of(answer: Answer, rule: str) -> str:
    """Return how an answer breaks one of `OUTPUT_RULES`; empty if it does not."""
    if rule == "floating_point":
        return "" if answer.type in TYPES else f"numbers of type {answer.type}"
    if rule == "dimension":
        return "" if 1 <= answer.count <= MAX_DIMENSION else f"{answer.count} numbers"
    bad = 0 if answer.numbers_D is None else int((~np.isfinite(answer.numbers_D)).sum())
    return f"{bad} of {answer.count} numbers are NaN or infinite" if bad else ""


def embedding_of(answer: Answer) -> np.ndarray:
    """Return the embedding of an answer: float32, [D]. Raises Violation by `OUTPUT_RULES`."""
    for rule in OUTPUT_RULES:
        if fault := fault_of(answer, rule):
            raise Violation(fault, VERDICTS[rule])
    assert answer.numbers_D is not None  # otherwise a rule has failed
    return answer.numbers_D


def embedding(model: ModelProcess, pixels_HW3: np.ndarray) -> np.ndarray:
    """Embed one image as the host does: float32, [D].

    Raises:
        Violation: the model fails or its output breaks one of `OUTPUT_RULES`.
    """
    return embedding_of(model.embed(pixels_HW3[None])[0])


def verified(
    path: Path, checklist: Checklist, unpacked: Path, allowance: Allowance, torch: str = "1.11"
) -> UnpackedModel | None:
    """Check a submission; return it unpacked, or None if it breaks the contract.

    Checks continue after a failure where possible, so that all faults are recorded.

    Args:
        unpacked: where the model is written.
        torch: "1.11", or "current" for a scorer with the current version.
    """
    with checklist.check("zip_layout", f"one file, {MODEL_NAME}, at the root of a zip"):
        unpack_model(path, unpacked)
    if checklist.failed:
        return None
    version, newest = 0, MAX_FORMAT_VERSION if torch == "1.11" else 10**9
    demand = f"at most {newest}, as PyTorch 1.11 reads" if torch == "1.11" else "TorchScript"
    with checklist.check("format_version", demand):
        version = format_version(unpacked)
        if version > newest:
            raise Violation(f"format version {version} (re-export with export.py, which writes 9)")
    if not version:
        return None  # the archive is unusable
    model = UnpackedModel(unpacked, allowance)
    with model.process() as process:
        if torch == "1.11":
            with checklist.check("torch_1_11", "records and operators that PyTorch 1.11 knows"):
                process.ask("inspect", "torch_1_11")
            if not process.is_running:
                return None
        with checklist.check("file_access", "no operator that reads or writes files"):
            process.ask("inspect", "file_access")
        if "file_access" in checklist.failed:
            return None
        with checklist.check("loads", "TorchScript that torch.jit.load opens"):
            process.ask("load")
            state = process.ask("state")
        if "loads" in checklist.failed:
            return None
        outputs = _check_sizes(process, checklist)
        if outputs:
            _check_outputs(outputs, checklist)
        for size in (ONE, OTHER):
            if size not in outputs or any(fault_of(outputs[size], rule) for rule in OUTPUT_RULES):
                return None  # nothing to compare
        later = _check_repeated(process, model, checklist)
    if later is not None:
        with checklist.check("unchanged", "the model's state stays the same while it answers"):
            if later != state:
                raise Violation("its parameters, buffers or attributes changed while it answered")
    return None if checklist.failed else model


def _check_sizes(process: ModelProcess, checklist: Checklist) -> dict[str, Answer]:
    """Embed an image of every size as the host does; return the answers of those that succeed."""
    outputs, faults, verdict = {}, {}, ""
    with checklist.check("original_size", "uint8 images (1, 3, H, W) of any size are accepted"):
        for name, pixels_HW3 in _probes().items():
            try:
                outputs[name] = process.embed(pixels_HW3[None])[0]
            except Violation as fault:
                faults[name] = f"fails for {name}: {fault}"
                verdict = verdict or fault.verdict
                if not process.is_running:
                    break
        _refuse(faults, verdict)
    return outputs


def _check_outputs(outputs: dict[str, Answer], checklist: Checklist) -> None:
    for rule, demand in OUTPUT_RULES.items():
        with checklist.check(rule, demand):
            faults = {image: fault_of(answer, rule) for image, answer in outputs.items()}
            _refuse({image: f"{fault} for {image}" for image, fault in faults.items() if fault})
    with checklist.check("same_dimension", "the same number of numbers for every image"):
        counts = {image: answer.count for image, answer in outputs.items()}
        if len(set(counts.values())) > 1:
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise Violation(f"{counts[least]} for {least}, {counts[most]} for {most}")


def _refuse(faults: dict[str, str], verdict: str = "") -> None:
    """Raise a Violation for the first fault, and name the other images with faults."""
    if faults:
        first, *others = faults
        more = f"; also {', '.join(others)}" if others else ""
        raise Violation(faults[first] + more, verdict)


def _check_repeated(
    process: ModelProcess, model: UnpackedModel, checklist: Checklist
) -> int | None:
    """Embed one image twice, and again after another; then the other one in a fresh process.

    Returns:
        The state after these calls; None if the model fails.
    """
    one, other, state = _probes()[ONE], _probes()[OTHER], None
    demand = f"equal to within {TOLERANCE[process.device]:g} of the embedding's scale"
    with checklist.check("same_answer_twice", demand):
        first_D = embedding(process, one)
        again_D, late_D = embedding(process, one), embedding(process, other)
        last_D = embedding(process, one)
        state = process.ask("state")
        compare(first_D, again_D, "two calls on one image", process.device)
    if state is not None and "same_answer_twice" not in checklist.failed:
        process.end()  # frees memory for the next process
        with (
            model.process() as fresh,
            checklist.check("independent_of_other_images", demand),
        ):
            compare(first_D, last_D, "an image before and after another", fresh.device)
            fresh.ask("load")
            alone_D = embedding(fresh, other)
            compare(alone_D, late_D, "an image alone and after others", fresh.device)
    return state


def difference(a_D: np.ndarray, b_D: np.ndarray) -> float:
    """Return the largest difference of two answers, relative to the scale of the first."""
    if a_D.shape != b_D.shape:
        return np.inf
    return float(np.abs(a_D - b_D).max()) / max(1.0, float(np.abs(a_D).max()))


def compare(a_D: np.ndarray, b_D: np.ndarray, what: str, device: str, verdict: str = "") -> None:
    """Raise Violation if two answers differ by more than rounding."""
    found = difference(a_D, b_D)
    if not found <= TOLERANCE[device]:
        raise Violation(f"{what} differ by {found * max(1.0, np.abs(a_D).max()):.3g}", verdict)


def _probes() -> dict[str, np.ndarray]:
    """Return noise of every size, and two flat images, which may cause a division by zero."""
    probes = {}
    for height, width in SIZES_HW:
        noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        probes[f"a {height}x{width} image"] = noise
    probes["a black image"] = np.zeros((224, 224, 3), np.uint8)
    probes["a white image"] = np.full((224, 224, 3), 255, np.uint8)
    return probes
