"""The scoring contract as a list of checks. The first one that fails ends the scoring, with a verdict.

Shape legend: H height, W width, D numbers of the embedding (at most 64).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scorer.archive import MAX_FORMAT_VERSION, MODEL_NAME, inspect_archive, unpack_model
from scorer.errors import Violation
from scorer.isolated.process import MAX_NUMBERS, Answer, House, ModelProcess
from scorer.isolated.starting import Allowance

MAX_DIMENSION = MAX_NUMBERS
# Two answers to one image may differ by rounding: on a GPU the JIT fuses kernels after its first
# calls, which shows at half precision. Randomness and leaking state show far above either bound.
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}
# Height and width in px: the degenerate, both orientations, and the usual input square.
SIZES_HW = ((1, 1), (1, 2000), (2000, 1), (320, 240), (240, 320), (224, 224))
# What a failed check says of the submission, in a word; a process that ends has words of its own:
# crash, hang, out_of_memory, too_slow.
VERDICTS = {
    "zip_layout": "bad_archive",
    "format_version": "not_for_torch_1_11",
    "torch_1_11": "not_for_torch_1_11",
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
    """The checks so far, in the order in which they were made, and what they come to."""

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.verdict = "keeps_the_contract"

    @contextmanager
    def check(self, name: str, demand: str) -> Iterator[None]:
        """Record the outcome of the block; a `Violation` in it is recorded and passed on."""
        try:
            yield
        except Violation as violation:
            self.checks.append(Check(name, False, f"{violation}; demanded: {demand}"))
            self.verdict = violation.verdict or VERDICTS[name]
            raise
        self.checks.append(Check(name, True, demand))


def _type_fault(answer: Answer) -> str | None:
    # bfloat16 is left out: NumPy, through which the host reads the numbers, has no such type.
    allowed = ("torch.float16", "torch.float32", "torch.float64")
    return None if answer.type in allowed else f"numbers of type {answer.type}"


def _count_fault(answer: Answer) -> str | None:
    fit = 1 <= answer.count <= MAX_DIMENSION and answer.numbers_D is not None
    return None if fit else f"{answer.count} numbers"


def _finite_fault(answer: Answer) -> str | None:
    bad = 0 if answer.numbers_D is None else int((~np.isfinite(answer.numbers_D)).sum())
    return f"{bad} of {answer.count} numbers are NaN or infinite" if bad else None


OUTPUT_RULES = (
    ("floating_point", "numbers of type float16, float32 or float64", _type_fault),
    ("dimension", f"1 to {MAX_DIMENSION} numbers", _count_fault),
    ("finite", "finite numbers only", _finite_fault),
)


def embedding_of(answer: Answer) -> np.ndarray:
    """The embedding that an answer is: float32, [D]. Raises Violation by `OUTPUT_RULES`."""
    for name, _, fault_of in OUTPUT_RULES:
        if fault := fault_of(answer):
            raise Violation(fault, VERDICTS[name])
    assert answer.numbers_D is not None  # else it had a fault
    return answer.numbers_D


def forward(model: ModelProcess, pixels_HW3: np.ndarray) -> Answer:
    """Call the model as the host does: `flatten(model(batch)[0])`, uint8, original size.

    Raises:
        Violation: the model raises, or its output has no `[0]` that is a tensor.
    """
    try:
        return model.embed(pixels_HW3[None])[0]
    except Violation as fault:
        height, width, _ = pixels_HW3.shape
        told = f"fails at height {height}, width {width}: {fault}"
        raise Violation(told, fault.verdict) from fault


def embed(model: ModelProcess, pixels_HW3: np.ndarray) -> np.ndarray:
    """Embed one image: float32, [D].

    Raises:
        Violation: the model fails or its output breaks one of `OUTPUT_RULES`.
    """
    return embedding_of(forward(model, pixels_HW3))


@contextmanager
def verified(
    path: Path, checklist: Checklist, folder: Path, allowance: Allowance, torch: str = "1.11"
) -> Iterator[ModelProcess]:
    """Check the submission against the contract, recording each outcome; a fresh load of its model.

    Args:
        folder: an empty one, where it is unpacked and may write.
        torch: "1.11", or "current" for a scorer with today's.

    Raises:
        Violation: at the first check that fails.
    """
    with checklist.check("zip_layout", f"one file, {MODEL_NAME}, at the root of a zip"):
        unpacked = unpack_model(path, folder)
    _check_format(unpacked, checklist, torch)
    house = House(unpacked, allowance)
    with house.process() as model:
        if torch == "1.11":
            with checklist.check("torch_1_11", "records and operators that PyTorch 1.11 knows"):
                model.inspect()
        with checklist.check("loads", "TorchScript that torch.jit.load opens"):
            model.load()
            state = model.state()
        with checklist.check("original_size", "uint8 images (1, 3, H, W) of any size are accepted"):
            outputs = {name: forward(model, image) for name, image in _probes().items()}
        _check_outputs(outputs, checklist)
        answers, later = _check_repeated(model, checklist)
    with house.process() as model:
        _check_alone(model, answers, checklist)
        with checklist.check("unchanged", "the model is after its answers what it was before"):
            if later != state:
                raise Violation("its parameters, buffers or attributes changed while it answered")
        yield model


def _check_format(unpacked: Path, checklist: Checklist, torch: str) -> None:
    newest = MAX_FORMAT_VERSION if torch == "1.11" else 10**9
    demand = f"at most {newest}, as PyTorch 1.11 reads" if torch == "1.11" else "TorchScript"
    with checklist.check("format_version", demand):
        version = inspect_archive(unpacked)
        if version > newest:
            raise Violation(f"format version {version} (re-export with export.py, which writes 9)")


def _check_repeated(model: ModelProcess, checklist: Checklist) -> tuple[dict[str, np.ndarray], int]:
    """Ask for one image twice, and again after another; what was answered, and the state after."""
    bound = _bound(model)
    one, other = _noise(320, 240), _noise(240, 320)
    with checklist.check("same_answer_twice", bound):
        first_D = embed(model, one)
        compare(first_D, embed(model, one), "two calls on one image", model)
        late_D = embed(model, other)
        answers = {"first": first_D, "late": late_D, "again": embed(model, one)}
        return answers, model.state()


def _check_alone(fresh: ModelProcess, answers: dict[str, np.ndarray], checklist: Checklist) -> None:
    with checklist.check("independent_of_other_images", _bound(fresh)):
        between = "an image before and after another"
        compare(answers["first"], answers["again"], between, fresh)
        fresh.load()
        alone_D = embed(fresh, _noise(240, 320))
        compare(alone_D, answers["late"], "an image alone and after others", fresh)


def _bound(model: ModelProcess) -> str:
    return f"equal to within {TOLERANCE[model.device.type]:g} of the embedding's scale"


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def difference(a_D: np.ndarray, b_D: np.ndarray) -> float:
    """The largest difference of two answers, over the scale of the first."""
    if a_D.shape != b_D.shape:
        return np.inf
    return float(np.abs(a_D - b_D).max()) / max(1.0, float(np.abs(a_D).max()))


def compare(
    a_D: np.ndarray, b_D: np.ndarray, what: str, model: ModelProcess, verdict: str = ""
) -> None:
    """Raise Violation where two answers differ by more than rounding."""
    found = difference(a_D, b_D)
    if not found <= TOLERANCE[model.device.type]:
        raise Violation(f"{what} differ by {found * max(1.0, np.abs(a_D).max()):.3g}", verdict)


def _probes() -> dict[str, np.ndarray]:
    """Noise of every size, and two flat images, which tempt a model to divide by zero."""
    noise = {f"a {height}x{width} image": _noise(height, width) for height, width in SIZES_HW}
    flat = {"a black image": np.zeros((224, 224, 3), np.uint8)}
    return noise | flat | {"a white image": np.full((224, 224, 3), 255, np.uint8)}


def _check_outputs(outputs: dict[str, Answer], checklist: Checklist) -> None:
    for name, demand, fault_of in OUTPUT_RULES:
        with checklist.check(name, demand):
            for image, answer in outputs.items():
                if fault := fault_of(answer):
                    raise Violation(f"{fault} for {image}")
    with checklist.check("same_dimension", "the same number of numbers for every image"):
        counts = {image: answer.count for image, answer in outputs.items()}
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[least] != counts[most]:
            raise Violation(f"{counts[least]} for {least}, {counts[most]} for {most}")
