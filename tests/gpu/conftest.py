"""Tests that need a real GPU: `make gpu` runs them, the rest of the suite hides the GPU and skips them."""

from pathlib import Path

import pytest
import torch

from runs_of_every_task import Material, material_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="needs a GPU: make gpu"))


@pytest.fixture(scope="session")
def material(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Material:
    return material_of(toy_manifest, tmp_path_factory.mktemp("material"))
