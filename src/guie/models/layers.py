"""Features of a tower's own layers, in place of its output.

Vo and Hays, Generalization in Metric Learning: Should the Embedding Layer be Embedding Layer?, WACV
2019: what is trained last generalises worse than what lies beneath it. Shapes: B images, C channels of
a layer, P places, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import open_clip
import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import LayersConfig
from guie.models.patches import Tower, trunk_of

LEAST = 1e-6  # of what gem takes the power of


class Layers(nn.Module):
    """Pools what the named modules of a tower give. It has no parameters, and holds no tower.

    What lies above the last of them is taken out of the tower: it is neither computed nor kept.

    Attributes: `dim` (F); `unused_parameters`, names of the parameters that receive no gradient, because no
    feature depends on them.

    Args:
        added: parameters that were added to the tower.

    Raises UserError for a module that is not there, that a forward pass goes around, or whose output
    cannot be pooled so; and where something was added above the last of them.
    """

    def __init__(
        self, tower: Tower, config: LayersConfig, size_px: int, added: Iterable[nn.Parameter] = ()
    ):
        super().__init__()
        self.config = config
        known = dict(tower.named_modules())
        for name in config.of:
            if name not in known or not name:
                raise UserError(
                    f"model.layers.of: {type(tower).__name__} has no layer {name!r}; {_some(known)}"
                )
        self.dim, unused_parameters = self._probed(tower, added, size_px)
        prune(tower, unused_parameters)
        self.unused_parameters = unused_parameters & dict(tower.named_parameters()).keys()

    def forward(self, tower: Tower, images_BCHW: Tensor) -> Tensor:
        """(B, 3, S, S) -> (B, F)."""
        with capture_outputs(tower, self.config.of) as heard:
            tower(images_BCHW)
        silent = [name for name in self.config.of if name not in heard]
        if silent:
            raise UserError(
                f"model.layers.of: a forward pass never calls {silent[0]}; name another"
            )
        return torch.cat([self.pooled(tower, name, heard[name]) for name in self.config.of], dim=1)

    def pooled(self, tower: Tower, name: str, output: Tensor) -> Tensor:
        """A layer's output -> (B, C). Raises UserError for what has no places, or no class token."""
        trunk = trunk_of(tower)
        if output.dim() == 2:
            return output
        if self.config.pool == "token":
            if output.dim() != 3 or not _prefix(trunk):
                raise UserError(
                    f"model.layers.pool: {name} has no class token; take avg, max or gem"
                )
            return output[:, 0]
        if output.dim() == 3:
            places_BPC = output[:, _prefix(trunk) :]
        elif output.dim() == 4 and getattr(trunk, "output_fmt", "NCHW") == "NHWC":
            places_BPC = output.flatten(1, 2)
        elif output.dim() == 4:
            places_BPC = output.flatten(2).transpose(1, 2)
        else:
            shape = tuple(output.shape)
            raise UserError(f"model.layers.of: {name} gives {shape}, which is no map of features")
        if self.config.pool == "max":
            return places_BPC.amax(1)
        if self.config.pool == "avg":
            return places_BPC.mean(1)
        power = self.config.power
        return places_BPC.clamp(min=LEAST).pow(power).mean(1).pow(1 / power)

    def _probed(
        self, tower: Tower, added: Iterable[nn.Parameter], size_px: int
    ) -> tuple[int, set[str]]:
        """F, and the parameters that no feature depends on. Raises UserError where these were added."""
        training, names, more = tower.training, dict(tower.named_parameters()), list(added)
        every = [*names.values(), *more]
        frozen = [value for value in every if not value.requires_grad]
        for value in every:
            value.requires_grad_(True)
        tower.eval()
        with torch.enable_grad():
            feat_BF = self(tower, torch.zeros(1, 3, size_px, size_px, device=every[0].device))
            grads = torch.autograd.grad(feat_BF.sum(), every, allow_unused=True)
        tower.train(training)
        for value in frozen:
            value.requires_grad_(False)
        if any(grad is None for grad in grads[len(names) :]):
            raise UserError(
                "model.layers.of: adapters or prompts stand above the last of these layers"
            )
        unused_parameters = {name for name, grad in zip(names, grads, strict=False) if grad is None}
        return feat_BF.shape[1], unused_parameters


class Passthrough(nn.Module):
    """Stands where a module was: hands on what comes first, as a block of open_clip takes a mask too."""

    def forward(self, given: Tensor, *more: Any, **named: Any) -> Tensor:
        return given


def prune(tower: Tower, unused_parameters: set[str]) -> None:
    """Put nothing in the place of modules all of whose parameters are idle."""
    gone: list[str] = []
    for name, module in list(tower.named_modules()):
        own = [f"{name}.{key}" for key, _ in module.named_parameters()]
        inside = any(name.startswith(f"{other}.") for other in gone)
        if name and own and not inside and unused_parameters.issuperset(own):
            tower.set_submodule(name, Passthrough())
            gone.append(name)


@contextmanager
def capture_outputs(tower: Tower, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Within, what the named modules gave last stands in the dict.

    The hooks last for one pass: a copy of the tower has none that would tell the original's listener.
    """
    heard: dict[str, Tensor] = {}

    def hear(name: str, output: Tensor | tuple[Tensor, ...]) -> None:
        heard[name] = output[0] if isinstance(output, tuple) else output

    holds = [
        tower.get_submodule(name).register_forward_hook(
            lambda module, given, output, name=name: hear(name, output)
        )
        for name in names
    ]
    try:
        yield heard
    finally:
        for hold in holds:
            hold.remove()


def _prefix(trunk: Tower) -> int:
    """Tokens ahead of the patches'."""
    if isinstance(trunk, open_clip.transformer.VisionTransformer):
        return 1
    return getattr(trunk, "num_prefix_tokens", 0)


def _some(known: dict[str, nn.Module]) -> str:
    """The blocks and stages among a tower's modules."""
    names = [
        name for name in known if name and name.split(".")[-1].isdigit() and name.count(".") <= 2
    ]
    top = [name for name in known if name and "." not in name]
    return f"it has {', '.join((names or top)[:40])}"
