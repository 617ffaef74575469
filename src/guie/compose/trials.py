"""Ingredients of a soup, tried: each alone, then in the soup; who was trained apart is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from guie.base.errors import UserError
from guie.compose.samples import Scores
from guie.compose.soups import Ingredient, Soup, refuse_other_architecture, similarity_by_part
from guie.model import LoadedModel

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
            told = f"cosine {cosine:.2f}" if alike else "of another kind"
            lines.append(
                f"{model.source}: its head was trained apart from that of {models[0].source} ({told});"
                " the mean of such embeddings is seldom better than one: join them side_by_side"
            )
    return lines


def _weights(ingredient: Ingredient) -> dict[str, torch.Tensor]:
    return ingredient.load().embedder.state_dict()


def _last_part(model: LoadedModel) -> dict[str, torch.Tensor]:
    state = model.embedder.state_dict()
    heads = {name: value for name, value in state.items() if name.startswith("head.")}
    return heads or state
