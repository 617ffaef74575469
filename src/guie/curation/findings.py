"""The findings of cleaning as one table, and a person's verdicts on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.curation.duplicates.limits import Grade
from guie.data.manifest.reading import read_csv_rows
from guie.report.pages.mix import evidence

# copy: exact, near, or empty.
# distance: hash bits between copies; for outliers, cosine to another class minus cosine to their own.
# difference: pixel difference of two pictures; limit: its maximum for that kind.
# sure: enough evidence to act on; confirmed: by a person's verdict; labels: of a placeholder, how many.
COLUMNS = [
    *("kind", "image_path", "other_path", "label", "other_label", "split", "other_split", "copy"),
    *("distance", "similarity", "difference", "limit", "sure", "confirmed", "labels", "action"),
]
DEFAULTS = {"copy": "", "difference": np.nan, "limit": np.nan}
DEFAULTS |= {"sure": True, "confirmed": False, "labels": 0}
SHOWN = 10
REMEDIES = {
    "leak": "training images are copies of val or test images; set clean.leaks to drop_train to"
    " drop them, or to declared to keep them",
    "conflict": "images have a copy with other labels; set clean.conflicts to drop_all, keep_first"
    " or report to continue",
}
VERDICTS = ["", "copy", "not a copy"]
KEY = ["image_path", "other_path"]
VERDICT_COLUMNS = [*KEY, "verdict", "kind", "action", "difference", "limit", "label", "other_label"]
UNMEASURED = {"distance": 64, "similarity": 0.0}  # of a pair that only a verdict links


def findings(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of findings in the given order, indexed from 0."""
    found = [table.assign(**DEFAULTS | dict(table))[COLUMNS] for table in tables if len(table)]
    if not found:
        return pd.DataFrame(columns=COLUMNS).astype({"copy": str, "sure": bool, "confirmed": bool})
    return pd.concat(found, ignore_index=True)


def stops(rows: pd.DataFrame) -> str:
    """Return the remedy and a list of the findings whose action is `stop`; "" without any."""
    found = rows[rows["action"] == "stop"]
    for kind, of_kind in found.groupby("kind", sort=False):
        lines = [
            f"{pair['image_path']} ({pair['split']}, {pair['label']}) and {pair['other_path']}"
            f" ({pair['other_split']}, {pair['other_label']}): {evidence(pair)}"
            for pair in of_kind.head(SHOWN).to_dict("records")
        ]
        more = [f"and {len(of_kind) - SHOWN:,} more"] if len(of_kind) > SHOWN else []
        return "\n".join([f"{len(of_kind):,} {REMEDIES[kind]}:", *lines, *more])
    return ""


def too_many(
    rows: pd.DataFrame, trained: pd.DataFrame, gone: pd.DataFrame, share_max: float
) -> list[str]:
    """Describe each domain that would lose more than `share_max` of its training rows to a rule's findings.

    Exact copies within a class do not count, because dropping them loses no information. One image may
    always be dropped. `trained` are the training rows before the rule, `gone` those that it drops.
    """
    equal = rows.loc[rows["kind"] == "exact duplicate", "image_path"]
    gone = gone[~gone["image_path"].isin(equal)]
    own, lost = trained["domain"].value_counts(), gone["domain"].value_counts()
    return [
        f"{count:,} of {own[domain]:,} training images of {domain} ({count / own[domain]:.1%})"
        for domain, count in lost.items()
        if count > max(share_max * own[domain], 1)
    ]


def dropped(rows: pd.DataFrame) -> set[str]:
    """Return the paths of the training images that the findings drop."""
    # if both images are dropped, the other one has its own finding
    return set(rows.loc[rows["action"].isin(("dropped", "both dropped")), "image_path"])


@dataclass(frozen=True)
class Verdicts:
    """The verdict table stored next to the mix; only rows with a verdict have an effect."""

    path: Path
    table: pd.DataFrame  # VERDICT_COLUMNS and any columns that users added, all text

    @classmethod
    def read(cls, path: Path) -> Verdicts:
        """Read the table at `path`; empty if there is none. Raises UserError naming a malformed line."""
        if not path.exists():
            return cls(path, pd.DataFrame(columns=VERDICT_COLUMNS, dtype=str))
        rows = read_csv_rows(path)
        table = rows.table
        if missing := {*KEY, "verdict"} - set(table):
            raise UserError(f"{path}: no column {', '.join(sorted(missing))}; add it or delete it")
        table["verdict"] = table["verdict"].str.strip().str.lower()
        wrong = np.flatnonzero(~table["verdict"].isin(VERDICTS))
        if len(wrong):
            raise UserError(
                f"{path}: line {rows.places[wrong[0]]}: invalid verdict"
                f" {table['verdict'][wrong[0]]!r}; write copy, not a copy, or nothing"
            )
        added = [name for name in VERDICT_COLUMNS if name not in table]
        return cls(path, table.reindex(columns=[*table, *added], fill_value=""))

    @property
    def given(self) -> pd.DataFrame:
        """The rows that have a verdict; if a pair is listed twice, its last row."""
        rows = self.table[self.table["verdict"] != ""]
        return rows[~_pairs(rows).duplicated(keep="last")]

    def unknown(self, images: Collection[str]) -> list[str]:
        """Return the names in rows with a verdict that match no image."""
        return sorted({*self.given[KEY].to_numpy().ravel()} - {*images})

    def applied(self, pairs: pd.DataFrame, pictures: pd.Series) -> pd.DataFrame:
        """Return the pairs with `copy` verdicts as SURE, and without the `not a copy` pairs, sorted.

        Args:
            pairs: columns first, second (pictures), and those of `Links.near`.
            pictures: image_path -> number of its picture; verdicts on other images are ignored.

        Raises UserError if a verdict says that equal pictures are not copies.
        """
        given = self.given
        given = given[given[KEY].isin(pictures.index).all(axis=1)]
        ends = np.sort(np.stack([pictures[given[name]] for name in KEY], axis=1))
        same = pd.Series(ends[:, 0] == ends[:, 1], given.index)
        if (wrong := same & (given["verdict"] != "copy")).any():
            one, other = given.loc[wrong, KEY].iloc[0]
            raise UserError(
                f"{self.path}: {one} and {other} have equal pixels, so they are copies; remove one"
                " of them, or set clean.exact to report to keep both"
            )
        both = ["first", "second"]
        verdicts = pd.DataFrame(ends, columns=both).assign(verdict=given["verdict"].to_numpy())
        verdicts = verdicts[~same.to_numpy()].drop_duplicates(both, keep="last")
        pairs = pairs.merge(verdicts, how="outer", on=both)
        pairs = pairs[pairs["verdict"] != "not a copy"].fillna(UNMEASURED)
        confirmed = pairs["verdict"] == "copy"
        return pairs.assign(confirmed=confirmed, grade=pairs["grade"].mask(confirmed, Grade.SURE))

    def write(self, findings: pd.DataFrame) -> None:
        """Append the near pairs of the findings to the earlier verdicts, doubtful pairs first.

        All verdicts are kept, and rows with text in a column that a user added.
        """
        pairs = findings[findings["copy"] == "near"].round({"limit": 4}).assign(verdict="")
        pairs = pairs.sort_values(["sure", "difference", *KEY])
        foreign = self.table.drop(columns=VERDICT_COLUMNS)
        noted = self.table[(foreign != "").any(axis=1) & ~self.table.index.isin(self.given.index)]
        kept = pd.concat([self.given, noted], ignore_index=True)
        new = ~_pairs(pairs).duplicated() & ~_pairs(pairs).isin(_pairs(kept))
        added = pairs.loc[new, VERDICT_COLUMNS].astype(str)
        rows = pd.concat([kept, added], ignore_index=True).fillna("")
        if len(rows) or self.path.exists():
            with replacing(self.path) as temporary:
                rows.to_csv(temporary, index=False)


def _pairs(rows: pd.DataFrame) -> pd.Series:
    """Return the two images of each row as an unordered pair."""
    pairs = [frozenset(pair) for pair in zip(rows[KEY[0]], rows[KEY[1]], strict=True)]
    return pd.Series(pairs, rows.index, dtype=object)
