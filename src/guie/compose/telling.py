"""What compose.py says of its work on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from guie.compose.joining import Made
from guie.compose.samples import Scores
from guie.compose.trials import Trial, held_out
from guie.model.looks import Inputs


def summary(out: Path, made: Made) -> str:
    """Dimensions, looks and scores, of the composition and, line by line, of what it is made of."""
    return "\n".join([f"{out}: {_told(made)}", *_lines(made, "  ")])


def _lines(made: Made, indent: str) -> Iterator[str]:
    for trial in made.trials:
        yield indent + _of_trial(trial)
    for member in made.members:
        yield f"{indent}{member.model.source}: {_told(member)}"
        yield from _lines(member, indent + "  ")
    reduction = made.record.get("reduction")
    if reduction:
        shares = reduction.get("explained_variance")
        told = f", which explain {sum(shares):.1%} of the variance" if shares else ""
        yield f"{indent}reduced to {reduction['dim']} dimensions{told}"
    if "classifier" in made.record:
        yield f"{indent}domains told rightly: {made.record['classifier']['accuracy_held_out']:.1%}"


def _told(made: Made) -> str:
    words = [f"{made.model.embedder.dim} dimensions"]
    if made.trials:
        kept = sum(trial.kept for trial in made.trials)
        words.append(f"{kept} of {len(made.trials)} ingredients")
    if isinstance(made.model.preprocess, Inputs):
        words.append(f"{len(made.model.preprocess.sides_px)} looks at an image")
    return ", ".join(words) + _score_text("val", made.scores)


def _of_trial(trial: Trial) -> str:
    sign = "+" if trial.kept else "-"
    alone, soup = _score_text("alone", trial.alone), _score_text("soup with it", trial.soup)
    return f"{sign} {trial.ingredient.name}{alone}{soup}"


def _score_text(title: str, scores: Scores) -> str:
    """`, val R@1 0.1234, mMP@5 0.1000`; empty where nothing was scored."""
    if not scores:
        return ""
    mmp_at_5 = f", mMP@5 {scores['val_mmp_at_5']:.4f}" if "val_mmp_at_5" in scores else ""
    return f", {title} R@1 {held_out(scores):.4f}{mmp_at_5}"
