"""Pictures of the evaluation page: galleries of answers, and a map of queries."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis import Nearest, strayed, wrong_firsts
from guie.evaluation.knn import Embeddings
from guie.evaluation.reduction import balanced_sample
from guie.report.figures import project
from guie.report.pages.html import Pictures

MISTAKES, WORST, PAIRS, OF_PAIR, HUBS, OF_HUB, CHANGED = 24, 12, 8, 3, 8, 5, 8
ANSWERS = 5  # shown for a query
POINTS = 720  # of the map; each has two pictures: the query and its first answer
LEAST = 10  # queries for a map
SIDE = 1000  # of the map, in its own units
MARGIN = 20
THUMBNAIL_PX = 64


class Shown(NamedTuple):
    """A picture and its labels; `verdict` is right, wrong, or "" for the query itself."""

    path: str
    label: str
    verdict: str
    distance: float | None


class Answered(NamedTuple):
    """A query and its first answers."""

    query: Shown
    answers: list[Shown]
    about: str = ""


class Galleries:
    """The galleries of a model's answers; pictures are chosen by rule, not at random."""

    def __init__(self, near: Nearest, table: pd.DataFrame):
        self.near, self.table = near, table
        columns = ("image_path", "label", "domain")
        self.path_T, self.label_T, domain_T = (table[column].to_numpy() for column in columns)
        self.domain_Q = domain_T[near.query_Q]
        self.distance_Q = near.distance_QK[:, 0]  # of the first answer

    def mistakes(self) -> list[Answered]:
        """Return the queries with the nearest wrong first answers, balanced over domains."""
        return self._nearest_of(~self.near.right_Q, MISTAKES)

    def worst(self, classes: pd.DataFrame) -> list[Answered]:
        """Return one query with answers for each of the hardest classes, from each domain in turn.

        Classes of `by_class` with one query are used only if no class with more queries has errors.
        """
        hard = classes[classes["r_at_1"] < 1]
        often = hard[hard["queries"] > 1]
        rows = _in_turn(hard if often.empty else often, "domain")[:WORST]
        label_Q = self.label_T[self.near.query_Q]
        found = []
        for row in rows.itertuples():
            places = np.flatnonzero((label_Q == row.label) & ~self.near.right_Q)
            right = round(row.r_at_1 * row.queries)
            about = f"{right:,} of {row.queries:,} queries right"
            nearest = places[np.argmin(self.distance_Q[places])]
            found.append(self._answered(nearest, ANSWERS, about))
        return found

    def strays(self) -> list[dict[str, Any]]:
        """Return the most confused pairs of domains, with the nearest mistakes of each.

        Keys: query_domain, answer_domain, queries, share (of the domain's queries), examples.
        """
        wrong = strayed(self.near, self.table)
        queries = pd.Series(self.domain_Q).value_counts()
        sizes = wrong.groupby(["query", "answer"]).size()
        found = []
        largest = sizes.sort_values(ascending=False, kind="stable")[:PAIRS]
        for (one, other), count in largest.items():
            own = wrong[(wrong["query"] == one) & (wrong["answer"] == other)]
            examples = [self._answered(place, 1) for place in own["place"][:OF_PAIR]]
            pair = {"query_domain": one, "answer_domain": other, "queries": int(count)}
            found.append(pair | {"share": count / queries[one], "examples": examples})
        return found

    def hubs(self) -> list[dict[str, Any]]:
        """Return the images that are the wrong first answer of most queries, at least of two.

        Keys: image, wrong (queries), found (queries with it among the first ten), queries (some).
        """
        most = wrong_firsts(self.near)
        found = []
        for hub in most[most["wrong"] > 1][:HUBS].itertuples():
            places = np.flatnonzero(~self.near.right_Q & (self.near.found_QK[:, 0] == hub.row))
            places = places[np.argsort(self.distance_Q[places], kind="stable")][:OF_HUB]
            queries = [
                self._shown(self.near.query_Q[place], "wrong", self.distance_Q[place])
                for place in places
            ]
            counts = {"wrong": int(hub.wrong), "found": int(hub.found)}
            found.append({"image": self._shown(hub.row), **counts, "queries": queries})
        return found

    def changed(self, other: Nearest) -> dict[str, list[Answered]]:
        """Return the queries that only this model answers right (won), or only the other (lost).

        Each query is shown with the answer of the model that is wrong.
        """
        won, lost = self.near.right_Q & ~other.right_Q, ~self.near.right_Q & other.right_Q
        of_other = Galleries(other, self.table)._nearest_of(won, CHANGED)
        return {"won": of_other, "lost": self._nearest_of(lost, CHANGED)}

    def _nearest_of(self, chosen_Q: np.ndarray, count: int) -> list[Answered]:
        """Choose queries with the nearest first answers, from each domain in turn; sort by distance."""
        queries = pd.DataFrame({"domain": self.domain_Q, "distance": self.distance_Q})[chosen_Q]
        ranked = _in_turn(queries.sort_values("distance", kind="stable"), "domain")[:count]
        places = ranked.sort_values("distance", kind="stable").index
        return [self._answered(place, 1) for place in places]

    def _answered(self, place: int, answers: int, about: str = "") -> Answered:
        near = self.near
        shown = [
            self._shown(row, "right" if right else "wrong", distance)
            for row, right, distance in zip(
                near.found_QK[place], near.relevant_QK[place], near.distance_QK[place], strict=True
            )
            if row >= 0
        ]
        return Answered(self._shown(near.query_Q[place]), shown[:answers], about)

    def _shown(self, row: int, verdict: str = "", distance: float | None = None) -> Shown:
        distance = None if distance is None else float(distance)
        return Shown(self.path_T[row], self.label_T[row], verdict, distance)


def _in_turn(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sort rows so that the first of each group come first, then the second of each, and so on."""
    turns = rows.groupby(column).cumcount().to_numpy()
    return rows.iloc[np.argsort(turns, kind="stable")]


def query_map(
    near: Nearest, table: pd.DataFrame, vectors: Embeddings, picture: Pictures | None
) -> dict[str, Any] | None:
    """Map a sample of queries, balanced over domains, by t-SNE.

    Returns None if there is no common space (a specialist for each domain), or too few queries. Else `points`
    (x and y from 0 to SIDE, the query, its first answer), `queries` (the number of queries sampled from) and
    `pictures` (thumbnails of both, by path).
    """
    if not isinstance(vectors, np.ndarray) or len(near.query_Q) < LEAST:
        return None
    first = {"answer": near.found_QK[:, 0], "distance": near.distance_QK[:, 0]}
    queries = table.iloc[near.query_Q].assign(row=near.query_Q, right=near.right_Q, **first)
    sample = balanced_sample(queries, max(1, POINTS // queries["domain"].nunique()), seed=0)
    sample = sample.head(POINTS)
    answers = table.iloc[sample["answer"]]
    xy_N2 = project(vectors[sample["row"]])
    low, high = xy_N2.min(axis=0), xy_N2.max(axis=0)
    scale = (SIDE - 2 * MARGIN) / max(float((high - low).max()), 1e-9)  # of both axes
    xy_N2 = (xy_N2 - (low + high) / 2).astype(np.float64) * scale + SIDE / 2
    points = sample[["domain", "label", "right"]].reset_index(drop=True)
    points[["x", "y"]] = xy_N2.round(1)
    points["path"] = sample["image_path"].to_numpy()
    points["answer"] = answers["label"].to_numpy()
    points["answer_path"] = answers["image_path"].to_numpy()
    points["distance"] = [round(float(distance), 3) for distance in sample["distance"]]
    pictures = picture and {
        path: picture(path, THUMBNAIL_PX)._asdict()
        for path in dict.fromkeys([*points["path"], *points["answer_path"]])
    }
    found = {"points": points.to_dict("records"), "pictures": pictures}
    return found | {"queries": len(near.query_Q)}
