"""Typed configs: YAML in, frozen models out; unknown keys and wrong types are refused by name."""

from guie.config.base import Config, config_from, load_config, real_root
from guie.config.mix import MixConfig
from guie.config.run import RunConfig

__all__ = ["Config", "MixConfig", "RunConfig", "config_from", "load_config", "real_root"]
