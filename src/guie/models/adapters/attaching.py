"""Attach the adapters that a config names to a backbone; BitFit trains the backbone's own vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import (
    AdapterConfig,
    AdaptFormerConfig,
    LoraConfig,
    StochasticConfig,
    TunedConfig,
    WithAdapters,
)
from guie.models.adapters.bottleneck import Parallel, adaptformer, stochastic
from guie.models.adapters.lora import Changed, LowRank, close, lora
from guie.models.adapters.prompts import build_prompts
from guie.models.adapters.vit_structure import VitStructure, anatomy_of
from guie.models.backbones import Backbone

BIASES = ("bias", "in_proj_bias", "q_bias", "v_bias")


def tuned_names(tower: nn.Module, of: str) -> list[str]:
    """Names of the tower's parameters that train.

    Args:
        of: `biases`, of linear maps and norms (Ben Zaken et al., BitFit, ACL 2022); `norms`, weights
            and biases of the norms; `both`.

    Raises UserError where the tower has none.
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
        raise UserError(f"model.adapters: {type(tower).__name__} has no {of} to tune")
    return names


class Adapters(nn.Module):
    """Adapters by their kind, each a part of the tower's forward pass from now on.

    Attributes: `tuned`, names of the tower's own parameters that train as adapters.

    Args:
        key: of the config, for messages.

    Raises UserError where the tower has no place for one.
    """

    def __init__(self, backbone: Backbone, configs: list[AdapterConfig], key: str):
        super().__init__()
        self.tuned: list[str] = []
        for number, config in enumerate(configs):
            if isinstance(config, TunedConfig):
                self.tuned = tuned_names(backbone.tower, config.of)
            else:
                structure = anatomy_of(backbone.tower, key)
                self.add_module(config.kind, _built(structure, config, f"{key}.{number}"))


def adapt(backbone: Backbone, config: WithAdapters) -> Backbone:
    """Add what the config names to a backbone, which is returned.

    Raises UserError where there is no place for it, or where a forward pass would not reach it.
    """
    if config.adapters:
        backbone.adapters = Adapters(backbone, config.adapters, "model.adapters")
    if config.prompts:
        backbone.prompts = build_prompts(
            anatomy_of(backbone.tower, "model.prompts"), config.prompts
        )
    if backbone.adapters:
        _refuse_unreached(backbone, backbone.adapters)
    return backbone


def merge_lora(backbone: Backbone) -> None:
    """Put what LoRA has learned into the weights themselves, as it is scored; the rest stays."""
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


def _built(
    structure: VitStructure, config: StochasticConfig | AdaptFormerConfig | LoraConfig, key: str
) -> nn.ModuleDict:
    match config:
        case StochasticConfig():
            return stochastic(structure, config, key)
        case AdaptFormerConfig():
            return adaptformer(structure, config, key)
        case LoraConfig():
            return lora(structure, config, key)


def _refuse_unreached(backbone: Backbone, adapters: Adapters) -> None:
    """Raise UserError for an adapter that a forward pass goes around, which would never learn."""
    waiting = {
        name: module
        for name, module in adapters.named_modules()
        if isinstance(module, Parallel | LowRank)
    }
    if not waiting:  # tuned vectors alone
        return

    def reached(module: nn.Module, args: object, output: Tensor) -> None:
        for name in [name for name, one in waiting.items() if one is module]:
            del waiting[name]

    holds = [module.register_forward_hook(reached) for module in waiting.values()]
    training = backbone.training
    with torch.no_grad():
        side = backbone.size_px
        backbone.eval()(torch.zeros(1, 3, side, side, device=next(adapters.parameters()).device))
    backbone.train(training)
    for hold in holds:
        hold.remove()
    if waiting:
        first = next(iter(waiting))
        kind = type(backbone.tower).__name__
        raise UserError(f"model.adapters: {kind} never uses the place of {first}; leave it out")
