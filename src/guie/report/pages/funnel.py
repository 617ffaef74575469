"""What each rule left of each dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from guie.data.manifest.memberships import memberships

KEYS = ["dataset", "domain"]
COLUMNS = [*KEYS, "rule", "classes", "images"]
NAMES = {
    "read": "found",
    "unusable": "readable",
    "pseudo_labels": "labelled",
    "leaks": "without leaks",
    "conflicts": "without conflicts",
    "duplicates": "without duplicates",
    "outliers": "without outliers",
    "min_images": "classes large enough",
    "max_images": "capped",
    "shares": "domains matched",
    "leaks into val": "compared with val",
    "selection": "selected",
}


class Stage(NamedTuple):
    """What is left after a rule."""

    name: str
    classes: int
    images: int
    lost: int  # images that this rule took
    share: float  # of the images found, or of those that later rules moved here


class Funnel(NamedTuple):
    """The stages of one domain of one dataset, or of them all."""

    dataset: str
    domain: str
    stages: list[Stage]


def left_after(stages: Mapping[str, pd.DataFrame], dataset: str = "") -> pd.DataFrame:
    """What is left after each rule, by dataset and domain; a class trained and tested counts twice.

    Args:
        stages: tables, each the result of the rule that names it; the first is what was found.
        dataset: names rows that the tables' own `dataset` column does not.

    Returns:
        Columns dataset, domain, rule, classes, images. Accounts of several sources, or of rules
        that follow on others, are concatenated; a later line on the same rule replaces an earlier.
    """
    counts = [_counts(table, dataset) for table in stages.values()]
    everything = pd.concat(counts).index.unique()
    found = [
        count.reindex(everything, fill_value=0).reset_index().assign(rule=rule)
        for rule, count in zip(stages, counts, strict=True)
    ]
    return pd.concat(found, ignore_index=True)[COLUMNS]


def funnels(left: pd.DataFrame) -> list[Funnel]:
    """A funnel for each dataset and domain, sorted; where a rule was not applied, nothing is lost."""
    rules = list(dict.fromkeys(left["rule"]))
    table = left.drop_duplicates([*KEYS, "rule"], keep="last").pivot(
        index=KEYS, columns="rule", values=["classes", "images"]
    )
    found = []
    for (dataset, domain), row in table.iterrows():
        by_rule = row.unstack(level=0).reindex(rules).ffill().fillna(0).astype(int)
        found.append(Funnel(dataset, domain, _stages(by_rule)))
    return found


def whole(parts: Sequence[Funnel]) -> list[Stage]:
    """The funnel of all parts together. A class that stands in two datasets counts twice."""
    counts = [pd.DataFrame(part.stages, columns=Stage._fields).set_index("name") for part in parts]
    if not counts:
        return []
    return _stages(sum(count[["classes", "images"]] for count in counts))


def _counts(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    own = table["dataset"].fillna(dataset) if "dataset" in table else dataset
    table = table.assign(dataset=own)
    members = memberships(table)
    members["dataset"] = table["dataset"].reindex(members["row"]).to_numpy()
    classes = members.drop_duplicates([*KEYS, "split", "label"]).groupby(KEYS).size()
    return pd.DataFrame({"classes": classes, "images": table.groupby(KEYS).size()})


def _stages(by_rule: pd.DataFrame) -> list[Stage]:
    """Stages from classes and images, a row a rule."""
    images = [int(n) for n in by_rule["images"]]
    lost = [0, *(before - after for before, after in pairwise(images))]
    most = max([1, *images])
    return [
        Stage(NAMES.get(rule, rule), int(classes), left, gone, left / most)
        for rule, classes, left, gone in zip(
            by_rule.index, by_rule["classes"], images, lost, strict=True
        )
    ]
