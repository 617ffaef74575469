"""Typed configs: YAML in, frozen models out; unknown keys and wrong types are refused by name."""

from guie.config.base import Config, config_from, load_config, real_root
from guie.config.data import MixConfig
from guie.config.training import RunConfig

__all__ = ["Config", "MixConfig", "RunConfig", "config_from", "load_config", "real_root"]
