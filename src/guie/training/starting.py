"""What a run starts from: models and files that must exist, and the weights of `start_from`."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import refuse_missing
from guie.config.distillation import DistillationConfig
from guie.config.losses import CustomConfig
from guie.config.training import RunConfig
from guie.data.preprocess import Preprocess
from guie.losses.custom import custom_class
from guie.models.embedder import Embedder, build_preprocess
from guie.models.opening import at_size, open_model, refuse_no_model

TOWER, REDUCTION = "backbone.tower.", "reduction."
PARTS = (TOWER, "backbone.adapters.", "backbone.prompts.", "head.", REDUCTION)


def refuse_missing_inputs(config: RunConfig, resume: bool) -> None:
    """Raise UserError for a missing model, manifest or loss, or a run that is its own teacher."""
    teachers = config.task.teachers if isinstance(config.task, DistillationConfig) else []
    for number, teacher in enumerate(teachers):
        if Path(teacher.model).resolve() == (Path(config.out) / config.name).resolve():
            itself = f"{teacher.model} is the run itself; name another model"
            raise UserError(f"task.teachers.{number}.model: {itself}")
        refuse_no_model(teacher.model)
    if config.start_from and not resume:  # a checkpoint has its weights
        try:
            refuse_no_model(config.start_from)
        except UserError as error:
            raise UserError(f"start_from: {error}") from None
    if config.retention and config.retention.generic:
        refuse_missing([config.retention.generic.manifest])
    for loss in config.task.losses:
        if isinstance(loss, CustomConfig):
            custom_class(loss)


def load_start(embedder: Embedder, config: RunConfig) -> str:
    """Load the weights of `config.start_from` into a new embedder, in place; return a message.

    Position embeddings are resampled for another image size. Heads, adapters and prompts whose shapes
    differ keep their initial weights. A reduction stays as it was fitted, while head and backbone below
    it train.

    Raises UserError if there is no such model, it is an ensemble, its backbone differs, or it lacks a
    reduction to `reduced_dim`.
    """
    assert config.start_from is not None
    backbone, size_px = config.model.backbone, config.model.image.size_px
    try:
        # The library draws random weights as it builds; keep the run's own random state
        with torch.random.fork_rng(devices=[]):
            given = at_size(open_model(config.start_from), size_px, backbone.stride_px)
    except UserError as error:
        raise UserError(f"start_from: {error}") from None
    state, own = given.embedder.state_dict(), embedder.state_dict()
    known = [part for part in PARTS if _shapes(own, part)]
    taken = [part for part in known if _shapes(own, part) == _shapes(state, part)]
    if TOWER not in taken:
        raise UserError(
            f"start_from: {config.start_from} has another backbone than model.backbone, {backbone.name};"
            " name a run with the same backbone, or remove start_from"
        )
    if REDUCTION in known and REDUCTION not in taken:
        assert config.model.head is not None
        head = config.model.head
        raise UserError(
            f"start_from: {config.start_from} has no reduction from {head.dim} to {head.reduced_dim} numbers;"
            " make one by compose.py, or remove model.head.reduced_dim"
        )
    own |= {name: state[name] for part in taken for name in _shapes(own, part)}
    embedder.load_state_dict(own)
    assert isinstance(given.preprocess, Preprocess)  # of one model
    preprocess = build_preprocess(config.model, embedder.backbone, size_px)
    for key in ("mean", "std"):  # the backbone was trained with its own
        then, now = _levels(given.preprocess, key), _levels(preprocess, key)
        if then != now:
            raise UserError(
                f"model.image.{key}: {now}, but start_from, {config.start_from}, has {then}; set it to that"
            )
    scratch = [part.strip(".").rpartition(".")[2] for part in known if part not in taken]
    return ", ".join([f"starts from {config.start_from}", *(f"{n} from scratch" for n in scratch)])


def _levels(preprocess: Preprocess, key: str) -> list[float]:
    """Return the values of the three channels on a 0..1 scale."""
    return [round(level / 255, 4) for level in getattr(preprocess, key).flatten().tolist()]


def _shapes(state: Mapping[str, Tensor], part: str) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items() if name.startswith(part)}
