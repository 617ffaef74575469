"""What a scored submission answers: the neighbours that score.py found, beside what is known of them.

`first` is a table of one row a query: its nearest neighbour, and whether that is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json
from guie.data.manifest import Manifest

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
