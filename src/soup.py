"""Average the weights of runs, or of the checkpoints of one: a model soup, a run like any other.

python src/soup.py --runs runs/a runs/b runs/c --out runs/soup
python src/soup.py --runs runs/a runs/b runs/c --out runs/soup --greedy --manifest input/mix.csv
python src/soup.py --runs runs/a --checkpoints --out runs/soup
python src/soup.py --runs runs/a --weights model last --out runs/soup

The ingredients must have been fine-tuned from the same weights, their heads too: runs whose first
stages are the same up to a trained head, say, and which then train the backbone each in its own way
under `lr: {head: 0.0}`. A uniform soup averages all of them; a greedy soup (Wortsman et al., ICML
2022, recipe 1) tries them from the best to the worst and keeps each that does not lower the R@1 on
held-out images, the manifest's val split. The test split is not looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.compose.derived import refuse_existing, write_run
from guie.compose.soups import (
    Ingredient,
    Soup,
    find_ingredients,
    refuse_other_architecture,
    similarity_by_part,
)
from guie.config import RunConfig, load_config
from guie.data.manifest import load_manifest
from guie.evaluation.validation import validate_model
from guie.model import LoadedModel
from guie.model.weights import sha256_of

# Cosine; measured between heads: .97 and more from one start, .00 trained apart (EXPERIMENTS.md).
MIN_SIMILARITY = 0.5

Scores = dict[str, float] | None  # as `validate_model` returns them; None where nothing is scored
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
            "member": str(self.ingredient.file),
            "sha256": self.sha256,
            "alike": self.similarity,
            "alone": self.alone,
            "joined": self.kept,
            "soup": self.soup,
        }


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="folders of runs")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--weights",
        choices=("model", "last"),
        nargs="+",
        default=["model"],
        help="of each run: its best by val score (model), its last (default: model)",
    )
    what.add_argument("--checkpoints", action="store_true", help="of each run: all its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new run")
    parser.add_argument("--greedy", action="store_true", help="keep out what lowers the val score")
    parser.add_argument("--manifest", help="whose val split scores ingredients and soup")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Average; returns the new run's folder. Raises UserError where the ingredients do not fit."""
    args = parse_args(argv)
    if args.greedy and not args.manifest:
        raise UserError("--greedy: goes by a val split; give its --manifest")
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_existing(args.out))
    ingredients = find_ingredients(args.runs, args.weights, args.checkpoints)
    manifest = load_manifest(args.manifest, args.root) if args.manifest else None
    if manifest:
        manifest.split("val")  # refused where there is none

    def evaluate(model: LoadedModel) -> Scores:
        if manifest is None:
            return None
        return validate_model(accelerator, model, manifest, args.workers)

    trials = examine(ingredients, evaluate)
    if accelerator.is_main_process:
        warn_of_unrelated(trials)
    make_soup = greedy_soup if args.greedy else uniform_soup
    model, scores, trials = make_soup(trials, evaluate)
    if accelerator.is_main_process:
        config = load_config(ingredients[0].run / "config.yaml", RunConfig)
        record = {"greedy": args.greedy, "manifest": args.manifest}
        record["members"] = [trial.as_json() for trial in trials]
        write_run(args.out, model, config, scores, soup=record)
        print(summary(args.out, trials, scores))
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return args.out


def examine(ingredients: Sequence[Ingredient], evaluate: Evaluate) -> list[Trial]:
    """Score each ingredient alone. Raises UserError for one that differs from the first."""
    first = ingredients[0].load()
    trials = []
    for ingredient in ingredients:
        model = ingredient.load()
        refuse_other_architecture(ingredient, model, ingredients[0], first)
        similarity = similarity_by_part(model.embedder.state_dict(), first.embedder.state_dict())
        trials.append(Trial(ingredient, sha256_of(ingredient.file), similarity, evaluate(model)))
    return trials


def uniform_soup(
    trials: Sequence[Trial], evaluate: Evaluate
) -> tuple[LoadedModel, Scores, list[Trial]]:
    """The mean of all ingredients, its scores, and the trials."""
    soup = Soup()
    for trial in trials:
        soup = soup.plus(trial.ingredient.load().embedder.state_dict())
    model = with_weights_of(soup, trials[0].ingredient.load())
    return model, evaluate(model), list(trials)


def greedy_soup(
    trials: Sequence[Trial], evaluate: Evaluate
) -> tuple[LoadedModel, Scores, list[Trial]]:
    """The soup of the ingredients that do not lower the held-out score, added best first.

    Returns the model, its scores, and the trials in the order of being added.
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


def held_out(scores: Scores) -> float:
    """The score that a greedy soup goes by: R@1 on the val split, mean over domains."""
    assert scores is not None  # `--greedy` comes with a manifest
    return scores["val_r_at_1"]


def with_weights_of(soup: Soup, model: LoadedModel) -> LoadedModel:
    """The model, its weights replaced by the soup's."""
    model.embedder.load_state_dict(soup.state())
    return model


def warn_of_unrelated(trials: Sequence[Trial]) -> None:
    """Say on stderr whose parts were not trained from the first ingredient's."""
    for trial in trials:
        for part, cosine in trial.similarity.items():
            if cosine < MIN_SIMILARITY:
                print(
                    f"warning: {trial.ingredient.file}: its {part} was trained apart from that of"
                    f" {trials[0].ingredient.file} (cosine {cosine:.2f}); the mean of such weights"
                    " is seldom a model: look at its val score",
                    file=sys.stderr,
                )


def summary(out: Path, trials: Sequence[Trial], scores: Scores) -> str:
    """For the terminal: the soup and, line by line, its ingredients."""
    kept = sum(trial.kept for trial in trials)
    lines = [f"{out}: {kept} of {len(trials)} ingredients{r_at_1_text(', val', scores)}"]
    for trial in trials:
        sign = "+" if trial.kept else "-"
        alone, soup = r_at_1_text(", alone", trial.alone), r_at_1_text(", soup with it", trial.soup)
        lines.append(f"  {sign} {trial.ingredient.file}{alone}{soup}")
    return "\n".join(lines)


def r_at_1_text(title: str, scores: Scores) -> str:
    """`, val R@1 0.1234`; empty where nothing was scored."""
    return f"{title} R@1 {held_out(scores):.4f}" if scores else ""


if __name__ == "__main__":
    errors.run(main)
