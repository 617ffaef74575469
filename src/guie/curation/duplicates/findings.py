"""What cleaning found, as one table, and a person's verdicts on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.curation.duplicates.evidence import Grade
from guie.data.manifest.reading import read_csv_rows
from guie.report.pages.mix import evidence

# copy: exact, near, or empty.
# distance: bits between the hashes of copies; how much nearer another class is than an outlier's own.
# difference: of two pictures by their pixels; limit: what it may be for that kind.
# sure: enough evidence to act upon; said: by a person. labels: that a placeholder stands under.
COLUMNS = [
    *("kind", "image_path", "other_path", "label", "other_label", "split", "other_split", "copy"),
    *("distance", "similarity", "difference", "limit", "sure", "said", "labels", "action"),
]
UNTOLD = {"copy": "", "difference": np.nan, "limit": np.nan, "sure": True, "said": False}
UNTOLD |= {"labels": 0}
SHOWN = 10
REMEDIES = {
    "leak": "training images are copies of val or test images; clean.leaks: drop_train leaves"
    " them out, declared keeps them",
    "conflict": "images have a copy with other labels; clean.conflicts: drop_all, keep_first or"
    " report goes on",
}


def findings(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several, in the order given, indexed from 0."""
    tables = []
    for table in parts:
        if len(table):
            untold = {name: value for name, value in UNTOLD.items() if name not in table}
            tables.append(table.assign(**untold)[COLUMNS])
    if not tables:
        return pd.DataFrame(columns=COLUMNS).astype({"copy": str, "sure": bool, "said": bool})
    return pd.concat(tables, ignore_index=True)


def refuse(rows: pd.DataFrame) -> None:
    """Raise UserError with the images that the config wants to stop at, if there are any."""
    for kind, remedy in REMEDIES.items():
        stops = rows[(rows["kind"] == kind) & (rows["action"] == "stop")]
        if stops.empty:
            continue
        more = [f"and {len(stops) - SHOWN:,} more"] if len(stops) > SHOWN else []
        lines = [_line(pair) for pair in stops.head(SHOWN).to_dict("records")]
        raise UserError("\n".join([f"{len(stops):,} {remedy}:", *lines, *more]))


def too_many(
    rows: pd.DataFrame, trained: pd.DataFrame, gone: pd.DataFrame, share_max: float
) -> list[str]:
    """What a rule would take of a domain's training rows, where that is more than `share_max`.

    Copies of equal pixels within a class do not count: nothing is lost with them. One image may
    always go.

    Args:
        rows: the findings of one rule.
        trained: the training rows that it was given.
        gone: those of them that it takes.
    """
    equal = rows.loc[rows["kind"] == "exact duplicate", "image_path"]
    if len(equal):
        gone = gone[~gone["image_path"].isin(equal)]
    own, lost = trained["domain"].value_counts(), gone["domain"].value_counts()
    return [
        f"{count:,} of {own[domain]:,} training images of {domain} ({count / own[domain]:.1%})"
        for domain, count in lost.items()
        if count > max(share_max * own[domain], 1)
    ]


def dropped(rows: pd.DataFrame) -> set[str]:
    """Paths of the training images that the findings leave out."""
    # where both are dropped, the other one has a finding of its own
    return set(rows.loc[rows["action"].isin(("dropped", "both dropped")), "image_path"])


def _line(pair: dict) -> str:
    return (
        f"{pair['image_path']} ({pair['split']}, {pair['label']}) and {pair['other_path']}"
        f" ({pair['other_split']}, {pair['other_label']}): {evidence(pair)}"
    )


WORDS = {"copy": True, "not a copy": False}
KEY = ["image_path", "other_path"]
# of a pair that nothing but a person's word makes one
UNMEASURED = {"distance": 64, "similarity": 0.0}
UNMEASURED |= dict.fromkeys(["difference", "sure_limit", "copy_limit"], np.nan)
VERDICT_COLUMNS = [*KEY, "verdict", "kind", "action", "difference", "limit", "label", "other_label"]


@dataclass(frozen=True)
class Verdicts:
    """The table as it lies beside the mix; of its rows those count that have a verdict."""

    path: Path
    table: pd.DataFrame  # COLUMNS, and those that somebody has added, all text

    @classmethod
    def read(cls, path: Path) -> Verdicts:
        """The table at `path`, empty where there is none.

        Raises UserError naming the line that is no row, or says anything but `copy` and `not a copy`.
        """
        if not path.exists():
            return cls(path, pd.DataFrame(columns=VERDICT_COLUMNS, dtype=str))
        rows = read_csv_rows(path)
        table = rows.table
        missing = {*KEY, "verdict"} - set(table)
        if missing:
            raise UserError(f"{path}: no column {', '.join(sorted(missing))}; mend or delete it")
        table["verdict"] = table["verdict"].str.strip().str.lower()
        wrong = np.flatnonzero(~table["verdict"].isin(["", *WORDS]))
        if len(wrong):
            raise UserError(
                f"{path}: line {rows.places[wrong[0]]}: verdict {table['verdict'][wrong[0]]!r};"
                " write copy, not a copy, or nothing"
            )
        added = [name for name in VERDICT_COLUMNS if name not in table]
        return cls(path, table.reindex(columns=[*table, *added], fill_value=""))

    @property
    def given(self) -> pd.DataFrame:
        """The rows that have a verdict; of a pair that stands twice the last one."""
        said = self.table[self.table["verdict"] != ""]
        return said[~_pairs(said).duplicated(keep="last")]

    def unknown(self, images: Collection[str]) -> list[str]:
        """Names in rows with a verdict that no image has."""
        named = self.given[KEY].to_numpy().ravel()
        return sorted({*named} - {*images})

    def applied(self, pairs: pd.DataFrame, pictures: pd.Series) -> pd.DataFrame:
        """The pairs, with what is a copy beyond doubt, and without what is none.

        Args:
            pairs: columns first, second (pictures), and those of `Links.near`.
            pictures: image_path -> number of its picture. Images that are not there are passed over.

        Raises UserError where equal pictures are said to be no copies.
        """
        given = self.given
        given = given[given["image_path"].isin(pictures.index)]
        given = given[given["other_path"].isin(pictures.index)]
        ends = [pictures[given[name]].to_numpy(np.int64) for name in KEY]
        first, second = np.minimum(*ends), np.maximum(*ends)
        copy = given["verdict"].map(WORDS).to_numpy(bool)
        equal = np.flatnonzero((first == second) & ~copy)
        if len(equal):
            one, other = given.iloc[equal[0]][KEY]
            raise UserError(
                f"{self.path}: {one} and {other} have equal pixels, so they are copies; leave out"
                " one of them, or clean.exact: report keeps both"
            )
        said = dict(zip(zip(first.tolist(), second.tolist(), strict=True), copy, strict=True))
        found = list(zip(pairs["first"], pairs["second"], strict=True))
        word = pd.Series([said.get(pair) for pair in found], pairs.index, dtype=object)
        pairs = pairs.assign(
            said=word.eq(True), grade=pairs["grade"].mask(word.eq(True), Grade.SURE)
        )
        pairs = pairs[~word.eq(False)].reset_index(drop=True)
        known = {*found}
        more = [p for p, is_copy in said.items() if is_copy and p not in known and p[0] != p[1]]
        if not more:
            return pairs
        added = pd.DataFrame(more, columns=["first", "second"])
        added = added.assign(**UNMEASURED, said=True, grade=Grade.SURE)
        return pd.concat([pairs, added], ignore_index=True)

    def write(self, findings: pd.DataFrame) -> None:
        """Write the near pairs of the findings, doubtful ones first, after what was said before.

        A verdict stays, whether its pair is found again or not; so does a row with text in a column
        that is not ours.
        """
        pairs = findings[findings["copy"] == "near"].round({"limit": 4}).assign(verdict="")
        pairs = pairs.sort_values(["sure", "difference", *KEY])
        foreign = self.table.drop(columns=VERDICT_COLUMNS)
        noted = self.table[(foreign != "").any(axis=1) & ~self.table.index.isin(self.given.index)]
        kept = pd.concat([self.given, noted], ignore_index=True)
        new = ~_pairs(pairs).duplicated() & ~_pairs(pairs).isin(_pairs(kept))
        rows = pd.concat(
            [kept, pairs.loc[new, VERDICT_COLUMNS].astype(str)], ignore_index=True
        ).fillna("")
        if rows.empty and not self.path.exists():
            return
        with replacing(self.path) as temporary:
            rows.to_csv(temporary, index=False)


def _pairs(rows: pd.DataFrame) -> pd.Series:
    """The two images of each row, in whatever order they stand."""
    pairs = [frozenset(pair) for pair in zip(rows[KEY[0]], rows[KEY[1]], strict=True)]
    return pd.Series(pairs, rows.index, dtype=object)
