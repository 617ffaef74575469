"""Open any model by one word: a run folder, a composition, a library's model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.composition import FILES, CompositionConfig, MemberConfig
from guie.config.layers import LayersConfig
from guie.config.model import BackboneConfig, ImageConfig, ModelConfig
from guie.model.backbone import build_backbone
from guie.model.embedder import Embedder, build_preprocess
from guie.model.frozen_weights import read_frozen, read_tensors
from guie.model.rebuilding import LoadedModel, rebuild
from guie.model.weights_file import ImageSize, WeightsMetadata, read_metadata

LIBRARIES = ("open_clip", "timm")
RUN_FILE = "config.yaml"
BEST = "model.safetensors"  # by validation


def open_model(
    source: str | Path, size_px: int | None = None, fit: str = "squash", weights: str = BEST
) -> LoadedModel:
    """Open `runs/demo`, `open_clip:ViT-H-14:laion2b_s32b_b79k` or `timm:resnet50:a1_in1k`.

    A folder holds one model, as train.py leaves it, or what compose.py made of several. Of a library's model,
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
    composed = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if not composed and not (folder / RUN_FILE).is_file():
        raise UserError(f"{folder}: not a run folder (no {RUN_FILE})")
    if not (folder / weights).is_file():
        raise UserError(f"{folder}: no {weights}; has the training reached its first validation?")
    return _open_composition(composed, weights) if composed else _open_run(folder, weights)


def with_layers(model: LoadedModel, layers: LayersConfig) -> LoadedModel:
    """The features of the tower's own layers in place of the embedding; it is no longer what a run trained.

    Raises UserError where the model is a composition, or has not these layers.
    """
    member, embedder = model.alone("take layers of each of them")
    embedder.backbone.take_layers(layers)
    changed = member.model.model_copy(update={"layers": layers, "head": None})
    part = member.model_copy(update={"model": changed, "run": None})
    return replace(model, embedder=Embedder(embedder.backbone, None).eval(), part=part)


def at_size(
    model: LoadedModel, size_px: int | None = None, stride_px: int | None = None
) -> LoadedModel:
    """The model for images of another size, its position embeddings interpolated; it is changed.

    Raises UserError for a composition, or where the patches do not fit.
    """
    member, embedder = model.alone("state the size of each of its members")
    own = member.model
    size = ImageSize(size_px or own.image.size_px, stride_px or own.backbone.stride_px)
    embedder.backbone.set_image_size(size.size_px, size.stride_px)
    changed = size.set_in(own)
    preprocess = build_preprocess(changed, embedder.backbone, size.size_px)
    part = member.model_copy(update={"model": changed})
    return replace(model, preprocess=preprocess, part=part)


def open_beside(first: LoadedModel, folder: str | Path, weights: str = BEST) -> LoadedModel:
    """Open another run on the same frozen weights, which stay once in memory: to switch by domain.

    Args:
        first: a run, opened; one whose adapters are LoRA has other weights of its own by now.

    Raises UserError as `open_model`, and where the two do not share what is frozen.
    """
    folder = Path(folder)
    metadata = _metadata(folder / weights)
    member, _ = first.alone("open its members by themselves")
    known = read_metadata(Path(first.source) / weights) if member.run else None
    run = member.run
    merged = run and any(adapter.kind == "lora" for adapter in run.model.adapters)
    if not metadata.frozen or not known or known.frozen != metadata.frozen or merged:
        raise UserError(
            f"{folder}: has not the frozen weights of {first.source}; open it by itself"
        )
    own, shared = read_tensors(folder / weights), first.embedder.state_dict()
    tower = {name: value for name, value in shared.items() if name.startswith("backbone.tower.")}
    return rebuild(_member(folder, metadata), tower | own, str(folder), share=True)


def _open_run(folder: Path, weights: str) -> LoadedModel:
    metadata = _metadata(folder / weights)
    state = read_tensors(folder / weights) | read_frozen(folder, metadata.frozen)
    return rebuild(_member(folder, metadata), state, str(folder))


def _member(folder: Path, metadata: WeightsMetadata) -> MemberConfig:
    run = load_config(folder / RUN_FILE, RunConfig)
    return MemberConfig(source=str(folder), model=metadata.size.set_in(run.model), run=run)


def _metadata(file: Path) -> WeightsMetadata:
    metadata = read_metadata(file)
    if metadata is None:
        raise UserError(f"{file}: states no image size; train.py did not write it")
    return metadata


def _open_composition(file: Path, weights: str) -> LoadedModel:
    config, folder = load_config(file, CompositionConfig), file.parent
    return rebuild(config, read_tensors(folder / weights), str(folder), share=True)


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
    return LoadedModel(Embedder(backbone, None).eval(), preprocess, member, source)
