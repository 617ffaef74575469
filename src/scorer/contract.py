"""The scoring contract as a list of checks. A failed check gives the verdict and prevents a score.

Shape legend: H height, W width, D dimension of the embedding (at most 64).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from scorer.archive import MAX_FORMAT_VERSION, MODEL_NAME, format_version, unpack_model
from scorer.errors import Violation
from scorer.process import Limits, ModelProcess

CHALLENGE_IMAGES = 205_000  # 5,000 queries and 200,000 index images
LIMIT_HOURS = 9
MAX_DIMENSION = 64
# Without bfloat16: the host reads the numbers with NumPy, which has no such type.
TYPES = ("torch.float16", "torch.float32", "torch.float64")
# Two answers to one image may differ by rounding: on a GPU the JIT fuses kernels after its first
# calls, which matters at half precision. Randomness and leaking state exceed both bounds by far.
TOLERANCE = {"cpu": 1e-6, "cuda": 1e-3}
# Height and width in px: degenerate sizes, both orientations, and the usual input square.
SIZES_HW = ((1, 1), (1, 2000), (2000, 1), (320, 240), (240, 320), (224, 224))
ONE, OTHER = "a 320x240 image", "a 240x320 image"  # those that are embedded repeatedly
EQUAL = "equal to within {:g} of the embedding's scale"
# By name: the verdict if it fails, and what is demanded. A process that ends has a verdict of its own:
# crash, hang, out_of_memory, too_slow.
CHECKS = {
    "zip_layout": ("bad_archive", f"one file, {MODEL_NAME}, at the root of a zip"),
    "format_version": (
        "not_for_torch_1_11",
        f"at most {MAX_FORMAT_VERSION}, as PyTorch 1.11 reads",
    ),
    "torch_1_11": ("not_for_torch_1_11", "records and operators that PyTorch 1.11 knows"),
    "file_access": ("reads_files", "no operator that reads or writes files"),
    "loads": ("does_not_load", "TorchScript that torch.jit.load opens"),
    "original_size": ("refuses_an_image", "uint8 images (1, 3, H, W) of any size are accepted"),
    "floating_point": ("wrong_type", "numbers of type float16, float32 or float64"),
    "dimension": ("wrong_dimension", f"1 to {MAX_DIMENSION} numbers"),
    "finite": ("not_finite", "finite numbers only"),
    "same_dimension": ("dimension_varies", "the same number of numbers for every image"),
    "same_answer_twice": ("random", EQUAL),
    "independent_of_other_images": ("depends_on_order", EQUAL),
    "unchanged": ("changes_itself", "the model's state stays the same while it answers"),
    "every_image": (
        "refuses_an_image",
        f"1 to {MAX_DIMENSION} finite numbers, equally many for all images, in any order",
    ),
}
ANSWER_RULES = ("original_size", "floating_point", "dimension", "finite")  # of one image's answer


class Checklist:
    """The checks so far, in order, and the verdict of the first failed one, as in score.json."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {"verdict": "keeps_the_contract", "checks": []}

    @property
    def failed(self) -> dict[str, str]:
        """Findings of the failed checks, by name."""
        return {one["name"]: one["detail"] for one in self.result["checks"] if not one["passed"]}

    @contextmanager
    def check(self, name: str, stop: bool = False, demand: str = "") -> Iterator[None]:
        """Record the outcome of the block under a name of CHECKS.

        A `Violation` in it is raised again if `stop` is set, or if it has a verdict of its own, such as
        `crash`: then nothing more can be checked.
        """
        record = {"name": name, "passed": True, "detail": demand or CHECKS[name][1]}
        try:
            yield
        except Violation as violation:
            if not self.failed:
                self.result["verdict"] = violation.verdict or CHECKS[name][0]
            record |= {"passed": False, "detail": f"{violation}; demanded: {record['detail']}"}
            if stop or violation.verdict:
                raise
        finally:
            self.result["checks"].append(record)


def faults_of(kind: str, numbers_D: np.ndarray) -> dict[str, str]:
    """Return how an answer of this type breaks `ANSWER_RULES`, by the check's name."""
    faults = {}
    if kind not in TYPES:
        faults["floating_point"] = f"numbers of type {kind}"
    if not 1 <= len(numbers_D) <= MAX_DIMENSION:
        faults["dimension"] = f"{len(numbers_D)} numbers"
    if bad := np.count_nonzero(~np.isfinite(numbers_D)):
        faults["finite"] = f"{bad} of {len(numbers_D)} numbers are NaN or infinite"
    return faults


def embedding_of(kind: str, numbers_D: np.ndarray) -> np.ndarray:
    """Return the numbers of an answer. Raises Violation if they break `ANSWER_RULES`."""
    for rule, fault in faults_of(kind, numbers_D).items():
        raise Violation(fault, CHECKS[rule][0])
    return numbers_D


def embedding(model: ModelProcess, pixels_HW3: np.ndarray) -> np.ndarray:
    """Embed one image as the host does: float32, [D]. Raises Violation if the answer breaks a rule."""
    kind, numbers_D, _ = model.embed(pixels_HW3)
    return embedding_of(kind, numbers_D)


def verify(
    path: Path, unpacked: Path, checklist: Checklist, limits: Limits, torch: str = "1.11"
) -> None:
    """Check a submission. Checks continue after a failure where possible, so that all faults are recorded.

    Args:
        unpacked: where the model is written.
        torch: "1.11", or "current" for a scorer with the current version.

    Raises Violation if a check has failed, as the checklist says.
    """
    check = checklist.check
    with check("zip_layout", stop=True):
        unpack_model(path, unpacked)
    with check("format_version", demand="" if torch == "1.11" else "TorchScript"):
        version = format_version(unpacked)
        if torch == "1.11" and version > MAX_FORMAT_VERSION:
            raise Violation(f"format version {version} (re-export with export.py, which writes 9)")
    with ModelProcess(unpacked, limits) as model:
        if torch == "1.11":
            with check("torch_1_11"):
                model.call("check_runtime")
        with check("file_access", stop=True):
            model.call("refuse_file_access")
        with check("loads", stop=True):
            model.call("load")
            state = model.call("state")
        if _check_answers(model, checklist):
            _check_repeated(model, unpacked, checklist, state)
    if checklist.failed:
        raise Violation("the submission breaks the contract")


def _check_answers(model: ModelProcess, checklist: Checklist) -> bool:
    """Embed an image of every size; return whether ONE and OTHER have valid embeddings."""
    faults: dict[str, dict[str, str]] = {rule: {} for rule in ANSWER_RULES}
    counts, verdict = {}, ""
    for image, pixels_HW3 in _probes().items():
        try:
            kind, numbers_D, _ = model.embed(pixels_HW3)
        except Violation as fault:
            faults["original_size"][image] = f"fails for {image}: {fault}"
            verdict = verdict or fault.verdict
            if not model.is_running:
                break
        else:
            counts[image] = len(numbers_D)
            for rule, message in faults_of(kind, numbers_D).items():
                faults[rule][image] = f"{message} for {image}"
    for rule in ANSWER_RULES:
        with checklist.check(rule, stop=not counts):
            if faults[rule]:
                first, *others = faults[rule]
                more = f"; also {', '.join(others)}" if others else ""
                raise Violation(faults[rule][first] + more, verdict)
    with checklist.check("same_dimension"):
        if len(set(counts.values())) > 1:
            least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
            raise Violation(f"{counts[least]} for {least}, {counts[most]} for {most}")
    return not any(found.keys() & {ONE, OTHER} for found in faults.values())


def _check_repeated(model: ModelProcess, path: Path, checklist: Checklist, state: int) -> None:
    """Embed one image twice, and again after another; then the other one in a fresh process.

    `state` is the model's before its first answer.
    """
    one, other = _probes()[ONE], _probes()[OTHER]
    demand = EQUAL.format(TOLERANCE[model.device])
    with checklist.check("same_answer_twice", stop=True, demand=demand):
        first_D, again_D, late_D, last_D = (embedding(model, p) for p in (one, one, other, one))
        later = model.call("state")
        compare(first_D, again_D, "two calls on one image", model.device)
    model.end()  # frees memory for the next process
    check = checklist.check("independent_of_other_images", demand=demand)
    with ModelProcess(path, model.limits) as fresh, check:
        compare(first_D, last_D, "an image before and after another", fresh.device)
        fresh.call("load")
        alone_D = embedding(fresh, other)
        compare(alone_D, late_D, "an image alone and after others", fresh.device)
    with checklist.check("unchanged"):
        if later != state:
            raise Violation("its parameters, buffers or attributes changed while it answered")


def compare(a_D: np.ndarray, b_D: np.ndarray, what: str, device: str, verdict: str = "") -> None:
    """Raise Violation if two answers differ by more than rounding."""
    found = float(np.abs(a_D - b_D).max()) if a_D.shape == b_D.shape else np.inf
    scale = max(1.0, float(np.abs(a_D).max()))
    if not found / scale <= TOLERANCE[device]:
        raise Violation(f"{what} differ by {found:.3g}", verdict)


def _probes() -> dict[str, np.ndarray]:
    """Return noise of every size, and two flat images, which may cause a division by zero."""
    probes = {}
    for height, width in SIZES_HW:
        noise = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        probes[f"a {height}x{width} image"] = noise
    probes["a black image"] = np.zeros((224, 224, 3), np.uint8)
    probes["a white image"] = np.full((224, 224, 3), 255, np.uint8)
    return probes
