"""Build an ensemble from its config; write its run folder and a summary for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.config import RunConfig
from guie.config.ensemble import (
    FILES,
    Composed,
    CompositionConfig,
    HeadsConfig,
    MemberConfig,
    ModelMember,
    SoupConfig,
    ViewConfig,
)
from guie.config.stages import LearningRates, StageConfig
from guie.config.training import DataConfig
from guie.ensembles.reduction import fit_domains, reduce_by
from guie.ensembles.samples import Fits, Scores
from guie.ensembles.soup import (
    Trial,
    examine,
    greedy_soup,
    held_out,
    ingredients_of,
    refuse_other_towers,
    spaces_apart,
    trained_apart,
    uniform_soup,
)
from guie.models import (
    LoadedModel,
    at_size,
    composed,
    open_model,
    save_model,
    save_weights,
    with_layers,
)
from guie.models.embedder import Embedder
from guie.models.loading import BEST, RUN_FILE
from guie.models.pretrained import state_hash
from guie.models.views import Inputs
from guie.training.run_folder import (
    METRICS_FILE,
    add_to_record,
    begin_record,
    finish,
    refuse_foreign,
    write_record,
)

MOST_LOOKS_BYTES = 64 << 20  # of all views of one image: a hundred views of 224 px
WHOLE = [ViewConfig()]


@dataclass(frozen=True)
class EnsembleResult:
    """A model, its val scores, and how it was made: for record.json and for the terminal.

    Attributes: `record`, as JSON; `members`, the models that were joined; `trials`, those of a soup.
    """

    model: LoadedModel
    scores: Scores
    record: dict[str, Any]
    members: tuple[EnsembleResult, ...] = ()
    trials: tuple[Trial, ...] = ()

    def as_json(self) -> dict[str, Any]:
        known = {"model": self.model.source, "dimension": self.model.embedder.dim}
        return known | {"val": self.scores, **self.record}


@dataclass(frozen=True)
class Joined:
    """Models to combine, and how: keys of `CompositionConfig`."""

    models: Sequence[LoadedModel]
    record: dict[str, Any]
    how: dict[str, Any] = field(default_factory=dict)
    members: tuple[EnsembleResult, ...] = ()
    trials: tuple[Trial, ...] = ()
    scores: Scores = None  # of a soup


def make(config: Composed, fits: Fits) -> EnsembleResult:
    """Build the ensemble. Every process must call it. Doubtful combinations print a warning.

    Raises UserError if a member is missing or members do not fit together.
    """
    averaged = isinstance(config.join, SoupConfig | HeadsConfig)
    joined = (_averaged if averaged else _side_by_side)(config, fits)
    record = {"join": config.join.name if config.join else None, **joined.record}
    model, scores = joined.models[0], joined.scores
    if config.views != WHOLE or len(joined.models) > 1:
        model, scores = _seen(config, joined, fits, record), None
        _refuse_too_many(model)
    if config.reduce:
        model, message = reduce_by(config.reduce, model, fits)
        record["reduction"], scores = config.reduce.model_dump() | message, None
    return EnsembleResult(
        model, scores or fits.scores(model), record, joined.members, joined.trials
    )


def _averaged(config: Composed, fits: Fits) -> Joined:
    """Average weights, of whole runs or of heads."""
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
    """Keep the members as they are; their embeddings are concatenated or averaged."""
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
    """Rename a weight average, which is built from its first ingredient's config."""
    return replace(model, part=model.part.model_copy(update={"source": source}), source=source)


def _member(config: ModelMember | Composed, fits: Fits) -> EnsembleResult:
    if isinstance(config, Composed):
        return make(config, fits)
    model = open_model(config.model, weights=f"{config.weights}.safetensors")
    if config.size_px or config.stride_px:
        model = at_size(model, config.size_px, config.stride_px)
    if config.layers:
        model = with_layers(model, config.layers)
    record = {"weights_sha256": state_hash(model.embedder.state_dict())}
    return EnsembleResult(model, fits.scores(model), record)


def _seen(config: Composed, joined: Joined, fits: Fits, record: dict[str, Any]) -> LoadedModel:
    """Join the members in all views; if views depend on domains, fit the domain classifier."""
    if config.classifier is None:
        return composed(joined.models, views=config.views, **joined.how)
    free = [view for view in config.views if not view.domains]
    plain = composed(joined.models, views=free, **joined.how)
    emb_FD, domain_F, basis = fits.embedded(plain, config.classifier)
    wanted = {name for view in config.views for name in view.domains or []}
    names, weights, message = fits.from_main(lambda: fit_domains(emb_FD, domain_F, wanted))
    record["classifier"] = {"fitted_on": basis, **message}
    return composed(joined.models, weights, views=config.views, domains=names, **joined.how)


def _refuse_other_dimensions(models: Sequence[LoadedModel]) -> None:
    first = models[0]
    for model in models[1:]:
        if model.embedder.dim != first.embedder.dim:
            raise UserError(
                f"join: average: {model.source} has {model.embedder.dim} dimensions, {first.source} has"
                f" {first.embedder.dim}; averaging needs equal dimensions: use join: side_by_side"
            )


def _refuse_too_many(model: LoadedModel) -> None:
    assert isinstance(model.preprocess, Inputs)  # of a composition
    sides = model.preprocess.sides_px
    needed = sum(3 * 4 * side**2 for side in sides)
    if needed > MOST_LOOKS_BYTES:
        raise UserError(
            f"views: {len(sides)} views of an image, each of at most {max(sides)} px, need"
            f" {needed >> 20} MB for each image; the limit is {MOST_LOOKS_BYTES >> 20} MB; use fewer views"
            " or smaller sizes"
        )


def refuse_existing(out: Path) -> None:
    """Raise UserError if the folder holds a run, or a foreign file that would be replaced."""
    if any((out / name).exists() for name in (RUN_FILE, *FILES)):
        raise UserError(f"{out}: already holds a model; remove it, or choose another name")
    refuse_foreign(out)


def run_of(member: MemberConfig, manifest: str) -> RunConfig:
    """Return the config of the run that trained a member; for a library's model, one without training.

    Args:
        manifest: what a library's model was adapted to.
    """
    if member.run:
        return member.run
    stage = StageConfig(name="none", epochs=1, lr=LearningRates(classes=0.0))
    data = DataConfig(manifest=manifest)
    return RunConfig(name="derived", data=data, model=member.model, stages=[stage])


def write_run(
    out: Path, model: LoadedModel, manifest: str, scores: dict[str, float] | None, **record: Any
) -> None:
    """Write a folder that `open_model` reads: weights, config, record, scores.

    Args:
        manifest: what a library's model was adapted to.
        scores: of the val split, as `guie.evaluation.validation` returns them; None: not validated.
        record: further entries of `record.json`.

    Raises:
        UserError: the name is not valid for a run, or a file cannot be written.
    """
    begin_record(out)  # first: it marks the folder as ours, so a later try may replace it
    part = model.self_contained()
    if isinstance(part, MemberConfig):
        config: RunConfig | CompositionConfig = _derived(part, manifest, out)
        save_model(cast(Embedder, model.embedder), out / BEST, model.preprocess.size_px)
    else:
        config = part
        save_weights(model.embedder.state_dict(), out / BEST)
    if scores:
        line = {"step": 0, "stage": out.name, **scores}
        write_text(out / METRICS_FILE, json.dumps(line, allow_nan=False) + "\n")
    write_record(out, config)
    add_to_record(out, **record)
    best = {"val_r_at_1": scores["val_r_at_1"], "step": 0} if scores else None
    finish(out, {"best": best, "steps": 0})


def _derived(part: MemberConfig, manifest: str, out: Path) -> RunConfig:
    """Return the run's config with the model and folder of the derived one."""
    changed = {"name": out.name, "out": str(out.parent), "model": part.model.model_dump()}
    try:
        return RunConfig.model_validate(run_of(part, manifest).model_dump() | changed)
    except ValidationError:
        raise UserError(f"{out}: a run's name may hold letters, digits, '_', '.' and '-'") from None


def summary(out: Path, made: EnsembleResult) -> str:
    """Return dimensions, views and scores of the ensemble, then a line for each of its parts."""
    return "\n".join([f"{out}: {_describe(made)}", *_lines(made, "  ")])


def _lines(made: EnsembleResult, indent: str) -> Iterator[str]:
    for trial in made.trials:
        yield indent + _of_trial(trial)
    for member in made.members:
        yield f"{indent}{member.model.source}: {_describe(member)}"
        yield from _lines(member, indent + "  ")
    reduction = made.record.get("reduction")
    if reduction:
        shares = reduction.get("explained_variance")
        message = f", which explain {sum(shares):.1%} of the variance" if shares else ""
        yield f"{indent}reduced to {reduction['dim']} dimensions{message}"
    if "classifier" in made.record:
        yield f"{indent}domain accuracy, held out: {made.record['classifier']['accuracy_held_out']:.1%}"


def _describe(made: EnsembleResult) -> str:
    words = [f"{made.model.embedder.dim} dimensions"]
    if made.trials:
        kept = sum(trial.kept for trial in made.trials)
        words.append(f"{kept} of {len(made.trials)} ingredients")
    if isinstance(made.model.preprocess, Inputs):
        words.append(f"{len(made.model.preprocess.sides_px)} views of an image")
    return ", ".join(words) + _score_text("val", made.scores)


def _of_trial(trial: Trial) -> str:
    sign = "+" if trial.kept else "-"
    alone, soup = _score_text("alone", trial.alone), _score_text("soup with it", trial.soup)
    return f"{sign} {trial.ingredient.name}{alone}{soup}"


def _score_text(title: str, scores: Scores) -> str:
    """Return `, val R@1 0.1234, mMP@5 0.1000`; empty if nothing was scored."""
    if not scores:
        return ""
    mmp_at_5 = f", mMP@5 {scores['val_mmp_at_5']:.4f}" if "val_mmp_at_5" in scores else ""
    return f", {title} R@1 {held_out(scores):.4f}{mmp_at_5}"
