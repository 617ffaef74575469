"""Pictures that teach: the hardest classes, the surest mistakes, strays between domains, hubs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis import Nearest, strayed, wrong_firsts

MISTAKES, WORST, PAIRS, OF_PAIR, HUBS, OF_HUB, CHANGED = 24, 12, 8, 3, 8, 5, 8
ANSWERS = 5  # shown of a query


class Shown(NamedTuple):
    """A picture, and what it is: `verdict` is right, wrong or "" for the query itself."""

    path: str
    label: str
    domain: str
    verdict: str
    distance: float | None


class Answered(NamedTuple):
    """A query and its first answers."""

    query: Shown
    answers: list[Shown]
    about: str = ""


class Stray(NamedTuple):
    """Queries of one domain that are answered by another."""

    asked: str
    answered: str
    queries: int
    share: float  # of the domain's queries
    examples: list[Answered]


class Hub(NamedTuple):
    """An image that is the wrong first answer of many."""

    image: Shown
    wrong: int
    found: int
    queries: list[Shown]


class Galleries:
    """What is shown of a model's answers; pictures are chosen, not drawn by chance."""

    def __init__(self, near: Nearest, table: pd.DataFrame):
        self.near = near
        columns = ("image_path", "label", "domain")
        self.path_T, self.label_T, self.domain_T = (table[c].to_numpy() for c in columns)
        self.table = table

    def mistakes(self) -> list[Answered]:
        """Queries whose wrong first answer lies nearest, of each domain alike, nearest first."""
        return self._nearest_of(np.flatnonzero(~self.near.right_Q), MISTAKES)

    def worst(self, classes: pd.DataFrame) -> list[Answered]:
        """One query of each of the hardest classes, of each domain in turn, with its answers.

        Args:
            classes: of `by_class`; of one query alone says little and is left out where others are.
        """
        often = classes[(classes["queries"] > 1) & (classes["r_at_1"] < 1)]
        if often.empty:
            often = classes[classes["r_at_1"] < 1]
        turn = often.groupby("domain").cumcount()
        rows = often.iloc[np.argsort(turn.to_numpy(), kind="stable")][:WORST]
        label_Q = self.label_T[self.near.query_Q]
        found = []
        for row in rows.itertuples():
            places = np.flatnonzero((label_Q == row.label) & ~self.near.right_Q)
            nearest = places[np.argmin(self.near.distance_QK[places, 0])]
            right = round(row.r_at_1 * row.queries)
            about = f"{right:,} of {row.queries:,} queries right"
            found.append(self._answered(nearest, ANSWERS, about))
        return found

    def strays(self) -> list[Stray]:
        """The pairs of domains that are confused most, with the nearest mistakes of each."""
        wrong = strayed(self.near, self.table)
        asked = pd.Series(self.domain_T[self.near.query_Q]).value_counts()
        pairs = (
            wrong.groupby(["asked", "answered"]).size().sort_values(ascending=False, kind="stable")
        )
        found = []
        for (one, other), count in pairs[:PAIRS].items():
            own = wrong[(wrong["asked"] == one) & (wrong["answered"] == other)]
            examples = [self._answered(place, 1) for place in own["place"][:OF_PAIR]]
            found.append(Stray(one, other, int(count), count / asked[one], examples))
        return found

    def hubs(self) -> list[Hub]:
        """The images that are the wrong first answer of most queries; of two at the least."""
        near = self.near
        most = wrong_firsts(near)
        found = []
        for hub in most[most["wrong"] > 1][:HUBS].itertuples():
            places = np.flatnonzero(~near.right_Q & (near.found_QK[:, 0] == hub.row))
            places = places[np.argsort(near.distance_QK[places, 0], kind="stable")][:OF_HUB]
            queries = [
                self._shown(near.query_Q[place], "wrong", near.distance_QK[place, 0])
                for place in places
            ]
            found.append(Hub(self._shown(hub.row), int(hub.wrong), int(hub.found), queries))
        return found

    def changed(self, other: Nearest) -> tuple[list[Answered], list[Answered]]:
        """Queries that this model answers right and the other wrong, and the other way round.

        Shown is what the one that is wrong found.
        """
        won = np.flatnonzero(self.near.right_Q & ~other.right_Q)
        lost = np.flatnonzero(~self.near.right_Q & other.right_Q)
        of_other = Galleries(other, self.table)
        return of_other._nearest_of(won, CHANGED), self._nearest_of(lost, CHANGED)

    def _nearest_of(self, places: np.ndarray, count: int) -> list[Answered]:
        """Those whose first answer lies nearest, of each domain in turn; then nearest first."""
        distance_Q = self.near.distance_QK[:, 0]
        order = places[np.argsort(distance_Q[places], kind="stable")]
        turn = pd.Series(order).groupby(self.domain_T[self.near.query_Q[order]]).cumcount()
        chosen = order[np.argsort(turn.to_numpy(), kind="stable")][:count]
        chosen = chosen[np.argsort(distance_Q[chosen], kind="stable")]
        return [self._answered(place, 1) for place in chosen]

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
        far = None if distance is None else float(distance)
        return Shown(self.path_T[row], self.label_T[row], self.domain_T[row], verdict, far)
