"""Cleaning of a whole mix: what the config asks for, in one order, with an account of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from guie.config.cleaning import CleaningConfig
from guie.curation.classes.merging import apply_merges
from guie.curation.classes.outliers import find_outliers
from guie.curation.copies.findings import dropped, findings, too_many
from guie.curation.copies.links import Differences, Links, find_links
from guie.curation.copies.placeholders import find_placeholders
from guie.curation.copies.rules import find_conflicts, find_duplicates, find_leaks
from guie.curation.copies.verdicts import Verdicts
from guie.evaluation.features import Embed


class Evidence(NamedTuple):
    """What cleaning asks about images, by path."""

    embed: Embed
    differences: Differences
    verdicts: Verdicts | None = None


class Cleaned(NamedTuple):
    """What cleaning leaves and has found."""

    table: pd.DataFrame  # the rows that are left, indexed from 0
    findings: pd.DataFrame
    links: Links  # for `find_leaks` once a validation split is made
    excess: dict[str, list[str]]  # by rule, what it would take too much of
    emptied: dict[str, list[str]]  # by rule, the classes that it took all training images of


def clean(
    table: pd.DataFrame,
    config: CleaningConfig,
    evidence: Evidence,
    after: Callable[[str, pd.DataFrame], None] = lambda rule, table: None,
) -> Cleaned:
    """Merge classes; leave placeholders, leaks, conflicts, duplicates and outliers out of train.

    Each rule sees what those before it left. Nothing is raised here for what is found:
    `findings.refuse` does so, once the findings are written down.

    Args:
        table: rows of all sources with the columns of `fingerprints`, indexed from 0.
        config: the `clean` block.
        after: told the name of each rule and the rows that it has left.
    """
    table = apply_merges(table, config.merge)
    links = find_links(table, config.near, *evidence)
    policies = {"exact": config.exact, "near": config.near.action if config.near else "report"}
    rules: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
        "placeholders": lambda rows: find_placeholders(rows, links, config.labels_max),
        "leaks": lambda rows: find_leaks(rows, links, config.leaks),
        "conflicts": lambda rows: find_conflicts(rows, links, config.conflicts),
        "duplicates": lambda rows: find_duplicates(rows, links, policies),
    }
    outliers = config.outliers
    if outliers is not None:
        rules["outliers"] = lambda rows: find_outliers(rows, outliers, evidence.embed)
    tables, excess, emptied = [], {}, {}
    for name, rule in rules.items():
        own = findings([rule(table)])
        tables.append(own)
        trained = table["split"] == "train"
        going = trained & table["image_path"].isin(dropped(own))
        left, gone = table[~going].reset_index(drop=True), table[going]
        excess[name] = too_many(own, table[trained], gone, config.share_max)
        emptied[name] = _emptied(gone, left)
        table = left
        after(name, table)
    return Cleaned(table, findings(tables), links, *map(_without_empty, (excess, emptied)))


def _emptied(gone: pd.DataFrame, left: pd.DataFrame) -> list[str]:
    """Classes of the rows that are gone, of which no training image is left."""
    kept = left.loc[left["split"] == "train", "label"]
    lost, still = (_classes(labels) for labels in (gone["label"], kept))
    return sorted(lost - still)


def _classes(labels: pd.Series) -> set[str]:
    return {name for label in labels.unique() for name in label.split("|")}


def _without_empty(by_rule: dict[str, list[str]]) -> dict[str, list[str]]:
    return {rule: lines for rule, lines in by_rule.items() if lines}
