"""From a composition's config to one model: members opened, joined, seen in views, reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.compose.domains import fit_domains
from guie.compose.reducing import reduce_by
from guie.compose.samples import Fits, Scores
from guie.compose.soups import ingredients_of
from guie.compose.trials import (
    Trial,
    examine,
    greedy_soup,
    refuse_other_towers,
    spaces_apart,
    trained_apart,
    uniform_soup,
)
from guie.config.compose import Composed, HeadsConfig, ModelMember, SoupConfig
from guie.config.composition import ViewConfig
from guie.model import LoadedModel, at_size, composed, open_model, with_layers
from guie.model.looks import Inputs
from guie.model.weights import state_hash

MOST_LOOKS_BYTES = 64 << 20  # at one image: a hundred looks of 224 px
WHOLE = [ViewConfig()]


@dataclass(frozen=True)
class Made:
    """A model, its val scores, and how it was made: for record.json and for the terminal.

    Attributes: `record`, JSON; `members`, that it was joined of; `trials`, of a soup.
    """

    model: LoadedModel
    scores: Scores
    record: dict[str, Any]
    members: tuple[Made, ...] = ()
    trials: tuple[Trial, ...] = ()

    def as_json(self) -> dict[str, Any]:
        known = {"model": self.model.source, "dimension": self.model.embedder.dim}
        return known | {"val": self.scores, **self.record}


@dataclass(frozen=True)
class Joined:
    """Models that are to become one, and how: keys of `CompositionConfig`."""

    models: Sequence[LoadedModel]
    record: dict[str, Any]
    how: dict[str, Any] = field(default_factory=dict)
    members: tuple[Made, ...] = ()
    trials: tuple[Trial, ...] = ()
    scores: Scores = None  # of a soup


def make(config: Composed, fits: Fits) -> Made:
    """Compose. Every process must call it; what looks doubtful is told as a warning.

    Raises UserError where a member is missing or members do not fit.
    """
    averaged = isinstance(config.join, SoupConfig | HeadsConfig)
    joined = (_averaged if averaged else _side_by_side)(config, fits)
    record = {"join": config.join.name if config.join else None, **joined.record}
    model, scores = joined.models[0], joined.scores
    if config.views != WHOLE or len(joined.models) > 1:
        model, scores = _seen(config, joined, fits, record), None
        _refuse_too_many(model)
    if config.reduce:
        model, told = reduce_by(config.reduce, model, fits)
        record["reduction"], scores = config.reduce.model_dump() | told, None
    return Made(model, scores or fits.scores(model), record, joined.members, joined.trials)


def _averaged(config: Composed, fits: Fits) -> Joined:
    """A mean of weights, of runs or of heads."""
    join, members = config.join, [m for m in config.members if isinstance(m, ModelMember)]
    assert join  # soup or heads
    evaluate = partial(fits.scores, keep=True)
    trials = examine(ingredients_of(members), evaluate)
    if isinstance(join, HeadsConfig):
        refuse_other_towers(trials)
    fits.warn(trained_apart(trials))
    greedy = isinstance(join, SoupConfig) and join.greedy
    model, scores, trials = (greedy_soup if greedy else uniform_soup)(trials, evaluate)
    record = {"greedy": greedy, "members": [trial.as_json() for trial in trials]}
    kept = dict.fromkeys(Path(t.ingredient.run).name for t in trials if t.kept)
    model = _renamed(model, f"{join.name} of {', '.join(kept)}")
    return Joined([model], record, trials=tuple(trials), scores=scores)


def _side_by_side(config: Composed, fits: Fits) -> Joined:
    """Members as they are, one or several, side by side or to be averaged as embeddings."""
    members = tuple(_member(member, fits) for member in config.members)
    models = [member.model for member in members]
    record: dict[str, Any] = {"members": [member.as_json() for member in members]}
    if config.join is None:
        return Joined(models, record, members=members)
    if config.join.name == "average":
        _refuse_other_dimensions(models)
        fits.warn(spaces_apart(models))
    weights = [member.weight for member in config.members]
    how = {"join": config.join.name, "weights": weights if len(set(weights)) > 1 else None}
    return Joined(models, record | {"weights": weights}, how, members)


def _renamed(model: LoadedModel, source: str) -> LoadedModel:
    """A mean of weights is no longer its first ingredient, by whose config it is built."""
    return replace(model, part=model.part.model_copy(update={"source": source}), source=source)


def _member(config: ModelMember | Composed, fits: Fits) -> Made:
    if isinstance(config, Composed):
        return make(config, fits)
    model = open_model(config.model, weights=f"{config.weights}.safetensors")
    if config.size_px or config.stride_px:
        model = at_size(model, config.size_px, config.stride_px)
    if config.layers:
        model = with_layers(model, config.layers)
    record = {"weights_sha256": state_hash(model.embedder.state_dict())}
    return Made(model, fits.scores(model), record)


def _seen(config: Composed, joined: Joined, fits: Fits, record: dict[str, Any]) -> LoadedModel:
    """The members joined, in all views; where views ask for domains, with what tells those."""
    if config.classifier is None:
        return composed(joined.models, views=config.views, **joined.how)
    free = [view for view in config.views if not view.domains]
    plain = composed(joined.models, views=free, **joined.how)
    emb_FD, domain_F, basis = fits.embedded(plain, config.classifier)
    wanted = {name for view in config.views for name in view.domains or []}
    names, weights, told = fits.from_main(lambda: fit_domains(emb_FD, domain_F, wanted))
    record["classifier"] = {"fitted_on": basis, **told}
    return composed(joined.models, weights, views=config.views, domains=names, **joined.how)


def _refuse_other_dimensions(models: Sequence[LoadedModel]) -> None:
    first = models[0]
    for model in models[1:]:
        if model.embedder.dim != first.embedder.dim:
            raise UserError(
                f"join: average: {model.source} has {model.embedder.dim} dimensions, {first.source}"
                f" {first.embedder.dim}; only as many can be averaged: join them side_by_side"
            )


def _refuse_too_many(model: LoadedModel) -> None:
    assert isinstance(model.preprocess, Inputs)  # of a composition
    sides = model.preprocess.sides_px
    needed = sum(3 * 4 * side**2 for side in sides)
    if needed > MOST_LOOKS_BYTES:
        raise UserError(
            f"views: {len(sides)} looks at an image, of {max(sides)} px and less, need"
            f" {needed >> 20} MB for each image, above {MOST_LOOKS_BYTES >> 20}; take fewer views or"
            " smaller sizes"
        )
