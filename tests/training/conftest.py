"""A mix of toy images to train on and to validate with, and configs that train on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_configs import sets, write_config

from runs_of_every_task import Material, material_of
from tiny_runs import mix_with_val


@pytest.fixture(scope="session")
def mix(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy benchmark with one train class of each domain moved to val."""
    return mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")


@pytest.fixture(scope="session")
def material(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Material:
    """What the runs of every task need."""
    return material_of(toy_manifest, tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="session")
def written(
    mix: Path, toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[str]]:
    """Write the changed config of a toy run into a new folder; return the words that train it."""

    def write(
        *overrides: str, manifest: Path = mix, root: Path = toy_manifest.parent, **changes: Any
    ) -> list[str]:
        path = tmp_path_factory.mktemp("run") / "c.yaml"
        write_config(path, manifest, root, **changes)
        return ["--config", str(path), *sets(*overrides)]

    return write
