"""A run that goes on from another's weights, in place of the pretrained ones and a new head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config.run import RunConfig
from guie.model import Embedder, LoadedModel, build_preprocess, open_model
from guie.model.loading import at_size
from guie.model.preprocess import Preprocess

TOWER = "backbone.tower."
PARTS = (TOWER, "backbone.adapters.", "backbone.prompts.", "head.")


def start_from(embedder: Embedder, config: RunConfig) -> str:
    """Load the weights of `config.start_from` into a new embedder, which is changed; say what was taken.

    For images of another size its position embeddings are resampled. A head of other shapes begins
    anew, and so do adapters and prompts that are not the other's.

    Raises UserError where there is no such model, it stands for several, or its tower is another.
    """
    assert config.start_from is not None
    backbone, size_px = config.model.backbone, config.model.image.size_px
    try:
        # A library draws weights as it builds: the run's own random numbers stay what they are
        with torch.random.fork_rng(devices=[]):
            given = at_size(open_model(config.start_from), size_px, backbone.stride_px)
    except UserError as error:
        raise UserError(f"start_from: {error}") from None
    state, own = given.embedder.state_dict(), embedder.state_dict()
    taken = [part for part in PARTS if _shapes(own, part) == _shapes(state, part) != {}]
    if TOWER not in taken:
        raise UserError(
            f"start_from: {config.start_from} has another tower than model.backbone, {backbone.name};"
            " start from a run of the same, or drop it"
        )
    own |= {name: state[name] for part in taken for name in _shapes(own, part)}
    embedder.load_state_dict(own)
    anew = [part for part in PARTS if part not in taken and _shapes(own, part)]
    _refuse_other_pixels(given, build_preprocess(config.model, embedder.backbone, size_px), config)
    told = [f"{part.strip('.').rpartition('.')[2]} anew" for part in anew]
    return ", ".join([f"starts from {config.start_from}", *told])


def _refuse_other_pixels(given: LoadedModel, own: Preprocess, config: RunConfig) -> None:
    """A tower that has learnt pixels of one mean and std is another model on those of another."""
    assert isinstance(given.preprocess, Preprocess)  # of one model
    for key in ("mean", "std"):
        then, now = _levels(given.preprocess, key), _levels(own, key)
        if then != now:
            raise UserError(
                f"model.image.{key}: {now}, and start_from, {config.start_from}, has {then}; give it the same"
            )


def _levels(preprocess: Preprocess, key: str) -> list[float]:
    """Of the three channels, white is 1."""
    return [round(level / 255, 4) for level in getattr(preprocess, key).flatten().tolist()]


def _shapes(state: Mapping[str, Tensor], part: str) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items() if name.startswith(part)}
