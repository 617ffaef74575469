"""Attach the configured adapters to a backbone; BitFit trains the backbone's own vectors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from guie.base.errors import UserError
from guie.config.model import AdapterConfig, PoolConfig, TunedConfig, WithAdapters
from guie.models.adapters.bottleneck import Parallel, adaptformer, stochastic
from guie.models.adapters.lora import Changed, LowRank, close, lora
from guie.models.adapters.prompts import Pool, Vpt
from guie.models.backbones.base import Backbone, VitStructure
from guie.models.layers import capture_outputs

# kind of the config -> the function that attaches such adapters
BUILDERS: dict[str, Callable[[VitStructure, Any, str], nn.ModuleDict]] = {
    "stochastic": stochastic,
    "adaptformer": adaptformer,
    "lora": lora,
}
BIASES = ("bias", "in_proj_bias", "q_bias", "v_bias")


def tuned_names(tower: nn.Module, of: str) -> list[str]:
    """Return the names of the backbone's own parameters that train.

    Args:
        of: `biases`, of linear maps and norms (Ben Zaken et al., BitFit, ACL 2022); `norms`, weights
            and biases of the norms; `both`.

    Raises UserError if the backbone has none.
    """
    names = []
    for prefix, module in tower.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            bias = name in BIASES
            wanted = {"biases": bias, "norms": is_norm, "both": bias or is_norm}[of]
            if wanted and parameter.ndim == 1:
                names.append(f"{prefix}.{name}" if prefix else name)
    if not names:
        raise UserError(f"model.adapters: {type(tower).__name__} has no {of} to tune; remove it")
    return names


class Adapters(nn.Module):
    """Adapters by kind; creating them attaches each to the backbone's forward pass.

    Attributes: `tuned`, names of the backbone's own parameters that train as adapters.

    Raises UserError, naming the config key, if the backbone has no place for an adapter.
    """

    def __init__(self, backbone: Backbone, configs: list[AdapterConfig], key: str):
        super().__init__()
        self.tuned: list[str] = []
        for number, config in enumerate(configs):
            if isinstance(config, TunedConfig):
                self.tuned = tuned_names(backbone.tower, config.targets)
            else:
                structure, build = _structure_of(backbone, key), BUILDERS[config.kind]
                self.add_module(config.kind, build(structure, config, f"{key}.{number}"))


def adapt(backbone: Backbone, config: WithAdapters) -> Backbone:
    """Add the configured adapters and prompts to a backbone, in place; return the backbone.

    Raises UserError if the backbone has no place for one, or a forward pass would not reach it.
    """
    if config.adapters:
        backbone.adapters = Adapters(backbone, config.adapters, "model.adapters")
    if prompts := config.prompts:
        structure, why = _structure_of(backbone, "model.prompts"), None
        if structure.pooling == "map":
            why = "not supported for backbones with attention pooling"
        elif not structure.takes_tokens:
            why = f"{type(backbone.tower).__name__} has rotary position embeddings in every block"
        if why:
            raise UserError(f"model.prompts: {why}; set it to null")
        if isinstance(prompts, PoolConfig):
            backbone.prompts = Pool(structure, prompts)
        else:
            backbone.prompts = Vpt(structure, prompts)
    if backbone.adapters:
        _refuse_unreached(backbone, backbone.adapters)
    return backbone


def merge_lora(backbone: Backbone) -> None:
    """Merge LoRA into the weights, as in eval mode; other adapters stay."""
    adapters = backbone.adapters
    if adapters is None or "lora" not in dict(adapters.named_children()):
        return
    for change in adapters.get_submodule("lora").children():
        assert isinstance(change, Changed)
        change.merge()
    del adapters.lora
    for module in backbone.tower.modules():
        close(module)
    if not adapters.tuned and not list(adapters.children()):
        backbone.adapters = None


def _structure_of(backbone: Backbone, key: str) -> VitStructure:
    """Return a backbone's structure. Raises UserError, naming the config key, if it is not supported."""
    structure = backbone.structure()
    if structure is None:
        raise UserError(
            f"{key}: {type(backbone.trunk).__name__} is not supported; use a pre-norm vision transformer,"
            " such as timm's VisionTransformer or Eva, or open_clip's VisionTransformer"
        )
    return structure


def _refuse_unreached(backbone: Backbone, adapters: Adapters) -> None:
    """Raise UserError for an adapter that no forward pass reaches: it would never train."""
    kinds, training, side = Parallel | LowRank, backbone.training, backbone.size_px
    names = [name for name, module in adapters.named_modules() if isinstance(module, kinds)]
    if not names:  # tuned vectors alone
        return
    with torch.no_grad(), capture_outputs(adapters, names) as reached:
        backbone.eval()(torch.zeros(1, 3, side, side, device=next(adapters.parameters()).device))
    backbone.train(training)
    for name in names:
        if name not in reached:
            kind = type(backbone.tower).__name__
            raise UserError(f"model.adapters: {kind} never calls the module of {name}; remove it")
