"""Durations: a number with its unit, resolved to steps."""

import pytest

from guie.config.durations import Duration


@pytest.mark.parametrize(
    ("text", "steps", "message"),
    [
        ("500 steps", 500, "500 steps"),
        ("1 step", 1, "1 step"),
        ("1 epoch", 7, "1 epoch"),
        ("1.0 epochs", 7, "1 epoch"),
        (".5 epochs", 3.5, "0.5 epochs"),
        ("1e-7 epochs", 7e-7, "1e-07 epochs"),
    ],
)
def test_a_duration_is_read_resolved_and_written(text: str, steps: float, message: str) -> None:
    duration = Duration.read(text)
    assert (duration.steps(7), str(duration)) == (steps, message)
    assert Duration.read(message) == duration


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (500, "has no unit; write 500 steps, or 500 epochs"),
        *((bad, "such as 500 steps or 1.5 epochs") for bad in ("500", "two epochs", "5 minutes")),
        *((bad, "must be above 0") for bad in ("0 steps", "nan epochs", "inf epochs")),
        ("2.5 steps", "a whole number of steps"),
    ],
)
def test_what_is_none_is_refused_with_a_remedy(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Duration.read(value)


def test_it_ends_at_the_nearest_step() -> None:
    def ends(text: str, steps_per_epoch: float = 5) -> list[int]:
        duration = Duration.read(text)
        return [step for step in range(1, 16) if duration.ends_at(step, steps_per_epoch)]

    assert ends("4 steps") == [4, 8, 12]
    assert ends("1 epoch") == [5, 10, 15]
    assert ends(".5 epochs") == [2, 5, 7, 10, 12, 15]  # halves downwards, as those of rates
    assert ends("0.01 epochs") == list(range(1, 16))
