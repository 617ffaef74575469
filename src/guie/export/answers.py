"""Summarise the neighbours that a scored submission finds, as figures and tables for the model card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, replacing, write_text
from guie.data.manifest import Manifest, load_manifest
from guie.export.card import cell, model_card, table
from guie.report.figures import domain_bars, gallery

LEAST_QUERIES = 3  # smallest class in the table of classes
MOST_CLASSES, MOST_STRAYS = 10, 5  # in a table
BANDS = 5  # of distance, each with as many queries


@dataclass(frozen=True)
class Answers:
    """Scores and neighbours of a submission, and the manifest rows of the scored split.

    Attributes: `score`, score.json; `neighbours`, score.neighbours.csv without queries that have no
    positive; `rows` of the manifest.
    """

    score: dict[str, Any]
    neighbours: pd.DataFrame
    rows: pd.DataFrame

    @cached_property
    def first(self) -> pd.DataFrame:
        """One row per query: query, label, domain, image_path, found, found_domain, distance, relevant.

        `found` is the label of the nearest neighbour, and `found_domain` its domain. Of several labels,
        the first counts.
        """
        about = self.rows.drop_duplicates("image_path").set_index("image_path")
        first = self.neighbours[self.neighbours["rank"] == 1].copy()
        for key, name in (("query", ""), ("image_path", "found_")):
            first[f"{name}domain"] = about["domain"].reindex(first[key]).to_numpy()
            labels = about["label"].reindex(first[key]).str.partition("|")[0]
            first["found" if name else "label"] = labels.to_numpy()
        return first

    def examples(self) -> pd.DataFrame:
        """Return the neighbours of one random query per domain."""
        drawn = self.first.groupby("domain").sample(1, random_state=0)
        return self._of(drawn["query"])

    def mistakes(self) -> pd.DataFrame:
        """Return the neighbours of one query per domain: the one with the closest wrong first neighbour."""
        wrong = self.first[self.first["relevant"] == 0].sort_values("distance", kind="stable")
        return self._of(wrong.groupby("domain").head(1).sort_values("domain")["query"])

    def worst_classes(self) -> pd.DataFrame:
        """Return classes by the share of queries whose first neighbour is right, in ascending order.

        Columns: label, right, queries, taken_for (the class most often found instead). Only classes with
        at least LEAST_QUERIES queries, and at least one wrong first neighbour.
        """
        by_label = self.first.groupby("label")["relevant"].agg(right="mean", queries="count")
        by_label = by_label[(by_label["queries"] >= LEAST_QUERIES) & (by_label["right"] < 1)]
        order = by_label.reset_index().sort_values(
            ["right", "queries", "label"], ascending=[True, False, True]
        )
        wrong = self.first[self.first["relevant"] == 0].groupby("label")["found"]
        taken = wrong.agg(lambda found: found.value_counts().index[0])
        worst = order.head(MOST_CLASSES).reset_index(drop=True)
        return worst.assign(taken_for=taken.reindex(worst["label"]).to_numpy())

    def strays(self) -> pd.DataFrame:
        """Return domain, found_domain and share of queries whose first neighbour has another domain."""
        shares = pd.crosstab(self.first["domain"], self.first["found_domain"], normalize="index")
        pairs = shares.stack().rename("share").reset_index()
        pairs = pairs[(pairs["domain"] != pairs["found_domain"]) & (pairs["share"] > 0)]
        return pairs.sort_values("share", ascending=False, kind="stable").head(MOST_STRAYS)

    def trust(self) -> pd.DataFrame:
        """Return the share of right first neighbours per distance band: nearest, farthest, right, queries."""
        bands = pd.qcut(self.first["distance"].rank(method="first"), BANDS, labels=False)
        grouped = self.first.groupby(bands)
        return pd.DataFrame(
            {
                "nearest": grouped["distance"].min(),
                "farthest": grouped["distance"].max(),
                "right": grouped["relevant"].mean(),
                "queries": grouped.size(),
            }
        )

    def _of(self, queries: pd.Series) -> pd.DataFrame:
        by_query = self.neighbours.groupby("query", sort=False)
        return pd.concat(
            [self.neighbours.head(0), *(by_query.get_group(query) for query in queries)]
        )


def read_answers(folder: Path, manifest: Manifest, split: str) -> Answers:
    """Read the answers in a submission's folder.

    Raises UserError if it was not scored, broke the contract, was exported again since, or was scored on
    other images than those of the split.
    """
    score = read_json(folder / "score.json", "score.py writes it")
    facts = read_json(folder / "export.json", "export.py writes it")
    if score.get("verdict") != "keeps_the_contract":
        raise UserError(
            f"{folder / 'score.json'}: verdict {score.get('verdict')}: there are no answers"
        )
    try:
        scored, exported = score["submission"]["sha256"], facts["file"]["sha256"]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder}: score.json or export.json names no submission.zip; export and score it again"
        ) from error
    if scored != exported:
        raise UserError(
            f"{folder / 'score.json'}: belongs to another submission.zip; score it again"
        )
    path = folder / "score.neighbours.csv"
    try:
        neighbours = pd.read_csv(path, dtype={"query": str, "image_path": str})
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; score the submission again") from None
    if set(neighbours.get("submission", [])) != {exported}:
        raise UserError(f"{path}: belongs to another submission.zip; score it again")
    rows = manifest.split(split)
    known = set(rows["image_path"])
    for row, (query, found) in enumerate(
        zip(neighbours["query"], neighbours["image_path"], strict=True), 2
    ):
        if query not in known or found not in known:
            stranger = found if query in known else query
            raise UserError(
                f"{path}: line {row}: {stranger} is not in the {split} split of {manifest.path}; pass the"
                " manifest that the submission was scored on"
            )
    counted = neighbours.groupby("query")["counted"].transform("max") > 0
    if not counted.any():
        raise UserError(f"{path}: no query has a positive, so there is nothing to show")
    return Answers(score, neighbours[counted], rows)


# In a subfolder, which Kaggle's client does not upload, as they show images of the data set
PER_DOMAIN, EXAMPLES, MISTAKES = "card/domains.png", "card/answers.png", "card/mistakes.png"


def draw(answers: Answers, folder: Path, root: Path | None) -> list[str]:
    """Write the figures into the folder, and return their names.

    Args:
        root: of the images; None: no image is shown, and galleries of an earlier call are deleted.
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


def describe_answers(
    folder: Path, manifest: Path, split: str, root: Path | None, images: bool
) -> None:
    """Rewrite card.md with the search results, and draw its figures. Raises UserError without results.

    Args:
        images: show images of the data set, which may not be allowed to be published.
    """
    rows = load_manifest(manifest, root)
    answers = read_answers(folder, rows, split)
    pictures = draw(answers, folder, rows.root if images else None)
    facts = read_json(folder / "export.json", "export.py writes it")
    write_text(folder / "card.md", model_card(facts, sections(answers, pictures)))
    print(f"wrote {folder / 'card.md'}, with {', '.join(pictures)}")


def sections(answers: Answers, pictures: list[str]) -> dict[str, str]:
    """Return Markdown by title, for `model_card`."""
    found, cannot = _finds(answers, pictures), _cannot(answers, pictures)
    return {"What it finds": found, "What it cannot do": cannot}


def _finds(answers: Answers, pictures: list[str]) -> str:
    score, mean = answers.score, answers.score["mean"]
    cost = score["seconds_per_image"]["total"]
    texts = [
        f"Scored as the challenge does, merged index: mMP@5 **{score['pooled']['mmp_at_5']:.3f}** over all"
        f" queries, mean over domains {mean['mmp_at_5']:.3f}, R@1 {mean['r_at_1']:.3f}; {cost * 1e3:.0f} ms"
        f" an image ({score['device']}).",
        f"![mMP@5 of each domain]({PER_DOMAIN})",
    ]
    if EXAMPLES in pictures:
        texts += [
            "One random query of each domain and its neighbours. Green is right; faded images do not"
            " count:",
            f"![queries and their neighbours]({EXAMPLES})",
        ]
    return "\n\n".join(texts)


def _cannot(answers: Answers, pictures: list[str]) -> str:
    texts = [_trust(answers)]
    if MISTAKES in pictures:
        texts += [
            "The closest wrong first neighbour of each domain, that is the most confident error:",
            f"![the nearest wrong answers]({MISTAKES})",
        ]
    texts += [_classes(answers), _strays(answers)]
    turned = answers.score["images_with_exif_rotation"]
    if turned:
        texts.append(
            f"{turned} images have an EXIF rotation. The challenge ignores it, so the model saw them"
            " sideways or upside down."
        )
    return "\n\n".join(text for text in texts if text)


def _trust(answers: Answers) -> str:
    bands = answers.trust()
    rows = [
        (f"{b.nearest:.3f} to {b.farthest:.3f}", f"{b.right:.1%}", f"{b.queries:,}")
        for b in bands.itertuples()
    ]
    return (
        "**It always answers.** The distance of the first neighbour predicts only partly whether it is right:"
        f" even of the nearest fifth, {1 - bands['right'].iloc[0]:.1%} are wrong.\n\n"
        + table(*rows, header=("Distance of the first neighbour", "Right", "Queries"))
    )


def _classes(answers: Answers) -> str:
    worst = answers.worst_classes()
    if not len(worst):
        return f"No class with {LEAST_QUERIES} queries or more has a wrong first neighbour."
    rows = [
        (cell(c.label), f"{c.right:.0%}", c.queries, cell(c.taken_for)) for c in worst.itertuples()
    ]
    return (
        f"**Classes with the lowest scores**, among those with {LEAST_QUERIES} queries or more:\n\n"
        + table(
            *rows, header=("Class", "First neighbour right", "Queries", "Most often confused with")
        )
    )


def _strays(answers: Answers) -> str:
    strays = answers.strays()
    if not len(strays):
        return "No query has a first neighbour from another domain."
    rows = [(cell(s.domain), cell(s.found_domain), f"{s.share:.1%}") for s in strays.itertuples()]
    head = ("Query domain", "Domain of first neighbour", "Share of queries")
    return "**Across domains:**\n\n" + table(*rows, header=head)
