"""The recipes' configs, each read once."""

from functools import cache
from pathlib import Path

from guie.config import RunConfig, load_config
from guie.config.data import MixConfig

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))


@cache
def recipe_config(name: str) -> RunConfig:
    """The resolved config of a recipe."""
    return load_config(CONFIGS / f"recipes/{name}.yaml", RunConfig)


@cache
def mix_configs() -> list[MixConfig]:
    """The mixes of public datasets."""
    return [load_config(path, MixConfig) for path in (CONFIGS / "mixes").glob("*.yaml")]
