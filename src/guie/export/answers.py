"""Summarise the neighbours that a scored submission finds, as figures and tables for the model card."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, replacing, write_text
from guie.data.manifest import Manifest, load_manifest
from guie.export.card import render
from guie.report.figures import domain_bars, gallery

LEAST_QUERIES = 3  # smallest class in the table of classes
MOST_CLASSES, MOST_STRAYS = 10, 5  # in a table
BANDS = 5  # of distance, each with as many queries
# In a subfolder, which Kaggle's client does not upload, as they show images of the data set
PICTURES = {
    "domains": "card/domains.png",
    "examples": "card/answers.png",
    "mistakes": "card/mistakes.png",
}


@dataclass(frozen=True)
class Answers:
    """Scores and neighbours of a submission."""

    score: dict[str, Any]  # score.json
    neighbours: pd.DataFrame  # score.neighbours.csv without queries that have no positive
    rows: pd.DataFrame  # of the manifest, of the scored split

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
        return self.neighbours.set_index("query").loc[drawn["query"]].reset_index()

    def mistakes(self) -> pd.DataFrame:
        """Return the neighbours of one query per domain: the one with the closest wrong first neighbour."""
        wrong = self.first[self.first["relevant"] == 0].sort_values("distance", kind="stable")
        closest = wrong.groupby("domain").head(1).sort_values("domain")
        return self.neighbours.set_index("query").loc[closest["query"]].reset_index()

    def worst_classes(self) -> pd.DataFrame:
        """Return classes by the share of queries whose first neighbour is right, in ascending order.

        Columns: label, right, queries, taken_for (the class most often found instead). Only classes with
        at least LEAST_QUERIES queries, and at least one wrong first neighbour.
        """
        by_label = self.first.groupby("label")["relevant"].agg(right="mean", queries="count")
        by_label = by_label[(by_label["queries"] >= LEAST_QUERIES) & (by_label["right"] < 1)]
        order, rising = ["right", "queries", "label"], [True, False, True]
        ordered = by_label.reset_index().sort_values(order, ascending=rising)
        wrong = self.first[self.first["relevant"] == 0].groupby("label")["found"]
        taken = wrong.agg(lambda found: found.value_counts().index[0])
        worst = ordered.head(MOST_CLASSES).reset_index(drop=True)
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
        return self.first.groupby(bands).agg(
            nearest=("distance", "min"),
            farthest=("distance", "max"),
            right=("relevant", "mean"),
            queries=("distance", "size"),
        )


def read_answers(folder: Path, manifest: Manifest, split: str) -> Answers:
    """Read the answers in a submission's folder.

    Raises UserError if it was not scored, broke the contract, was exported again since, or was scored on
    other images than those of the split.
    """
    score = read_json(folder / "score.json", "score.py writes it")
    facts = read_json(folder / "export.json", "export.py writes it")
    if (verdict := score.get("verdict")) != "keeps_the_contract":
        raise UserError(f"{folder / 'score.json'}: verdict {verdict}: there are no answers")
    exported = facts.get("file") or {}  # bytes and sha256
    other = "belongs to another submission.zip; score it again"
    if score.get("submission") != exported:
        raise UserError(f"{folder / 'score.json'}: {other}")
    path = folder / "score.neighbours.csv"
    try:
        neighbours = pd.read_csv(path, dtype={"query": str, "image_path": str})
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}; score the submission again") from None
    if set(neighbours.get("submission", [])) != {exported.get("sha256")}:
        raise UserError(f"{path}: {other}")
    rows = manifest.split(split)
    pairs = neighbours[["query", "image_path"]]
    absent = ~pairs.isin(set(rows["image_path"]))
    if absent.any(axis=None):
        row = absent.any(axis=1).idxmax()
        name = pairs.loc[row][absent.loc[row]].iloc[0]
        wrong = f"{name} is not in the {split} split of {manifest.path}"
        remedy = "pass the manifest that the submission was scored on"
        raise UserError(f"{path}: line {row + 2}: {wrong}; {remedy}")
    counted = neighbours.groupby("query")["counted"].transform("max") > 0
    if not counted.any():
        raise UserError(f"{path}: no query has a positive, so there is nothing to show")
    return Answers(score, neighbours[counted], rows)


def describe_answers(
    folder: Path, manifest: Path, split: str, root: Path | None, images: bool
) -> None:
    """Rewrite card.md with the search results, and draw its figures. Raises UserError without results.

    `images` of the data set may not be allowed to be published. Without them, galleries of an earlier call
    are deleted.
    """
    rows = load_manifest(manifest, root)
    answers = read_answers(folder, rows, split)
    scores = pd.DataFrame(answers.score["domains"]).T["mmp_at_5"].astype(float).dropna()
    figures = {"domains": domain_bars(scores.to_frame("mMP@5"), "mMP@5")}
    found = {"examples": answers.examples(), "mistakes": answers.mistakes()} if images else {}
    for name, neighbours in found.items():
        if len(neighbours):
            figures[name] = gallery(neighbours, answers.rows, rows.root)
    for name, file in PICTURES.items():
        if name in figures:
            with replacing(folder / file) as temporary:
                figures[name].savefig(temporary, dpi=100, format="png")
        else:
            (folder / file).unlink(missing_ok=True)
    pictures = {name: PICTURES[name] if name in figures else "" for name in PICTURES}
    facts = read_json(folder / "export.json", "export.py writes it")
    shown = {"answers": answers, "pictures": pictures, "least": LEAST_QUERIES}
    write_text(folder / "card.md", render("submission.md.j2", facts, **shown))
    print(f"wrote {folder / 'card.md'}, with {', '.join(filter(None, pictures.values()))}")
