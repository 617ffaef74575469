"""Durations in a config name their unit: `500 steps`, `1 epoch`, `.5 epochs`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, core_schema

Unit = Literal["steps", "epochs"]

UNITS: dict[str, Unit] = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}
# As keys were named while each had a unit of its own: run folders of that time are read still
OLD_NAMES = {
    "log_every_steps": ("log_every", "steps"),
    "checkpoint_every_steps": ("checkpoint_every", "steps"),
    "validate_every_steps": ("validate_every", "steps"),
    "warmup_steps": ("warmup", "steps"),
    "warmup_epochs": ("warmup", "epochs"),
    "warmup_every_epochs": ("warmup_every", "epochs"),
    "every_epochs": ("every", "epochs"),
    "period_steps": ("period", "steps"),
}


@dataclass(frozen=True)
class Duration:
    """So many steps, or epochs of the stage."""

    number: float  # of steps a whole one
    unit: Unit

    @classmethod
    def read(cls, value: Any) -> Duration:
        """From what stands in YAML. Raises ValueError."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, int | float):
            raise ValueError(f"has no unit; write {value} steps, or {value} epochs")
        try:
            count, name = str(value).split()
            number, unit = float(count), UNITS.get(name)
        except ValueError:
            unit = None
        if unit is None:
            raise ValueError("is to be so many steps or epochs, such as 500 steps or 1.5 epochs")
        if not 0 < number < math.inf:
            raise ValueError("is to be above 0 and finite")
        if unit == "steps" and number != int(number):
            raise ValueError("there is no part of a step")
        return cls(int(number) if number == int(number) else number, unit)

    def __str__(self) -> str:
        return f"{self.number} {self.unit[:-1] if self.number == 1 else self.unit}"

    def steps(self, steps_per_epoch: float) -> float:
        """How many steps it takes; of epochs it need not be a whole number."""
        return self.number if self.unit == "steps" else self.number * steps_per_epoch

    def times_in(self, steps: int, steps_per_epoch: float) -> float:
        """How often it has passed after so many steps: each time ends at the nearest step."""
        return (steps + 0.5) // self.steps(steps_per_epoch)

    def ends_at(self, step: int, steps_per_epoch: float) -> bool:
        """Whether it has passed once more with this step, counted from 1."""
        return self.times_in(step, steps_per_epoch) > self.times_in(step - 1, steps_per_epoch)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> CoreSchema:
        written = core_schema.to_string_ser_schema(when_used="always")
        return core_schema.no_info_plain_validator_function(cls.read, serialization=written)


def _steps_alone(value: Any) -> int:
    duration = Duration.read(value)
    if duration.unit != "steps":
        raise ValueError("is counted in steps, such as 500 steps")
    return int(duration.number)


# A number of steps; in YAML with its unit, as a duration
Steps = Annotated[
    int,
    PlainValidator(_steps_alone),
    PlainSerializer(lambda number: str(Duration(number, "steps"))),
]


def named_now(key: Any, value: Any) -> tuple[Any, Any]:
    """A key as it is named now, and its value: ("warmup_steps", 5) -> ("warmup", "5 steps")."""
    if key not in OLD_NAMES:
        return key, value
    key, unit = OLD_NAMES[key]
    if key == "warmup" and value == 0:
        return key, None
    bare = isinstance(value, int | float) and not isinstance(value, bool)
    return key, f"{value} {unit}" if bare else value
