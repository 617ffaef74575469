"""Build an ensemble from its config; write its run folder and a summary for the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import refuse_missing, write_json, write_text
from guie.config import RunConfig
from guie.config.ensemble import (
    COMPOSITION_FILE,
    ComposeConfig,
    Composed,
    CompositionConfig,
    HeadsConfig,
    MemberConfig,
    ModelMember,
    PcaConfig,
    SoupConfig,
    ViewConfig,
)
from guie.config.stages import LearningRates, StageConfig
from guie.config.training import DataConfig
from guie.data.preprocess import Inputs
from guie.ensembles.reduction import fit_domains, reduce_by
from guie.ensembles.samples import Fits, Scores
from guie.ensembles.soup import (
    Ingredient,
    examine,
    held_out,
    ingredients_of,
    mean_of_weights,
    spaces_apart,
    trained_apart,
)
from guie.models.embedder import Embedder
from guie.models.opening import (
    BEST,
    RUN_FILE,
    LoadedModel,
    at_size,
    composed,
    open_model,
    refuse_no_model,
    with_layers,
)
from guie.models.pretrained import state_hash
from guie.models.weights import save_model, save_weights
from guie.training.run_folder import (
    METRICS_FILE,
    SUMMARY,
    begin_record,
    refuse_foreign,
    write_record,
)


@dataclass(frozen=True)
class EnsembleResult:
    """A member or an ensemble: the model, its val scores, and how it was made."""

    model: LoadedModel
    scores: Scores
    record: dict[str, Any]  # for record.json
    members: tuple[EnsembleResult, ...] = ()  # whose embeddings are combined
    ingredients: tuple[Ingredient, ...] = ()  # whose weights are averaged


def make(config: ModelMember | Composed, fits: Fits) -> EnsembleResult:
    """Open a member, or build an ensemble: combine its members in all views, then reduce.

    Every process must call it. Raises UserError if a member is missing or members do not fit together.
    """
    if isinstance(config, ModelMember):
        model = open_model(config.model, weights=f"{config.weights}.safetensors")
        if config.size_px or config.stride_px:
            model = at_size(model, config.size_px, config.stride_px)
        if config.layers:
            model = with_layers(model, config.layers)
        hashed = {"weights_sha256": state_hash(model.embedder.state_dict())}
        return EnsembleResult(model, fits.scores(model), hashed)
    join, scores = config.join, None
    record: dict[str, Any] = {"join": join.name if join else None}
    how: dict[str, Any] = {"views": config.views, "average": config.average}
    members: tuple[EnsembleResult, ...] = ()
    ingredients: tuple[Ingredient, ...] = ()
    if isinstance(join, SoupConfig | HeadsConfig):
        model, scores, ingredients = _average_weights(config, join, fits)
        models = [model]
        record["greedy"] = isinstance(join, SoupConfig) and join.greedy
        record["members"] = [one.as_json() for one in ingredients]
    else:
        members = tuple(make(member, fits) for member in config.members)
        models = [member.model for member in members]
        record["members"] = [
            {"model": one.model.source, "dimension": one.model.embedder.dim, "val": one.scores}
            | one.record
            for one in members
        ]
        if join:
            weights = record["weights"] = [member.weight for member in config.members]
            how |= {"join": join.name, "weights": weights if len(set(weights)) > 1 else None}
    model = models[0]
    if config.views != [ViewConfig()] or len(models) > 1:
        model, scores = _combine(models, how, config, fits, record), None
    if config.reduce:
        model, fitted = reduce_by(config.reduce, model, fits)
        record["reduction"], scores = config.reduce.model_dump() | fitted, None
    return EnsembleResult(model, scores or fits.scores(model), record, members, ingredients)


def _average_weights(
    config: Composed, join: SoupConfig | HeadsConfig, fits: Fits
) -> tuple[LoadedModel, Scores, tuple[Ingredient, ...]]:
    """Average weights, of whole models or of heads."""
    evaluate = partial(fits.scores, keep=True)
    members = [member for member in config.members if isinstance(member, ModelMember)]
    ingredients = examine(ingredients_of(members), evaluate, isinstance(join, HeadsConfig))
    fits.warn(trained_apart(ingredients))
    greedy = isinstance(join, SoupConfig) and join.greedy
    model, scores, ingredients = mean_of_weights(ingredients, evaluate, greedy)
    # Built from the config of its first ingredient, it gets a name of its own
    kept = dict.fromkeys(Path(one.run).name for one in ingredients if one.kept)
    source = f"{join.name} of {', '.join(kept)}"
    part = model.part.model_copy(update={"source": source})
    return replace(model, part=part, source=source), scores, tuple(ingredients)


def _combine(
    models: Sequence[LoadedModel],
    how: dict[str, Any],
    config: Composed,
    fits: Fits,
    record: dict[str, Any],
) -> LoadedModel:
    """Combine embeddings of models and views; if views depend on domains, fit the domain classifier."""
    fitted = None
    if config.classifier:
        free = [view for view in config.views if not view.domains]
        emb_FD, domain_F, basis = fits.embedded(
            composed(models, **how | {"views": free}), config.classifier
        )
        wanted = {name for view in config.views for name in view.domains or []}
        fit = partial(fit_domains, emb_FD, domain_F, wanted)
        names, fitted, accuracy = from_main(fits.accelerator, fit)
        record["classifier"] = {"fitted_on": basis, **accuracy}
        how = how | {"domains": names}
    model = composed(models, fitted, **how)
    if how.get("join") == "average":
        fits.warn(spaces_apart(models))
    return model


def refuse_unfit(out: Path, config: ComposeConfig) -> None:
    """Raise UserError, before the first member is scored, for a missing member or file to fit on.

    Also if the folder holds a run, or a foreign file that would be replaced.
    """
    if any((out / name).exists() for name in (RUN_FILE, COMPOSITION_FILE)):
        raise UserError(f"{out}: already holds a model; remove it, or choose another name")
    refuse_foreign(out)
    for part in config.parts():
        for member in part.members:
            if isinstance(member, ModelMember):
                weights = None if member.checkpoints else f"{member.weights}.safetensors"
                refuse_no_model(member.model, weights)
        samples = [part.classifier]
        if isinstance(part.reduce, PcaConfig):
            refuse_missing([part.reduce.texts])
            samples.append(part.reduce.images)
        refuse_missing(sample.manifest for sample in samples if sample)


def write(out: Path, made: EnsembleResult, config: ComposeConfig) -> None:
    """Write a folder that `open_model` reads: weights, config, record, scores.

    A single model is written as a run: the one that trained it, with the new model. A library's model, or
    one that lost a part that had been trained (LoRA is merged), gets a run without training.

    Raises UserError if a file cannot be written.
    """
    begin_record(out)  # first: it marks the folder as ours, so a later try may replace it
    model, part, scores = made.model, made.model.self_contained(), made.scores
    if isinstance(part, MemberConfig):
        run = part.run
        if run is None or set(run.task.parts(run.model)) - set(run.task.parts(part.model)):
            stage = StageConfig(name="none", epochs=1, lr=LearningRates(classes=0.0))
            data = DataConfig(manifest=config.manifest)
            run = RunConfig(name="derived", data=data, model=part.model, stages=[stage])
        own = {"name": out.name, "out": str(out.parent), "model": part.model.model_dump()}
        written: RunConfig | CompositionConfig = RunConfig.model_validate(run.model_dump() | own)
        save_model(cast(Embedder, model.embedder), out / BEST)
    else:
        written = part
        save_weights(model.embedder.state_dict(), out / BEST)
    if scores:
        line = {"step": 0, "stage": out.name, **scores}
        write_text(out / METRICS_FILE, json.dumps(line, allow_nan=False) + "\n")
    write_record(out, written, composition={"config": config.model_dump(), **made.record})
    best = {"val_r_at_1": held_out(scores), "step": 0} if scores else None
    write_json(out / SUMMARY, {"best": best, "steps": 0})


def summary(name: str, made: EnsembleResult, indent: str = "") -> Iterator[str]:
    """Yield a line with dimensions, views and scores of the model, then indented lines for its parts."""
    words = [f"{made.model.embedder.dim} dimensions"]
    if made.ingredients:
        kept = sum(one.kept for one in made.ingredients)
        words.append(f"{kept} of {len(made.ingredients)} ingredients")
    if isinstance(made.model.preprocess, Inputs):
        words.append(f"{len(made.model.preprocess.sides_px)} views of an image")
    yield f"{indent}{name}: {', '.join(words)}{_score_text('val', made.scores)}"
    indent += "  "
    for one in made.ingredients:
        sign = "+" if one.kept else "-"
        alone, soup = _score_text("alone", one.alone), _score_text("soup with it", one.soup)
        yield f"{indent}{sign} {one.name}{alone}{soup}"
    for member in made.members:
        yield from summary(member.model.source, member, indent)
    if reduction := made.record.get("reduction"):
        shares = reduction.get("explained_variance")
        message = f", which explain {sum(shares):.1%} of the variance" if shares else ""
        yield f"{indent}reduced to {reduction['dim']} dimensions{message}"
    if classifier := made.record.get("classifier"):
        yield f"{indent}domain accuracy, held out: {classifier['accuracy_held_out']:.1%}"


def _score_text(title: str, scores: Scores) -> str:
    """Return `, val R@1 0.1234, mMP@5 0.1000`; empty if nothing was scored."""
    if not scores:
        return ""
    mmp_at_5 = f", mMP@5 {scores['val_mmp_at_5']:.4f}" if "val_mmp_at_5" in scores else ""
    return f", {title} R@1 {held_out(scores):.4f}{mmp_at_5}"
