"""Open any model by one word: a run folder, several models side by side, a library's model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.ensemble import ENSEMBLE_FILE, EnsembleConfig, MemberConfig
from guie.config.layers import LayersConfig
from guie.config.model import BackboneConfig, ImageConfig, ModelConfig
from guie.model.adapters import merge_lora
from guie.model.backbone import build_backbone
from guie.model.composition import AnyPreprocess, Ensemble, EnsemblePreprocess
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.frozen_weights import read_frozen, read_tensors
from guie.model.scored import Scored
from guie.model.weights_file import WeightsMetadata, read_metadata

LIBRARIES = ("open_clip", "timm")
RUN_FILE = "config.yaml"
BEST = "model.safetensors"  # by validation


@dataclass(frozen=True)
class LoadedModel:
    """A model of one or more members, as embedding, validation and export need it.

    Attributes: `embedder`, the member's or, of several, the `Ensemble` that puts their embeddings
    side by side; `preprocess`, to what `embedder` takes; `members`, what each is built from and was
    trained by; `source`, the word by which it was opened.
    """

    embedder: Embedder | Ensemble
    preprocess: AnyPreprocess
    members: tuple[MemberConfig, ...]
    source: str

    @property
    def scored(self) -> Scored:
        """Preprocessing and embedder as one module, from the image to its embedding."""
        return Scored(self.preprocess, self.embedder)

    @property
    def config(self) -> ModelConfig | EnsembleConfig:
        """What the embedder is built from: the config of the one member, or of several."""
        if len(self.members) == 1:
            return self.members[0].model
        reduction = self.embedder.reduction
        reduced_dim = reduction.dim if reduction else None
        return EnsembleConfig(members=list(self.members), reduced_dim=reduced_dim)

    def self_contained(self) -> tuple[MemberConfig, ...]:
        """The members with the mean and std of their pixels, which else the weights' tag tells."""
        several = isinstance(self.embedder, Ensemble)
        modules = self.embedder.members if several else [self.embedder]
        embedders = cast("Iterable[Embedder]", modules)  # a ModuleList says not of what
        members = []
        for member, embedder in zip(self.members, embedders, strict=True):
            image, backbone = member.model.image, embedder.backbone
            pixels = {"mean": image.mean or backbone.mean, "std": image.std or backbone.std}
            model = member.model.model_copy(update={"image": image.model_copy(update=pixels)})
            members.append(member.model_copy(update={"model": model}))
        return tuple(members)


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


def open_model(
    source: str | Path, size_px: int | None = None, fit: str = "squash", weights: str = BEST
) -> LoadedModel:
    """Open `runs/demo`, `open_clip:ViT-H-14:laion2b_s32b_b79k` or `timm:resnet50:a1_in1k`.

    A folder holds one model, as train.py leaves it, or several side by side. Of a library's model,
    which has no head, the part after the second colon is a hub tag or a weights file; without it
    the weights are random.

    Args:
        size_px, fit: of a library's model; a folder states its own.
        weights: the file to read in a folder.

    Raises:
        UserError: there is no such model, or it lacks a file.
    """
    source = str(source)
    library, _, name = source.partition(":")
    if library in LIBRARIES:
        return _open_library(source, library, name, size_px, fit)
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(
            f"{source}: no such run folder; a library's model is written open_clip:NAME:TAG or"
            " timm:NAME:TAG"
        )
    several = (folder / ENSEMBLE_FILE).is_file()
    if not several and not (folder / RUN_FILE).is_file():
        raise UserError(f"{folder}: not a run folder (no {RUN_FILE})")
    if not (folder / weights).is_file():
        raise UserError(f"{folder}: no {weights}; has the training reached its first validation?")
    return _open_ensemble(folder, weights) if several else _open_run(folder, weights)


def with_layers(model: LoadedModel, layers: LayersConfig) -> LoadedModel:
    """The features of the tower's own layers in place of the embedding: what each layer is worth.

    Raises UserError where the model has several members, or not these layers.
    """
    if len(model.members) > 1:
        raise UserError(f"{model.source}: --layers is of one model, and this has several members")
    (member,), embedder = model.members, cast(Embedder, model.embedder)
    embedder.backbone.take_layers(layers)
    changed = member.model.model_copy(update={"layers": layers, "head": None})
    members = (member.model_copy(update={"model": changed}),)
    return replace(model, embedder=Embedder(embedder.backbone, None).eval(), members=members)


def open_beside(first: LoadedModel, folder: str | Path, weights: str = BEST) -> LoadedModel:
    """Open another run on the same frozen weights, which stay once in memory: to switch by domain.

    Args:
        first: a run, opened; one whose adapters are LoRA has other weights of its own by now.

    Raises UserError as `open_model`, and where the two do not share what is frozen.
    """
    folder = Path(folder)
    metadata = _metadata(folder / weights)
    (member,) = first.members
    known = read_metadata(Path(first.source) / weights) if member.run else None
    run = member.run
    merged = run and any(adapter.kind == "lora" for adapter in run.model.adapters)
    if not metadata.frozen or not known or known.frozen != metadata.frozen or merged:
        raise UserError(
            f"{folder}: has not the frozen weights of {first.source}; open it by itself"
        )
    own, shared = read_tensors(folder / weights), first.embedder.state_dict()
    tower = {name: value for name, value in shared.items() if name.startswith("backbone.tower.")}
    return rebuild([_member(folder, metadata)], tower | own, str(folder), share=True)


def _open_run(folder: Path, weights: str) -> LoadedModel:
    metadata = _metadata(folder / weights)
    state = read_tensors(folder / weights) | read_frozen(folder, metadata.frozen)
    return rebuild([_member(folder, metadata)], state, str(folder))


def _member(folder: Path, metadata: WeightsMetadata) -> MemberConfig:
    run = load_config(folder / RUN_FILE, RunConfig)
    return MemberConfig(source=str(folder), model=metadata.size.set_in(run.model), run=run)


def _metadata(file: Path) -> WeightsMetadata:
    metadata = read_metadata(file)
    if metadata is None:
        raise UserError(f"{file}: states no image size; train.py did not write it")
    return metadata


def _open_ensemble(folder: Path, weights: str) -> LoadedModel:
    config = load_config(folder / ENSEMBLE_FILE, EnsembleConfig)
    return rebuild(config.members, read_tensors(folder / weights), str(folder), config.reduced_dim)


def _open_library(
    source: str, library: str, name: str, size_px: int | None, fit: str
) -> LoadedModel:
    name, _, pretrained = name.partition(":")
    chosen = {"library": library, "name": name, "pretrained": pretrained or None}
    config = BackboneConfig.model_validate(chosen)
    backbone = build_backbone(config, size_px)
    image = ImageConfig.model_validate({"size_px": backbone.size_px, "fit": fit})
    model = ModelConfig(backbone=config, image=image, head=None)
    preprocess = build_preprocess(model, backbone, backbone.size_px)
    member = MemberConfig(source=source, model=model)
    return LoadedModel(Embedder(backbone, None).eval(), preprocess, (member,), source)


def rebuild(
    members: Sequence[MemberConfig],
    state: Mapping[str, Tensor],
    source: str,
    reduced_dim: int | None = None,
    share: bool = False,
) -> LoadedModel:
    """A trained model from its members' configs and its weights; branches of heads are folded.

    Args:
        members: one or more, each for images of the size that its weights are for.
        state: weights of the member or, of several, those of their `Ensemble`.
        source: the model's name in messages and records.
        reduced_dim: to which the embeddings of several are reduced together; None: not reduced.
        share: the state's tensors become the model's, and are not copied.
    """
    models = [member.model for member in members]
    with NoRandomNumbers():
        embedders = [build_embedder(model, weights=False) for model in models]
    preprocesses = [
        build_preprocess(model, embedder.backbone, model.image.size_px)
        for model, embedder in zip(models, embedders, strict=True)
    ]
    embedder: Embedder | Ensemble = embedders[0]
    preprocess: AnyPreprocess = preprocesses[0]
    if len(members) > 1:
        preprocess = EnsemblePreprocess(preprocesses)
        embedder = Ensemble(embedders, preprocess, reduced_dim)
    embedder.load_state_dict(state, assign=share)
    folded = tuple(map(_folded, members, embedders))
    return LoadedModel(embedder.eval(), preprocess, folded, source)


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


def side_by_side(models: Sequence[LoadedModel]) -> LoadedModel:
    """One model of several. Raises UserError where one has several members itself."""
    members: list[MemberConfig] = []
    state: dict[str, Tensor] = {}
    for number, model in enumerate(models):
        if len(model.members) > 1:
            raise UserError(f"{model.source}: stands for several models; name its members instead")
        members += model.self_contained()
        own = model.embedder.state_dict()
        state |= {f"members.{number}.{name}": value for name, value in own.items()}
    return rebuild(members, state, ", ".join(model.source for model in models))
