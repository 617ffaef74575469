"""Cleaning of a whole mix: what the config asks for, in one order, with an account of it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from guie.config.cleaning import CleaningConfig
from guie.curation.copies import find_conflicts, find_duplicates, find_leaks
from guie.curation.findings import dropped, findings
from guie.curation.links import Embed, Links, find_links
from guie.curation.merging import apply_merges
from guie.curation.outliers import find_outliers


def clean(
    table: pd.DataFrame,
    config: CleaningConfig,
    embed: Embed,
    after: Callable[[str, pd.DataFrame], None] = lambda rule, table: None,
) -> tuple[pd.DataFrame, pd.DataFrame, Links]:
    """Merge classes; leave leaks, conflicts, duplicates and outliers out of train, as configured.

    Each rule sees what those before it left. Nothing is raised here: `findings.refuse` does so,
    once the findings are written down.

    Args:
        table: rows of all sources with the columns of `fingerprints`, indexed from 0.
        config: the `clean` block.
        embed: features of images by path.
        after: told the name of each rule and the rows that it has left.

    Returns:
        The rows that are left, indexed from 0; the findings; the links between copies, for
        `find_leaks` once a validation split is made.
    """
    table = apply_merges(table, config.merge)
    links = find_links(table, config.near, embed)
    policies = {"exact": config.exact, "near": config.near.action if config.near else "report"}
    rules = {
        "leaks": lambda rows: find_leaks(rows, links, config.leaks),
        "conflicts": lambda rows: find_conflicts(rows, links, config.conflicts),
        "duplicates": lambda rows: find_duplicates(rows, links, policies),
    }
    if config.outliers is not None:
        rules["outliers"] = lambda rows: find_outliers(rows, config.outliers, embed)
    found = []
    for name, rule in rules.items():
        found.append(rule(table))
        gone = dropped(findings(found[-1:]))
        trained = table["split"] == "train"
        table = table[~(trained & table["image_path"].isin(gone))].reset_index(drop=True)
        after(name, table)
    return table, findings(found), links
