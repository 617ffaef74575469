"""Typed configs: YAML becomes frozen models. Errors name each unknown key and each wrong type."""

from guie.config.loading import config_from, load_config, real_root, to_yaml
from guie.config.training import RunConfig

__all__ = ["RunConfig", "config_from", "load_config", "real_root", "to_yaml"]
