"""What a scored submission finds: its neighbours, and the pictures and tables that the card shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, replacing
from guie.data.manifest import Manifest
from guie.export.card import cell, table
from guie.report.figures import domain_bars, gallery

LEAST_QUERIES = 3  # of a class of which something is said
BANDS = 5  # of distance, as many queries in each


@dataclass(frozen=True)
class Answers:
    """score.json and score.neighbours.csv of a submission's folder, and the manifest's rows of that split.

    Attributes: `neighbours`, as the scorer wrote them, without queries that have no positive.
    """

    score: dict[str, Any]
    neighbours: pd.DataFrame
    rows: pd.DataFrame

    @cached_property
    def first(self) -> pd.DataFrame:
        """A row a query: query, label, domain, image_path, found, found_domain, distance, relevant.

        `found` and `found_domain` are of the nearest neighbour; the first label of several counts.
        """
        about = self.rows.drop_duplicates("image_path").set_index("image_path")
        first = self.neighbours[self.neighbours["rank"] == 1].copy()
        for key, name in (("query", ""), ("image_path", "found_")):
            first[f"{name}domain"] = about["domain"].reindex(first[key]).to_numpy()
            labels = about["label"].reindex(first[key]).str.partition("|")[0]
            first["found" if name else "label"] = labels.to_numpy()
        return first

    def examples(self, seed: int = 0) -> pd.DataFrame:
        """The neighbours of one query of each domain, drawn at random: neither the best nor the worst."""
        drawn = self.first.groupby("domain").sample(1, random_state=seed)
        return self._of(drawn["query"])

    def mistakes(self) -> pd.DataFrame:
        """The neighbours of the query of each domain whose wrong first answer lies nearest to it."""
        wrong = self.first[self.first["relevant"] == 0].sort_values("distance", kind="stable")
        return self._of(wrong.groupby("domain").head(1).sort_values("domain")["query"])

    def worst_classes(self, most: int = 10) -> pd.DataFrame:
        """Classes by the share of their queries whose first answer is right, the lowest first.

        Columns: label, right, queries, taken_for (the class most often found instead). Only classes of
        LEAST_QUERIES queries and more, one of which went wrong.
        """
        by_label = self.first.groupby("label")["relevant"].agg(right="mean", queries="count")
        by_label = by_label[(by_label["queries"] >= LEAST_QUERIES) & (by_label["right"] < 1)]
        order = by_label.reset_index().sort_values(
            ["right", "queries", "label"], ascending=[True, False, True]
        )
        wrong = self.first[self.first["relevant"] == 0].groupby("label")["found"]
        taken = wrong.agg(lambda found: found.value_counts().index[0])
        worst = order.head(most).reset_index(drop=True)
        return worst.assign(taken_for=taken.reindex(worst["label"]).to_numpy())

    def strays(self, most: int = 5) -> pd.DataFrame:
        """Domains whose queries find another's image first: domain, found_domain, share, falling."""
        shares = pd.crosstab(self.first["domain"], self.first["found_domain"], normalize="index")
        pairs = shares.stack().rename("share").reset_index()
        pairs = pairs[(pairs["domain"] != pairs["found_domain"]) & (pairs["share"] > 0)]
        return pairs.sort_values("share", ascending=False, kind="stable").head(most)

    def trust(self) -> pd.DataFrame:
        """How often the first answer is right, by its distance: nearest, farthest, right, queries."""
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
        return (
            pd.concat([by_query.get_group(query) for query in queries])
            if len(queries)
            else (self.neighbours.head(0))
        )


def read_answers(folder: Path, manifest: Manifest, split: str) -> Answers:
    """The answers in a submission's folder.

    Raises UserError where it was not scored, broke the contract, was exported anew since, or was scored
    on other images than the split's.
    """
    score = read_json(folder / "score.json", "score.py writes it")
    facts = read_json(folder / "export.json", "export.py writes it")
    if score.get("verdict") != "keeps_the_contract":
        raise UserError(f"{folder / 'score.json'}: {score.get('verdict')}: there are no answers")
    if score["submission"]["sha256"] != facts["file"]["sha256"]:
        raise UserError(f"{folder / 'score.json'}: is of another submission.zip; score it again")
    path = folder / "score.neighbours.csv"
    try:
        neighbours = pd.read_csv(path, dtype={"query": str, "image_path": str})
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; score the submission again") from None
    if set(neighbours.get("submission", [])) != {facts["file"]["sha256"]}:
        raise UserError(f"{path}: is of another submission.zip; score it again")
    rows = manifest.split(split)
    known = set(rows["image_path"])
    for row, (query, found) in enumerate(
        zip(neighbours["query"], neighbours["image_path"], strict=True), 2
    ):
        if query not in known or found not in known:
            stranger = found if query in known else query
            raise UserError(
                f"{path}: line {row}: {stranger} is not in the {split} split of {manifest.path}; give the"
                " manifest that it was scored on"
            )
    counted = neighbours.groupby("query")["counted"].transform("max") > 0
    if not counted.any():
        raise UserError(f"{path}: no query has a positive: there is nothing to show")
    return Answers(score, neighbours[counted], rows)


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


def _picture(name: str, message: str) -> str:
    return f"![{message}]({name})"
