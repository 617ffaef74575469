"""The card's picture of the answer: what a scored submission finds, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.files import replacing
from guie.export.answers import LEAST_QUERIES, Answers
from guie.export.markdown import cell, table
from guie.report.figures import domain_bars, gallery

# In a folder of their own, which Kaggle's client leaves out: they show pictures of the data set
PER_DOMAIN, EXAMPLES, MISTAKES = "card/domains.png", "card/answers.png", "card/mistakes.png"


def draw(answers: Answers, folder: Path, root: Path | None) -> list[str]:
    """Write the pictures into the folder, and return their names.

    Args:
        root: of the images; None: no image is shown, and galleries of an earlier call go.
    """
    scores = pd.DataFrame(answers.score["domains"]).T["mmp_at_5"].astype(float).dropna()
    figures = {PER_DOMAIN: domain_bars(scores.to_frame("mMP@5"), "mMP@5")}
    if root:
        found = {EXAMPLES: answers.examples(), MISTAKES: answers.mistakes()}
        figures |= {
            name: gallery(rows, answers.rows, root) for name, rows in found.items() if len(rows)
        }
    for name in (PER_DOMAIN, EXAMPLES, MISTAKES):
        if name in figures:
            with replacing(folder / name) as temporary:
                figures[name].savefig(temporary, dpi=100, format="png")
        else:
            (folder / name).unlink(missing_ok=True)
    return list(figures)


def sections(answers: Answers, pictures: list[str]) -> dict[str, str]:
    """Markdown by title, for `model_card`."""
    return {
        "What it finds": _finds(answers, pictures),
        "What it cannot do": _cannot(answers, pictures),
    }


def _finds(answers: Answers, pictures: list[str]) -> str:
    score, mean = answers.score, answers.score["mean"]
    cost = score["seconds_per_image"]["total"]
    texts = [
        f"Scored as the challenge does, merged index: mMP@5 **{score['pooled']['mmp_at_5']:.3f}** over all"
        f" queries, mean over domains {mean['mmp_at_5']:.3f}, R@1 {mean['r_at_1']:.3f}; {cost * 1e3:.0f} ms"
        f" an image ({score['device']}).",
        _picture(PER_DOMAIN, "mMP@5 of each domain"),
    ]
    if EXAMPLES in pictures:
        texts += [
            "A query of each domain, drawn at random, and what it finds; green is right, and what is faded"
            " does not count:",
            _picture(EXAMPLES, "queries and their neighbours"),
        ]
    return "\n\n".join(texts)


def _cannot(answers: Answers, pictures: list[str]) -> str:
    texts = [_trust(answers)]
    if MISTAKES in pictures:
        texts += [
            "The wrong answer of each domain that lies nearest to its query, where it is surest and wrong:",
            _picture(MISTAKES, "the nearest wrong answers"),
        ]
    texts += [_classes(answers), _strays(answers)]
    turned = answers.score["images_with_exif_rotation"]
    if turned:
        texts.append(
            f"{turned} images are to be turned by their EXIF record. The challenge does not turn them, so"
            " they were seen lying or upside down."
        )
    return "\n\n".join(text for text in texts if text)


def _trust(answers: Answers) -> str:
    bands = answers.trust()
    rows = [
        (f"{b.nearest:.3f} to {b.farthest:.3f}", f"{b.right:.1%}", f"{b.queries:,}")
        for b in bands.itertuples()
    ]
    return (
        "**It always answers.** Whether the first neighbour is right is told by its distance in part only;"
        f" even of the nearest fifth {1 - bands['right'].iloc[0]:.1%} are wrong.\n\n"
        + table(*rows, header=("Distance of the first neighbour", "Right", "Queries"))
    )


def _classes(answers: Answers) -> str:
    worst = answers.worst_classes()
    if not len(worst):
        return f"No class of {LEAST_QUERIES} queries or more has a wrong first answer."
    rows = [
        (cell(c.label), f"{c.right:.0%}", c.queries, cell(c.taken_for)) for c in worst.itertuples()
    ]
    return (
        f"**Classes that it knows least**, of those with {LEAST_QUERIES} queries or more:\n\n"
        + table(*rows, header=("Class", "First answer right", "Queries", "Taken most often for"))
    )


def _strays(answers: Answers) -> str:
    strays = answers.strays()
    if not len(strays):
        return "No query's first neighbour is of another domain."
    rows = [(cell(s.domain), cell(s.found_domain), f"{s.share:.1%}") for s in strays.itertuples()]
    head = ("Query of", "First neighbour of", "Of its queries")
    return "**Across domains:**\n\n" + table(*rows, header=head)


def _picture(name: str, told: str) -> str:
    return f"![{told}]({name})"
