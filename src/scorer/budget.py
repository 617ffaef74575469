"""Estimate, from one image, whether the challenge's nine hours and GPU memory are enough."""

from statistics import median
from typing import Any

import numpy as np

from scorer.contract import CHALLENGE_IMAGES, LIMIT_HOURS
from scorer.embedding import decoded
from scorer.errors import Violation
from scorer.manifest import Manifest
from scorer.process import ModelProcess

GPU = "P100"
GPU_FLOPS = 9.3e12  # operations per second in fp32, from NVIDIA's data sheet
GPU_BYTES = 16 * 10**9
CONTEXT_BYTES = 10**9  # of CUDA and its libraries; assumed
# Share of GPU_FLOPS reached with one image per call; assumed, not measured.
EFFICIENCY = 0.5
MEASURED_HW = (480, 640)
DECODED = 8  # images to time the decoding of


def measured(process: ModelProcess, manifest: Manifest) -> dict[str, Any]:
    """Return `project` for a 480 x 640 px image, decoding a few images; or the fault of counting.

    Raises Violation if the process has ended.
    """
    noise = np.random.default_rng(0).integers(0, 256, (*MEASURED_HW, 3), dtype=np.uint8)
    try:
        seconds = 10 * process.limits.image_seconds
        flops, weight_bytes, activation_bytes = process.call("measure", noise, seconds=seconds)
    except Violation as fault:
        if not process.is_running:
            raise
        return {"card": GPU, "fits": "unknown", "fault": str(fault)}
    sample = list(manifest.images)[:: max(1, len(manifest.images) // DECODED)][:DECODED]
    # The embedding pass reports images that cannot be decoded.
    taken = [image.seconds for image in decoded(manifest, sample, {}) if image]
    return project(flops, weight_bytes, activation_bytes, median(taken or [0.0]))


def project(
    flops: float, weight_bytes: int, activation_bytes: int, decode_seconds: float
) -> dict[str, Any]:
    """Project time and memory for 205,000 images on the challenge's GPU.

    `fits`: `yes` at half the GPU's rate; `perhaps` at its full rate only; else `no`. A multiply-add of one
    image is two `flops`. `activation_bytes` is the peak in addition to the weights.
    """
    decode_hours = decode_seconds * CHALLENGE_IMAGES / 3600
    model_hours = flops / GPU_FLOPS * CHALLENGE_IMAGES / 3600
    least, expected = decode_hours + model_hours, decode_hours + model_hours / EFFICIENCY
    held = weight_bytes + activation_bytes + CONTEXT_BYTES
    fits = "yes" if expected <= LIMIT_HOURS else "perhaps" if least <= LIMIT_HOURS else "no"
    return {
        "card": GPU,
        "gflop_per_image": flops / 1e9,
        "gflop_from": "operations counted",
        "hours": {"decode": decode_hours, "least": least, "expected": expected},
        "limit_hours": LIMIT_HOURS,
        "assumed_share_of_the_card": EFFICIENCY,
        "memory_gb": {
            "weights": weight_bytes / 1e9,
            "activations": activation_bytes / 1e9,
            "context, assumed": CONTEXT_BYTES / 1e9,
            "limit": GPU_BYTES / 1e9,
        },
        "fits": fits if held <= GPU_BYTES else "no",
    }


def describe(budget: dict[str, Any]) -> str:
    """Return the budget in one line."""
    if "fault" in budget:
        return f"{GPU}: not measured ({budget['fault']})"
    hours, memory = budget["hours"], budget["memory_gb"]
    return (
        f"{GPU}, estimated: {budget['gflop_per_image']:,.1f} GFLOP per image; {CHALLENGE_IMAGES:,}"
        f" images take {hours['least']:.2f} h at its full rate, {hours['expected']:.2f} h at"
        f" {EFFICIENCY:.0%} of it, of {LIMIT_HOURS} h;"
        f" {sum(memory.values()) - memory['limit']:.1f} GB of {memory['limit']:.0f} GB;"
        f" fits: {budget['fits']}"
    )
