"""Typed configs: YAML becomes frozen models. Errors name each unknown key and each wrong type."""

from guie.config.base import Config, config_from, load_config, real_root
from guie.config.data import MixConfig
from guie.config.training import RunConfig

__all__ = ["Config", "MixConfig", "RunConfig", "config_from", "load_config", "real_root"]
