"""Optimisers with rates by part and block, schedules of them, averages of weights."""

from guie.training.optim.averaging import averaged
from guie.training.optim.groups import (
    block_of,
    build_optimizer,
    freeze,
    named_parameters,
    refuse_unknown_blocks,
)
from guie.training.optim.schedules import schedule_factor, set_learning_rates

__all__ = [
    "averaged",
    "block_of",
    "build_optimizer",
    "freeze",
    "named_parameters",
    "refuse_unknown_blocks",
    "schedule_factor",
    "set_learning_rates",
]
