"""The runs that benchmarks measure are valid configs: these change, and benchmarks are seldom run."""

from pathlib import Path

import distillation


def test_they_are_read_as_any_run(tmp_path: Path) -> None:
    for teachers in (0, 3):
        distillation.config_of(tmp_path, 112, teachers)
