"""Read durations with a unit: `500 steps`, `1 epoch`, `.5 epochs`."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, core_schema

Unit = Literal["steps", "epochs"]

UNITS: dict[str, Unit] = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}


@dataclass(frozen=True)
class Duration:
    """A number of steps, or of epochs of the stage."""

    number: float  # an integer if the unit is steps
    unit: Unit

    @classmethod
    def read(cls, value: Any) -> Self:
        """Parse a YAML value. Raises ValueError."""
        if isinstance(value, cls):
            return value
        if isinstance(value, int | float):
            raise ValueError(f"has no unit; write {value} steps, or {value} epochs")
        try:
            count, name = str(value).split()
            number, unit = float(count), UNITS[name]
        except (ValueError, KeyError):
            form = "must be a number of steps or epochs, such as 500 steps or 1.5 epochs"
            raise ValueError(form) from None
        if not 0 < number < math.inf:
            raise ValueError("must be above 0 and finite")
        if unit == "steps" and number != int(number):
            raise ValueError("must be a whole number of steps")
        return cls(int(number) if number == int(number) else number, unit)

    def __str__(self) -> str:
        return f"{self.number} {self.unit[:-1] if self.number == 1 else self.unit}"

    def steps(self, steps_per_epoch: float) -> float:
        """Return the duration in steps; for epochs it may be fractional."""
        return self.number if self.unit == "steps" else self.number * steps_per_epoch

    def times_in(self, steps: int, steps_per_epoch: float) -> float:
        """Return how often it has elapsed after `steps`: each period ends at the nearest step."""
        return (steps + 0.5) // self.steps(steps_per_epoch)

    def ends_at(self, step: int, steps_per_epoch: float) -> bool:
        """Return whether a period ends with this step, counted from 1."""
        return self.times_in(step, steps_per_epoch) > self.times_in(step - 1, steps_per_epoch)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> CoreSchema:
        written = core_schema.to_string_ser_schema(when_used="always")
        return core_schema.no_info_plain_validator_function(cls.read, serialization=written)


def _steps_alone(value: Any) -> int:
    duration = Duration.read(value)
    if duration.unit != "steps":
        raise ValueError("must be in steps, such as 500 steps")
    return int(duration.number)


# A number of steps; YAML gives it with its unit, like a duration
Steps = Annotated[
    int,
    PlainValidator(_steps_alone),
    PlainSerializer(lambda number: str(Duration(number, "steps"))),
]
