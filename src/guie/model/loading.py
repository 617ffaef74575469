"""Models from and to their folders: those of a trained run, or of several side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.config import RunConfig, load_config
from guie.config.ensemble import ENSEMBLE_FILE, EnsembleConfig, MemberConfig
from guie.config.model import ModelConfig
from guie.model.composition import Ensemble, EnsemblePreprocess
from guie.model.embedder import Embedder, build_embedder, build_preprocess
from guie.model.frozen_weights import frozen_names, keep_frozen, read_frozen, read_tensors
from guie.model.preprocess import Preprocess
from guie.model.scored import Scored


@dataclass(frozen=True)
class LoadedModel:
    """What embedding, validation and export need of a model."""

    embedder: Embedder | Ensemble
    preprocess: Preprocess | EnsemblePreprocess
    config: ModelConfig | EnsembleConfig
    source: str

    @property
    def scored(self) -> Scored:
        """Both as one module, from the image to its embedding."""
        return Scored(self.preprocess, self.embedder)


@dataclass(frozen=True)
class Stored:
    """What a file of weights says of itself.

    Attributes: `stride_px`, None where patches lie side by side; `frozen`, the file beside it with the
    weights that did not train.
    """

    size_px: int
    stride_px: int | None = None
    frozen: str | None = None


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


def load_model(folder: str | Path, weights: str = "model.safetensors") -> LoadedModel:
    """Load a run or an ensemble: the best weights, or those of another file there.

    Raises UserError if the folder is neither.
    """
    folder = Path(folder)
    ensemble, run = folder / ENSEMBLE_FILE, folder / "config.yaml"
    if not ensemble.is_file() and not run.is_file():
        raise UserError(f"{folder}: not a run folder (no config.yaml)")
    if not (folder / weights).is_file():
        raise UserError(f"{folder}: no {weights}; has the training reached its first validation?")
    state = read_tensors(folder / weights)
    if ensemble.is_file():
        config = load_config(ensemble, EnsembleConfig)
        return rebuild_ensemble(config, state, str(folder))
    stored = read_stored(folder / weights)
    if stored is None:
        raise UserError(f"{folder / weights}: states no image size; train.py did not write it")
    state |= read_frozen(folder, stored.frozen)
    model = load_config(run, RunConfig).model
    return rebuild(model, state, stored.size_px, stored.stride_px, str(folder))


def rebuild(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    size_px: int,
    stride_px: int | None,
    source: str,
) -> LoadedModel:
    """A trained model from its config and weights, to be scored: branches of the head are folded.

    Args:
        state: the embedder's weights.
        size_px, stride_px: what they were trained at last; their stage may differ from `config`.
    """
    at = {
        "image": config.image.model_copy(update={"size_px": size_px}),
        "backbone": config.backbone.model_copy(update={"stride_px": stride_px}),
    }
    config = config.model_copy(update=at)
    with NoRandomNumbers():
        embedder = build_embedder(config, weights=False)
    embedder.load_state_dict(state)
    if config.head and config.head.branches:
        embedder.head.fold()
        plain = config.head.model_copy(update={"branches": None})
        config = config.model_copy(update={"head": plain})
    preprocess = build_preprocess(config, embedder.backbone, size_px)
    return LoadedModel(embedder.eval(), preprocess, config, source)


def rebuild_ensemble(
    config: EnsembleConfig, state: Mapping[str, Tensor], source: str
) -> LoadedModel:
    """Several models from what states them whole (`self_contained`), and their weights."""
    models = [member.model for member in config.members]
    with NoRandomNumbers():
        embedders = [build_embedder(model, weights=False) for model in models]
    preprocess = EnsemblePreprocess(
        build_preprocess(model, embedder.backbone, model.image.size_px)
        for model, embedder in zip(models, embedders, strict=True)
    )
    ensemble = Ensemble(embedders, preprocess, config.reduced_dim)
    ensemble.load_state_dict(state)
    return LoadedModel(ensemble.eval(), preprocess, config, source)


def side_by_side(models: Sequence[LoadedModel]) -> LoadedModel:
    """An ensemble of models. Raises UserError where one is an ensemble itself."""
    members, state = [], {}
    for number, model in enumerate(models):
        if isinstance(model.config, EnsembleConfig):
            raise UserError(f"{model.source}: stands for several models; name its members instead")
        file = Path(model.source) / "config.yaml"
        run = load_config(file, RunConfig) if file.is_file() else None
        members.append(MemberConfig(source=model.source, model=self_contained(model), run=run))
        own = model.embedder.state_dict()
        state |= {f"members.{number}.{name}": value for name, value in own.items()}
    source = ", ".join(model.source for model in models)
    return rebuild_ensemble(EnsembleConfig(members=members), state, source)


def self_contained(model: LoadedModel) -> ModelConfig:
    """The config of one model, from which it is built again where its tag is not known."""
    image, backbone = model.config.image, model.embedder.backbone
    known = {"mean": image.mean or backbone.mean, "std": image.std or backbone.std}
    return model.config.model_copy(update={"image": image.model_copy(update=known)})


def save_model(embedder: Embedder, path: Path, size_px: int | None = None) -> None:
    """Write the weights, and the image size and stride they are for, atomically.

    What does not train lies in a file beside it (see `guie.model.frozen_weights`).

    Args:
        size_px: None: the backbone's.
    """
    backbone, state = embedder.backbone, embedder.state_dict()
    frozen = {name: state.pop(name) for name in frozen_names(embedder)}
    stored = Stored(
        size_px=size_px or backbone.size_px,
        stride_px=backbone.stride_px,
        frozen=keep_frozen(path.parent, frozen),
    )
    save_weights(state, path, stored)


def save_weights(state: Mapping[str, Tensor], path: Path, stored: Stored | None = None) -> None:
    """Write weights atomically; `stored` goes beside them."""
    # One entry: several are written in any order, and the same run would not give the same file.
    metadata = {"guie": json.dumps(asdict(stored))} if stored else None
    state = {k: v.detach().cpu().contiguous() for k, v in state.items()}
    with replacing(path) as temporary:
        save_file(state, temporary, metadata=metadata)


def read_stored(path: Path) -> Stored | None:
    """What a file of weights says of itself; None where `save_model` did not write it."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    if "guie" in metadata:
        return Stored(**json.loads(metadata["guie"]))
    size_px, _, stride_px = metadata.get("size_px", "").partition("/")  # written until 2026-11
    return Stored(int(size_px), int(stride_px) if stride_px else None) if size_px else None
