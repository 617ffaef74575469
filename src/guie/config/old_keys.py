"""Old names of config keys: they are still read, with a warning, from files and from `--set`."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

# The end of a key's path, without list indices, and the key's name today
OLD_KEYS = {
    "shares.told_by": "domain_source",
    "ema_goes_on": "ema_carry",
    "task.reaches": "backprop_to",
    "loss.start": "init",
    "margin_rad.least": "min",
    "margin_rad.most": "max",
    "margin_cos.least": "min",
    "margin_cos.most": "max",
    "adapters.of": "targets",
    "aspect.most": "max",
    # Until 2026-11 the unit of a duration was in the key's name, and its value was a bare number
    "log_every_steps": "log_every",
    "checkpoint_every_steps": "checkpoint_every",
    "validate_every_steps": "validate_every",
    "warmup_steps": "warmup",
    "warmup_epochs": "warmup",
    "warmup_every_epochs": "warmup_every",
    "every_epochs": "every",
    "period_steps": "period",
}
UNITS = ("steps", "epochs")
# The way back, without the durations
FIRST_NAMES = {
    ".".join([*old.split(".")[:-1], new]): old.split(".")[-1]
    for old, new in OLD_KEYS.items()
    if not old.endswith(UNITS)
}
# Written by commands, so nobody has to edit them
RECORDS = ("config.yaml", "composition.yaml", "ensemble.yaml")


def current(place: tuple[int | str, ...], value: Any, source: str) -> tuple[Any, Any]:
    """Return the last key of a place, and its value, as they are written today.

    Example: ("train", "warmup_steps"), 5 -> "warmup", "5 steps".
    """
    old = place[-1]
    key = _found(OLD_KEYS, [str(part) for part in place if not isinstance(part, int)])
    if key is None or isinstance(old, int):
        return old, value
    if Path(source).name not in RECORDS:
        _warn(source, old, key)
    unit = old.rpartition("_")[2]
    if unit in UNITS and key == "warmup" and value == 0:
        return key, None
    bare = isinstance(value, int | float) and not isinstance(value, bool)
    return key, f"{value} {unit}" if unit in UNITS and bare else value


def _found(names: dict[str, str], place: list[str]) -> str | None:
    """Return the other name of a key, by the longest end of its place that has one."""
    ends = (".".join(place[n:]) for n in range(len(place)))
    return next((names[end] for end in ends if end in names), None)


@cache  # once for each file
def _warn(source: str, old: str, key: str) -> None:
    tqdm.write(f"{source}: {old} is called {key} now; rename it", file=sys.stderr)


def with_old_names(values: Any, place: tuple[str, ...] = ()) -> Any:
    """Return the values of a config under the key names that the hashes of old study jobs used."""
    if isinstance(values, list):
        return [with_old_names(item, place) for item in values]
    if not isinstance(values, dict):
        return values
    inner = {key: with_old_names(item, (*place, str(key))) for key, item in values.items()}
    return {_found(FIRST_NAMES, [*place, str(key)]) or key: item for key, item in inner.items()}
