"""Return features of a backbone's intermediate layers, in place of its output.

Vo and Hays, Generalization in Metric Learning: Should the Embedding Layer be Embedding Layer?, WACV
2019: the last trained layer generalises worse than the layers before it. Shapes: B images, C channels of
a layer, P places, F features.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import LayersConfig

LEAST = 1e-6  # gem clamps its inputs to this before it takes the power


class Layers(nn.Module):
    """Pool the outputs of a backbone's named modules. It has no parameters and keeps no backbone.

    Modules after the last of these are removed from the backbone: they are neither computed nor stored.

    Attributes: `dim` (F); `unused_parameters`, names of those without gradient: no feature depends on them.

    Args:
        prefix_tokens, channels_last: as in `Backbone`.
        norm: name of the module that normalises the outputs before they are pooled; None: none does.
        added: parameters that adapters and prompts added to the backbone.

    Raises UserError for a module that does not exist, that no forward pass calls, or whose output cannot
    be pooled this way; and if something was added after the last of them.
    """

    def __init__(
        self,
        tower: nn.Module,
        config: LayersConfig,
        size_px: int,
        prefix_tokens: int,
        channels_last: bool,
        norm: str | None = None,
        added: Iterable[nn.Parameter] = (),
    ):
        super().__init__()
        self.config, self.norm = config, norm
        self.prefix_tokens, self.channels_last = prefix_tokens, channels_last
        known = dict(tower.named_modules())
        for name in config.of:
            if name not in known or not name:
                blocks = [n for n in known if n.split(".")[-1].isdigit() and n.count(".") <= 2]
                some = blocks or [n for n in known if n and "." not in n]
                raise UserError(
                    f"model.layers.of: {type(tower).__name__} has no layer {name!r}; it has"
                    f" {', '.join(some[:40])}"
                )
        self.dim, unused = self._probed(tower, added, size_px)
        for name, module in list(tower.named_modules()):
            own = {f"{name}.{key}" for key, _ in module.named_parameters()}
            # Its parent may be gone already, then so is the module
            if name and own and own <= unused & dict(tower.named_parameters()).keys():
                tower.set_submodule(name, Passthrough())
        self.unused_parameters = unused & dict(tower.named_parameters()).keys()

    def forward(self, tower: nn.Module, images_BCHW: Tensor) -> Tensor:
        """Map images (B, 3, S, S) to features (B, F)."""
        with capture_outputs(tower, self.config.of) as heard:
            tower(images_BCHW)
        for name in self.config.of:
            if name not in heard:
                raise UserError(f"model.layers.of: a forward pass never calls {name}; name another")
        if self.norm:
            norm = tower.get_submodule(self.norm)
            heard = {name: norm(output) for name, output in heard.items()}
        return torch.cat([self.pooled(name, heard[name]) for name in self.config.of], dim=1)

    def pooled(self, name: str, output: Tensor) -> Tensor:
        """Pool a layer's output to (B, C). Raises UserError without feature map or class token."""
        if output.dim() == 2:
            return output
        if self.config.pool == "token":
            if output.dim() != 3 or not self.prefix_tokens:
                raise UserError(
                    f"model.layers.pool: {name} has no class token; use avg, max or gem"
                )
            return output[:, 0]
        if output.dim() == 3:
            places_BPC = output[:, self.prefix_tokens :]
        elif output.dim() == 4:
            last = self.channels_last
            places_BPC = output.flatten(1, 2) if last else output.flatten(2).transpose(1, 2)
        else:
            odd = f"{tuple(output.shape)}, not a feature map"
            raise UserError(f"model.layers.of: {name} returns {odd}; name another")
        if self.config.pool == "max":
            return places_BPC.amax(1)
        if self.config.pool == "avg":
            return places_BPC.mean(1)
        power = self.config.power
        return places_BPC.clamp(min=LEAST).pow(power).mean(1).pow(1 / power)

    def _probed(
        self, tower: nn.Module, added: Iterable[nn.Parameter], size_px: int
    ) -> tuple[int, set[str]]:
        """Return F and the parameters that no feature depends on. Raises UserError if any were added."""
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
                "model.layers.of: adapters or prompts come after the last of these layers; remove them"
            )
        unused = {name for name, grad in zip(names, grads, strict=False) if grad is None}
        return feat_BF.shape[1], unused


class Passthrough(nn.Module):
    """Replace a module: return the first argument, whatever else it gets, as open_clip's blocks a mask."""

    def forward(self, given: Tensor, *more: Any, **named: Any) -> Tensor:
        return given


@contextmanager
def capture_outputs(tower: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Collect the named modules' latest outputs in the dict, within the context.

    The hooks exist for one forward pass only, so a copy of the backbone never reports to the original.
    """
    heard: dict[str, Tensor] = {}

    def hear(name: str, module: nn.Module, given: Any, output: Any) -> None:
        heard[name] = output[0] if isinstance(output, tuple) else output

    holds = [tower.get_submodule(name).register_forward_hook(partial(hear, name)) for name in names]
    try:
        yield heard
    finally:
        for hold in holds:
            hold.remove()
