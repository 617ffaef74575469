"""The runs that benchmarks measure are valid configs: these change, and benchmarks are seldom run."""

from __future__ import annotations

from pathlib import Path

import compiling
import distillation
import loop

from guie.config import RunConfig, load_config


def test_they_are_read_as_any_run(tmp_path: Path) -> None:
    for settings in compiling.VARIANTS.values():
        compiling.config(**settings)
    for teachers in (0, 3):
        distillation.config_of(tmp_path, 112, teachers)
    load_config(loop.configure(tmp_path, images=4, batch_size=2, workers=0), RunConfig)
