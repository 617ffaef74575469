"""Tiny runs to combine, and a mix to score them on."""

from pathlib import Path

import pytest

from tiny_runs import mix_with_val, tiny_run


@pytest.fixture(scope="session")
def data(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The toy benchmark with one train class of each domain moved to val."""
    mix = mix_with_val(toy_manifest, tmp_path_factory.mktemp("mix") / "mix.csv")
    return {"manifest": str(mix), "root": str(toy_manifest.parent)}


@pytest.fixture(scope="session")
def kin(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of one start; no test changes them."""
    folder = tmp_path_factory.mktemp("kin")
    return [tiny_run(folder / name, moved=0.01) for name in ("a", "b")]


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At another size, by another mean, with a head that takes the image's shape; no test changes it."""
    image = {"size_px": 48, "fit": "pad", "mean": [0.5, 0.4, 0.3]}
    head = {"dim": 24, "norm": "bn", "image_shape": True}
    return tiny_run(tmp_path_factory.mktemp("runs") / "wide", size_px=48, head=head, image=image)
