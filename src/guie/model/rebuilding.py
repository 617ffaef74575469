"""From a config and weights to a model: of one member, or a composition of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from guie.base.errors import UserError
from guie.config.composition import CompositionConfig, MemberConfig, leaves
from guie.config.model import ModelConfig
from guie.model.adapters import merge_lora
from guie.model.composition import Composition
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.looks import AnyPreprocess, Inputs, Look
from guie.model.preprocess import Preprocess
from guie.model.scored import Scored

AnyPart = MemberConfig | CompositionConfig


@dataclass(frozen=True)
class LoadedModel:
    """A model of one or more members, as embedding, validation and export need it.

    Attributes: `embedder`, the one model's or a `Composition`; `preprocess`, to what `embedder`
    takes; `part`, what it is built from and was trained by; `source`, the word by which it was opened.
    """

    embedder: Embedder | Composition
    preprocess: AnyPreprocess
    part: AnyPart
    source: str

    @property
    def scored(self) -> Scored:
        """Preprocessing and embedder as one module, from the image to its embedding."""
        return Scored(self.preprocess, self.embedder)

    @property
    def config(self) -> ModelConfig | CompositionConfig:
        """What the embedder is built from: the config of the one model, or of the composition."""
        return self.part.model if isinstance(self.part, MemberConfig) else self.part

    @property
    def members(self) -> tuple[MemberConfig, ...]:
        """The models of it, in order."""
        return tuple(leaves(self.part))

    def alone(self, remedy: str) -> tuple[MemberConfig, Embedder]:
        """The one model that it is. Raises UserError with a remedy where it is a composition."""
        if isinstance(self.part, CompositionConfig) or isinstance(self.embedder, Composition):
            raise UserError(f"{self.source}: stands for several models or views; {remedy}")
        return self.part, self.embedder

    def self_contained(self) -> AnyPart:
        """`part` with the mean and std of pixels, which else the weights' tag tells."""
        return _with_each(self.part, self.embedder, _with_pixels)


class NoRandomNumbers(TorchFunctionMode):
    """Leaves out the random numbers of an initialisation that weights are loaded over.

    Not the rest: what no file holds, as position grids, a library computes while it builds.
    """

    DRAWING = {
        *(Tensor.uniform_, Tensor.normal_),
        *(nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_),
    }

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in self.DRAWING:
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def rebuild(
    part: AnyPart, state: Mapping[str, Tensor], source: str, share: bool = False
) -> LoadedModel:
    """A trained model from its config and its weights; branches of heads are folded.

    Args:
        part: a model, or a composition of such, each for images of the size that its weights are for.
        state: its weights.
        source: the model's name in messages and records.
        share: the state's tensors become the model's, and are not copied.

    Raises UserError where members do not fit together.
    """
    with NoRandomNumbers():
        embedder, looks, preprocess = _built(part)
    embedder.load_state_dict(state, assign=share)
    folded = _with_each(part, embedder, _folded)
    return LoadedModel(embedder.eval(), preprocess or Inputs(looks), folded, source)


def composed(
    models: Sequence[LoadedModel], fitted: Mapping[str, Tensor] | None = None, **how: Any
) -> LoadedModel:
    """One model of several, or of one: their weights are shared and not copied.

    Args:
        fitted: weights of the composition's own, by name: of a reduction, of a classifier of domains.
        how: keys of `CompositionConfig` besides `members`.

    Raises UserError where the models do not fit together.
    """
    members = [model.self_contained() for model in models]
    config = CompositionConfig.model_validate({"members": members, **how})
    state = dict(fitted or {})
    for number, model in enumerate(models):
        own = model.embedder.state_dict()
        state |= {f"members.{number}.{name}": value for name, value in own.items()}
    source = ", ".join(model.source for model in models)
    return rebuild(config, _equal_as_one(state), source, share=True)


def _equal_as_one(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights, equal ones as one tensor: a run at two sizes has most of its own twice."""
    known: dict[tuple[Any, ...], list[Tensor]] = {}
    shared = {}
    for name, value in state.items():
        key = (value.shape, value.dtype, *value.flatten()[:4].tolist())
        alike = known.setdefault(key, [])
        shared[name] = next((own for own in alike if torch.equal(own, value)), value)
        if shared[name] is value:
            alike.append(value)
    return shared


def _built(
    part: AnyPart,
) -> tuple[Embedder | Composition, Sequence[Look], Preprocess | None]:
    """The module, not yet of its weights; what it sees; and the preprocessing of a model by itself."""
    if isinstance(part, CompositionConfig):
        built = [_built(member) for member in part.members]
        composition = Composition(part, [one[0] for one in built], [one[1] for one in built])
        return composition, composition.looks, None
    embedder = build_embedder(part.model, weights=False)
    image, backbone = part.model.image, embedder.backbone
    mean, std = (tuple(given) for given in (image.mean or backbone.mean, image.std or backbone.std))
    look = Look(image.size_px, mean, std, image.fit)
    return embedder, [look], build_preprocess(part.model, backbone, image.size_px)


def _with_each(
    part: AnyPart, module: nn.Module, change: Callable[[MemberConfig, Embedder], MemberConfig]
) -> AnyPart:
    """The same tree, `change` of each model and its module in place of the model."""
    if isinstance(part, MemberConfig):
        return change(part, cast(Embedder, module))
    pairs = zip(part.members, cast(Composition, module).members, strict=True)
    own = [_with_each(member, below, change) for member, below in pairs]
    return part.model_copy(update={"members": own})


def _with_pixels(member: MemberConfig, embedder: Embedder) -> MemberConfig:
    image, backbone = member.model.image, embedder.backbone
    pixels = {"mean": image.mean or backbone.mean, "std": image.std or backbone.std}
    model = member.model.model_copy(update={"image": image.model_copy(update=pixels)})
    return member.model_copy(update={"model": model})


def _folded(member: MemberConfig, embedder: Embedder) -> MemberConfig:
    """The member without what training alone has use for: branches of its head, LoRA beside weights."""
    model, head = member.model, member.model.head
    if embedder.head and head and head.branches:
        embedder.head.fold()
        head = head.model_copy(update={"branches": None})
    merge_lora(embedder.backbone)
    adapters = [adapter for adapter in model.adapters if adapter.kind != "lora"]
    model = model.model_copy(update={"head": head, "adapters": adapters})
    return member.model_copy(update={"model": model})
