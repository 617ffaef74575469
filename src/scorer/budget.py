"""Would the challenge's nine hours and its card's memory be enough? From one image, before the pass."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scorer.decoding import decode
from scorer.errors import Violation
from scorer.isolated.process import ModelProcess

CHALLENGE_IMAGES = 205_000  # 5,000 queries and 200,000 index images
LIMIT_HOURS = 9
CARD = "P100"
CARD_FLOPS = 9.3e12  # operations a second in fp32, by NVIDIA's data sheet
CARD_BYTES = 16 * 10**9
CONTEXT_BYTES = 10**9  # of CUDA and its libraries; assumed
# Of the card's operations a second, at one image a call; assumed: none was at hand to measure.
EFFICIENCY = 0.5
MEASURED_HW = (480, 640)
DECODED = 8  # images whose decoding is timed


@dataclass(frozen=True)
class Cost:
    """What one image costs: operations (a multiply-add is two), and bytes at the peak."""

    flops: float
    counted: bool  # in what was dispatched; else from seconds and this machine's rate
    weight_bytes: int
    activation_bytes: int
    decode_seconds: float


def measure(model: ModelProcess, images: list[Path]) -> Cost:
    """Count one image of 480 x 640 px; time the decoding of a few of these. Raises Violation."""
    noise = np.random.default_rng(0).integers(0, 256, (*MEASURED_HW, 3), dtype=np.uint8)
    message = model.measure(noise)
    by_time = message["seconds"] * message["machine_flops"]
    return Cost(
        message["flops"] or by_time,
        bool(message["flops"]),
        model.weight_bytes,
        int(message["activation_bytes"]),
        _decode_seconds(images[:: max(1, len(images) // DECODED)][:DECODED]),
    )


def _decode_seconds(images: list[Path]) -> float:
    """Seconds an image, by the middle one; those that cannot be decoded are the pass's to name."""
    taken = [0.0]
    for path in images:
        began = time.perf_counter()
        with suppress(Exception):  # see decode
            decode(path)
            taken.append(time.perf_counter() - began)
    return median(taken[1:] or taken)


def project(cost: Cost) -> dict[str, Any]:
    """What 205,000 images would take on the challenge's card, and whether they would fit.

    `fits`: `yes`, also at half the card's rate; `perhaps`, at its full rate alone; `no`.
    """
    decode_hours = cost.decode_seconds * CHALLENGE_IMAGES / 3600
    model_hours = cost.flops / CARD_FLOPS * CHALLENGE_IMAGES / 3600
    least, expected = decode_hours + model_hours, decode_hours + model_hours / EFFICIENCY
    held = cost.weight_bytes + cost.activation_bytes + CONTEXT_BYTES
    fits = "yes" if expected <= LIMIT_HOURS else "perhaps" if least <= LIMIT_HOURS else "no"
    return {
        "card": CARD,
        "gflop_per_image": cost.flops / 1e9,
        "gflop_from": "operations counted" if cost.counted else "seconds on this machine",
        "hours": {"decode": decode_hours, "least": least, "expected": expected},
        "limit_hours": LIMIT_HOURS,
        "assumed_share_of_the_card": EFFICIENCY,
        "memory_gb": {
            "weights": cost.weight_bytes / 1e9,
            "activations": cost.activation_bytes / 1e9,
            "context, assumed": CONTEXT_BYTES / 1e9,
            "limit": CARD_BYTES / 1e9,
        },
        "fits": fits if held <= CARD_BYTES else "no",
    }


def warning(budget: dict[str, Any]) -> str:
    """One line where the budget may not be enough, else nothing."""
    if budget["fits"] == "yes":
        return ""
    if "fault" in budget:
        return f"WARNING budget: not measured ({budget['fault']})"
    hours, memory = budget["hours"], budget["memory_gb"]
    held = sum(memory.values()) - memory["limit"]
    return (
        f"WARNING budget: {budget['gflop_per_image']:,.0f} GFLOP an image; {CHALLENGE_IMAGES:,} images"
        f" on a {CARD} take {hours['least']:.1f} h at its full rate, {hours['expected']:.1f} h at"
        f" {EFFICIENCY:.0%} of it, of {LIMIT_HOURS} h; {held:.1f} GB of {memory['limit']:.0f} GB:"
        f" fits: {budget['fits']}"
    )


def measured(model: ModelProcess, images: list[Path]) -> dict[str, Any]:
    """`project` of `measure`; why there is none where only the counting failed."""
    try:
        return project(measure(model, images))
    except Violation as fault:
        if not model.is_running:
            raise
        return {"card": CARD, "fits": "unknown", "fault": str(fault)}
