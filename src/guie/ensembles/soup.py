"""Model soups: one model whose weights are the mean of several (Wortsman et al., ICML 2022); greedy ones
are tried on val.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.ensemble import MemberConfig, ModelMember
from guie.ensembles.samples import Scores
from guie.models import ImageSize, LoadedModel, open_model, rebuild
from guie.models.loading import LIBRARIES
from guie.models.pretrained import sha256_of, state_hash
from guie.training.checkpoint import Checkpoints, load_checkpoint
from guie.training.stage import embedder_weights

# Cosine; measured between heads: .97 and more from one start, .00 trained apart (EXPERIMENTS.md).
MIN_SIMILARITY = 0.5

Evaluate = Callable[[LoadedModel], Scores]


@dataclass(frozen=True)
class Trial:
    """An ingredient by itself, and what became of it in the soup.

    Attributes: `similarity`, the cosine of its weights with those of the first ingredient, part by
    part; `alone`, its scores; `kept`, whether the soup holds it; `soup`, of a greedy soup the scores
    with it added.
    """

    ingredient: Ingredient
    sha256: str
    similarity: dict[str, float]
    alone: Scores
    kept: bool = True
    soup: Scores = None

    def as_json(self) -> dict[str, Any]:
        return {
            "member": self.ingredient.name,
            "sha256": self.sha256,
            "alike": self.similarity,
            "alone": self.alone,
            "joined": self.kept,
            "soup": self.soup,
        }


# The soup, its scores, and its trials
Tried = tuple[LoadedModel, Scores, list[Trial]]


def examine(ingredients: Sequence[Ingredient], evaluate: Evaluate) -> list[Trial]:
    """Score each ingredient alone. Raises UserError for one that differs from the first."""
    first = ingredients[0].load()
    trials = []
    for ingredient in ingredients:
        model = ingredient.load()
        refuse_other_architecture(ingredient, model, ingredients[0], first)
        similarity = similarity_by_part(model.embedder.state_dict(), first.embedder.state_dict())
        trials.append(Trial(ingredient, ingredient.sha256(), similarity, evaluate(model)))
    return trials


def uniform_soup(trials: Sequence[Trial], evaluate: Evaluate) -> Tried:
    """The mean of all ingredients."""
    soup = Soup()
    for trial in trials:
        soup = soup.plus(trial.ingredient.load().embedder.state_dict())
    model = with_weights_of(soup, trials[0].ingredient.load())
    return model, evaluate(model), list(trials)


def greedy_soup(trials: Sequence[Trial], evaluate: Evaluate) -> Tried:
    """The soup of the ingredients that do not lower the held-out score, added best first.

    Wortsman et al. (ICML 2022), recipe 1. The trials come in the order of being added.
    """
    trials = sorted(trials, key=lambda trial: held_out(trial.alone), reverse=True)
    model, soup = trials[0].ingredient.load(), Soup()
    best = trials[0].alone
    done: list[Trial] = []
    for trial in trials:
        larger = soup.plus(trial.ingredient.load().embedder.state_dict())
        scores = evaluate(with_weights_of(larger, model)) if done else trial.alone
        kept = held_out(scores) >= held_out(best)
        if kept:
            soup, best = larger, scores
        done.append(replace(trial, soup=scores, kept=kept))
    return with_weights_of(soup, model), best, done


def refuse_other_towers(trials: Sequence[Trial]) -> None:
    """Raise UserError unless all ingredients have one tower, to the bit, and a head."""
    first = trials[0].ingredient
    towers = {name: v for name, v in _weights(first).items() if not name.startswith("head.")}
    if len(towers) == len(_weights(first)):
        raise UserError(f"{first.name}: has no head to average")
    for trial in trials[1:]:
        state = _weights(trial.ingredient)
        for name, value in towers.items():
            if not torch.equal(value, state[name]):
                raise UserError(
                    f"{trial.ingredient.name}: {name} differs from that of {first.name}; heads are"
                    " averaged over one tower: join soup, or average"
                )


def held_out(scores: Scores) -> float:
    """The score that a greedy soup goes by: R@1 on the val split, mean over domains."""
    assert scores is not None  # greed comes with a val split
    return scores["val_r_at_1"]


def with_weights_of(soup: Soup, model: LoadedModel) -> LoadedModel:
    """The model, its weights replaced by the soup's."""
    model.embedder.load_state_dict(soup.state())
    return model


def trained_apart(trials: Sequence[Trial]) -> list[str]:
    """A line for each part of an ingredient that was not trained from the first one's."""
    first = trials[0].ingredient.name
    return [
        f"{trial.ingredient.name}: its {part} was trained apart from that of {first} (cosine"
        f" {cosine:.2f}); the mean of such weights is seldom a model: look at its val score"
        for trial in trials
        for part, cosine in trial.similarity.items()
        if cosine < MIN_SIMILARITY
    ]


def spaces_apart(models: Sequence[LoadedModel]) -> list[str]:
    """A line for each model whose embedding does not share its space with the first one's.

    By the heads, or where there are none by the towers: embeddings of those that were trained apart
    are turned against each other, and their mean is neither (the challenge's 1st place).
    """
    first, lines = _last_part(models[0]), []
    for model in models[1:]:
        own = _last_part(model)
        alike = own.keys() == first.keys() and all(own[k].shape == first[k].shape for k in own)
        cosine = min(similarity_by_part(own, first).values(), default=0.0) if alike else 0.0
        if cosine < MIN_SIMILARITY:
            message = f"cosine {cosine:.2f}" if alike else "of another kind"
            lines.append(
                f"{model.source}: its head was trained apart from that of {models[0].source} ({message});"
                " the mean of such embeddings is seldom better than one: join them side_by_side"
            )
    return lines


def _weights(ingredient: Ingredient) -> dict[str, torch.Tensor]:
    return ingredient.load().embedder.state_dict()


def _last_part(model: LoadedModel) -> dict[str, torch.Tensor]:
    state = model.embedder.state_dict()
    heads = {name: value for name, value in state.items() if name.startswith("head.")}
    return heads or state


State = Mapping[str, Tensor]
# Keys of a model's config by which ingredients may differ: where weights came from, how they were
# trained. The image size is compared as the weights file has it.
MAY_DIFFER = {"pretrained", "sha256", "revision", "dropout", "branches", "mean", "std"}
COUNTER = "num_batches_tracked"  # of batch normalisation; read by no forward pass


@dataclass(frozen=True)
class Ingredient:
    """Weights that go into a soup: of a run its best, its last, or one of its checkpoints.

    Attributes: `run`, the folder, or a library's model; `file`, the weights, None of a library.
    """

    run: str
    file: Path | None = None

    @property
    def name(self) -> str:
        """By which messages and records call it."""
        return str(self.file or self.run)

    def load(self) -> LoadedModel:
        """The model with these weights. Raises UserError where they are not those of one model."""
        if self.file is None:
            return open_model(self.run)
        if self.file.suffix == ".pt":
            return _load_from_checkpoint(Path(self.run), self.file)
        model = open_model(self.run, weights=self.file.name)
        model.alone("average the runs of each, one by one")
        return model

    def sha256(self) -> str:
        """Of the file; of a library's model, of its weights."""
        return sha256_of(self.file) if self.file else state_hash(self.load().embedder.state_dict())


def ingredients_of(members: Sequence[ModelMember]) -> list[Ingredient]:
    """The ingredients of a soup: the weights that each member names, or all checkpoints of its run.

    Raises UserError for weights that are named twice, or a run that has no checkpoint.
    """
    ingredients: list[Ingredient] = []
    for member in members:
        run = Path(member.model)
        files: list[Path | None] = [run / f"{member.weights}.safetensors"]
        if member.checkpoints:
            files = list(Checkpoints(run, keep=1).paths())
        elif member.model.partition(":")[0] in LIBRARIES:
            files = [None]
        if not files:
            raise UserError(f"{run}: no checkpoints there to average")
        ingredients += [Ingredient(member.model, file) for file in files]
    names = [str(Path(one.name).resolve()) for one in ingredients]
    twice = [one.name for number, one in enumerate(ingredients) if names[number] in names[:number]]
    if twice:
        raise UserError(f"{twice[0]}: given twice")
    return ingredients


class Soup:
    """The running mean of models' weights, summed in float64.

    Args:
        sums: by name, the sum over `count` models.
    """

    def __init__(self, sums: State | None = None, count: int = 0):
        self._sums, self.count = dict(sums or {}), count

    def plus(self, state: State) -> Soup:
        """The soup with one more ingredient; this one stays as it is."""
        sums = {}
        for name, value in state.items():
            value = value.detach().cpu()
            if not value.is_floating_point():  # the ingredients agree, but for how far they counted
                sums[name] = torch.maximum(value, self._sums.get(name, value))
            elif self.count:
                sums[name] = self._sums[name] + value.double()
            else:  # not added to 0, which would lose the sign of -0.0
                sums[name] = value.double()
        return Soup(sums, self.count + 1)

    def state(self) -> dict[str, Tensor]:
        """The mean; `load_state_dict` rounds it to the type of the weights."""
        return {k: v / self.count if v.is_floating_point() else v for k, v in self._sums.items()}


def refuse_other_architecture(
    ingredient: Ingredient, model: LoadedModel, first: Ingredient, first_model: LoadedModel
) -> None:
    """Raise UserError, naming the first difference, unless the two can be averaged."""
    own, others = _architecture(model), _architecture(first_model)
    for key in {**others, **own}:
        if own.get(key) != others.get(key):
            raise UserError(
                f"{ingredient.name}: {key} is {own.get(key)}, that of {first.name}"
                f" {others.get(key)}; only models of one architecture and image size average"
            )
    for name, value in model.embedder.state_dict().items():
        if not value.isfinite().all():
            raise UserError(f"{ingredient.name}: {name} is not finite; leave this one out")


def similarity_by_part(a: State, b: State) -> dict[str, float]:
    """Cosine between the weight matrices of two models, part by part (`backbone`, `head`).

    The matrices of a part count as one vector.

    Vectors are left out: the scales of norms are near 1 in every model.
    """
    products: dict[str, Tensor] = {}
    for name, value in a.items():
        if value.is_floating_point() and value.ndim > 1:
            x, y = value.detach().double().flatten(), b[name].detach().double().flatten()
            part = name.partition(".")[0]
            moments = torch.stack([x @ y, x @ x, y @ y])
            products[part] = products.get(part, 0.0) + moments
    return {
        part: (xy / (xx * yy).sqrt().clamp(min=1e-300)).item()  # 0 where all weights are
        for part, (xy, xx, yy) in products.items()
    }


def _architecture(model: LoadedModel) -> dict[str, Any]:
    """What must agree: config, normalisation, names and shapes of weights, integer buffers."""
    dumped = model.config.model_dump()
    parts: dict[str, Any] = {}
    for section, values in dumped.items():
        if isinstance(values, dict):
            parts |= {f"{section}.{k}": v for k, v in values.items() if k not in MAY_DIFFER}
        else:
            parts[section] = values
    parts |= {f"image.{key}": value for key, value in model.preprocess.recipe().items()}
    for name, value in model.embedder.state_dict().items():
        whole = not value.is_floating_point() and not name.endswith(COUNTER)
        parts[name] = value.tolist() if whole else tuple(value.shape)
    return parts


def _load_from_checkpoint(run: Path, file: Path) -> LoadedModel:
    """The embedder inside a checkpoint: the averaged one where the stage keeps an EMA."""
    config = load_config(run / "config.yaml", RunConfig)
    saved = load_checkpoint(file)
    stage = config.stages[saved["state"].stage]
    size = ImageSize(
        stage.size_px or config.model.image.size_px,
        stage.stride_px or config.model.backbone.stride_px,
    )
    member = MemberConfig(source=str(file), model=size.set_in(config.model), run=config)
    return rebuild(member, embedder_weights(saved), str(file))
