"""Open any model by its name: a run folder, an ensemble, a timm or open_clip model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from guie.base.errors import UserError, why_unreadable
from guie.config import RunConfig, load_config
from guie.config.ensemble import COMPOSITION_FILE, CompositionConfig, MemberConfig, leaves
from guie.config.model import BackboneConfig, ImageConfig, LayersConfig, ModelConfig
from guie.data.dataset import image_shapes
from guie.data.preprocess import AnyPreprocess, Inputs, Preprocess, ViewSpec
from guie.models.adapters.attaching import merge_lora
from guie.models.backbones import build_backbone
from guie.models.backbones.base import BACKBONES
from guie.models.embedder import Embedder, build_embedder, build_preprocess
from guie.models.ensemble import Ensemble
from guie.models.weights import ImageSize, read_frozen, read_metadata, read_tensors

RUN_FILE = "config.yaml"
BEST = "model.safetensors"  # by validation

AnyPart = MemberConfig | CompositionConfig


class ExportModule(nn.Module):
    """Map uint8 images (B, 3, H, W) of any size to (B, D); the same module eager and in TorchScript."""

    def __init__(self, preprocess: AnyPreprocess, embedder: nn.Module):
        super().__init__()
        self.preprocess = preprocess
        self.embedder = embedder

    def forward(self, images: Tensor) -> Tensor:
        # The preprocessing returns its result on its own device, which is also the embedder's.
        prepared = self.preprocess(images)
        return self.embedder(prepared, image_shapes(images).to(prepared.device))


@dataclass(frozen=True)
class LoadedModel:
    """A model of one or more members, ready for embedding, validation and export.

    Attributes: `preprocess` returns the inputs of `embedder`; `part`, the configs of model and training;
    `source`, the name it was opened by.
    """

    embedder: Embedder | Ensemble
    preprocess: AnyPreprocess
    part: AnyPart
    source: str

    @property
    def scored(self) -> ExportModule:
        """Preprocessing and embedder as one module, from image to embedding."""
        return ExportModule(self.preprocess, self.embedder)

    @property
    def config(self) -> ModelConfig | CompositionConfig:
        """The config of the embedder: of the single model, or of the ensemble."""
        return self.part.model if isinstance(self.part, MemberConfig) else self.part

    @property
    def members(self) -> tuple[MemberConfig, ...]:
        """Its models, in order."""
        return tuple(leaves(self.part))

    def alone(self, remedy: str) -> tuple[MemberConfig, Embedder]:
        """Return the single model. Raises UserError, with a remedy, for an ensemble."""
        if isinstance(self.part, CompositionConfig) or isinstance(self.embedder, Ensemble):
            raise UserError(f"{self.source}: combines several models or views; {remedy}")
        return self.part, self.embedder

    def self_contained(self) -> AnyPart:
        """Return `part` with the mean and std of pixels, which otherwise the weights' tag defines."""
        return _with_each(self.part, self.embedder, _with_pixels)


def open_model(
    source: str | Path, size_px: int | None = None, fit: str = "squash", weights: str = BEST
) -> LoadedModel:
    """Open `runs/demo`, `open_clip:ViT-H-14:laion2b_s32b_b79k` or `timm:resnet50:a1_in1k`.

    A folder holds one model from train.py, or an ensemble from compose.py. A library's model has no head.
    The part after its second colon is a hub tag or a weights file; without it the weights are random.

    Args:
        size_px, fit: for a library's model; a folder states its own.
        weights: the file to read in a folder.

    Raises UserError if there is no such model, or it lacks a file.
    """
    source = str(source)
    library, _, name = source.partition(":")
    if library in BACKBONES:
        name, _, pretrained = name.partition(":")
        chosen = BackboneConfig(library=library, name=name, pretrained=pretrained or None)
        backbone = build_backbone(chosen, size_px)
        image = ImageConfig.model_validate({"size_px": backbone.size_px, "fit": fit})
        model = ModelConfig(backbone=chosen, image=image, head=None)
        preprocess = build_preprocess(model, backbone, backbone.size_px)
        member = MemberConfig(source=source, model=model)
        return LoadedModel(Embedder(backbone, None).eval(), preprocess, member, source)
    refuse_no_model(source, weights)
    folder = Path(source)
    if (composed := folder / COMPOSITION_FILE).is_file():
        parts = load_config(composed, CompositionConfig)
        return rebuild(parts, read_tensors(folder / weights), str(folder), share=True)
    metadata = read_metadata(folder / weights)
    if metadata is None:
        raise UserError(
            f"{folder / weights}: states no image size, so train.py did not write it; name another file"
        )
    config = load_config(folder / RUN_FILE, RunConfig)
    member = MemberConfig(source=str(folder), model=metadata.set_in(config.model), run=config)
    state = read_tensors(folder / weights) | read_frozen(folder, metadata.frozen)
    return rebuild(member, state, str(folder))


def refuse_no_model(source: str, weights: str | None = BEST) -> None:
    """Raise UserError unless `source` is a run folder with this file of weights, or a library's model."""
    if source.partition(":")[0] in BACKBONES:
        return
    folder = Path(source)
    if why := why_unreadable(folder, "run folder"):
        raise UserError(f"{why}; write a library's model as open_clip:NAME:TAG or timm:NAME:TAG")
    if not any((folder / name).is_file() for name in (COMPOSITION_FILE, RUN_FILE)):
        raise UserError(f"{folder}: not a run folder (no {RUN_FILE})")
    if weights and (why := why_unreadable(folder / weights)):
        raise UserError(f"{why}; has the training reached its first validation?")


def trained_precision(source: str | Path) -> str | None:
    """Return the precision that a folder's runs were trained in; None for a library's model.

    Runs of different precision, in an ensemble, give `no`.
    """
    folder = Path(source)
    if (composed := folder / COMPOSITION_FILE).is_file():
        parts = leaves(load_config(composed, CompositionConfig))
        found = {part.run.precision for part in parts if part.run}
        return found.pop() if len(found) == 1 else "no"
    run = folder / RUN_FILE
    return load_config(run, RunConfig).precision if run.is_file() else None


def rebuild(
    part: AnyPart, state: Mapping[str, Tensor], source: str, share: bool = False
) -> LoadedModel:
    """Build a trained model from its config and weights; branches of heads are folded.

    The part has the image size that the weights were trained for. `share` uses the state's tensors
    themselves. Raises UserError if members do not fit together.
    """
    with NoRandomNumbers():
        embedder, looks = _build(part)
    embedder.load_state_dict(state, assign=share)
    part = _with_each(part, embedder, _folded)
    single = isinstance(part, MemberConfig)
    preprocess = cast(Preprocess, looks[0].build()) if single else Inputs(looks)
    return LoadedModel(embedder.eval(), preprocess, part, source)


class NoRandomNumbers(TorchFunctionMode):
    """Skip random initialisation, for models whose weights are loaded next.

    Other values are still computed while the library builds: no file holds them (position grids).
    """

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_):
            return args[0] if args else kwargs["tensor"]
        if function in (Tensor.uniform_, Tensor.normal_):
            return args[0].zero_()  # trunc_normal_ would redraw what is out of its bounds for ever
        return function(*args, **kwargs)


def _build(part: AnyPart) -> tuple[Embedder | Ensemble, Sequence[ViewSpec]]:
    """Return the module without its weights, and its view specs; a single model has one."""
    if isinstance(part, CompositionConfig):
        members, looks = zip(*(_build(member) for member in part.members), strict=True)
        ensemble = Ensemble(part, members, looks)
        return ensemble, ensemble.looks
    embedder = build_embedder(part.model, weights=False)
    image, backbone = part.model.image, embedder.backbone
    mean, std = (tuple(given) for given in (image.mean or backbone.mean, image.std or backbone.std))
    return embedder, [ViewSpec(image.size_px, mean, std, image.fit, pad_color=image.pad_color)]


def _folded(member: MemberConfig, embedder: Embedder) -> MemberConfig:
    """Remove what only training needs: fold the head's branches, and merge LoRA into the weights."""
    head = member.model.head
    if embedder.head and head and head.branches:
        embedder.head.fold()
        head = head.model_copy(update={"branches": None})
    merge_lora(embedder.backbone)
    adapters = [adapter for adapter in member.model.adapters if adapter.kind != "lora"]
    return _changed(member, head=head, adapters=adapters)


def composed(
    models: Sequence[LoadedModel], fitted: Mapping[str, Tensor] | None = None, **how: Any
) -> LoadedModel:
    """Combine one or more models into an ensemble; weights are shared, not copied.

    Args:
        fitted: the ensemble's own weights, by name: of a reduction, of a domain classifier.
        how: keys of `CompositionConfig` other than `members`.

    Raises UserError if the models do not fit together.
    """
    members = [model.self_contained() for model in models]
    config = CompositionConfig.model_validate({"members": members, **how})
    state = dict(fitted or {})
    for number, model in enumerate(models):
        own = model.embedder.state_dict()
        state |= {f"members.{number}.{name}": value for name, value in own.items()}
    # Equal tensors are shared: a run at two sizes has most of its weights twice
    known: dict[tuple[Any, ...], list[Tensor]] = {}
    for name, value in state.items():
        alike = known.setdefault((value.shape, value.dtype, *value.flatten()[:4].tolist()), [])
        state[name] = next((own for own in alike if torch.equal(own, value)), value)
        if state[name] is value:
            alike.append(value)
    return rebuild(config, state, ", ".join(model.source for model in models), share=True)


def narrowed(model: LoadedModel, dim: int) -> LoadedModel:
    """Keep the first numbers of a model's embedding, by fewer rows of its last Linear.

    Raises UserError for an ensemble, a model without a head of more numbers, and one whose numbers have no
    such order: with a head of several parts, or a reduction.
    """
    part, embedder = model.alone("reduce it by compose.py")
    head = part.model.head
    if head is None or head.dim <= dim:
        most = f"has {head.dim} numbers" if head else "has no head"
        raise UserError(f"{model.source}: cannot keep {dim} numbers, for it {most}; give fewer")
    if head.parts > 1 or head.reduced_dim:
        kind = "several parts" if head.parts > 1 else "a reduction"
        raise UserError(f"{model.source}: its head has {kind}; reduce it by compose.py")
    state = embedder.state_dict()
    for name in {"head.linear.weight", "head.linear.bias"} & state.keys():
        state[name] = state[name][:dim].clone()
    narrow = _changed(part, head=head.model_copy(update={"dim": dim}))
    return rebuild(narrow, state, model.source, share=True)


def with_layers(model: LoadedModel, layers: LayersConfig) -> LoadedModel:
    """Return a model of the backbone's intermediate features; it no longer refers to a training run.

    Raises UserError if the model is an ensemble, or lacks these layers.
    """
    member, embedder = model.alone("take layers of each of them")
    embedder.backbone.take_layers(layers)
    part = _changed(member, layers=layers, head=None).model_copy(update={"run": None})
    return replace(model, embedder=Embedder(embedder.backbone, None).eval(), part=part)


def at_size(
    model: LoadedModel, size_px: int | None = None, stride_px: int | None = None
) -> LoadedModel:
    """Change the model, in place, to another image size; position embeddings are interpolated.

    Raises UserError for an ensemble, or if the patches do not fit.
    """
    member, embedder = model.alone("state the size of each of its members")
    own = member.model
    size = ImageSize(size_px or own.image.size_px, stride_px or own.backbone.stride_px)
    embedder.backbone.set_image_size(size.size_px, size.stride_px)
    changed = size.set_in(own)
    preprocess = build_preprocess(changed, embedder.backbone, size.size_px)
    part = member.model_copy(update={"model": changed})
    return replace(model, preprocess=preprocess, part=part)


def _with_pixels(member: MemberConfig, embedder: Embedder) -> MemberConfig:
    image, backbone = member.model.image, embedder.backbone
    pixels = {"mean": image.mean or backbone.mean, "std": image.std or backbone.std}
    return _changed(member, image=image.model_copy(update=pixels))


def _with_each(
    part: AnyPart, module: nn.Module, change: Callable[[MemberConfig, Embedder], MemberConfig]
) -> AnyPart:
    """Return the same tree with each model replaced by `change` of it and its module."""
    if isinstance(part, MemberConfig):
        return change(part, cast(Embedder, module))
    pairs = zip(part.members, cast(Ensemble, module).members, strict=True)
    own = [_with_each(member, below, change) for member, below in pairs]
    return part.model_copy(update={"members": own})


def _changed(member: MemberConfig, **keys: Any) -> MemberConfig:
    """Return the member with other keys of its model."""
    return member.model_copy(update={"model": member.model.model_copy(update=keys)})
