"""Cleaning as a step of a mix: what the config asks for is found, recorded, then refused or dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from guie.base.errors import UserError
from guie.config import MixConfig
from guie.config.data import CleaningConfig
from guie.curation.classes import apply_merges, find_outliers, suggest_merges
from guie.curation.duplicates.candidates import Differences, Links, find_links
from guie.curation.duplicates.evidence import Pixels
from guie.curation.duplicates.findings import Verdicts, dropped, findings, refuse, too_many
from guie.curation.duplicates.rules import (
    find_conflicts,
    find_duplicates,
    find_leaks,
    find_placeholders,
)
from guie.curation.summary import CurationReport
from guie.evaluation.feature_cache import Embed


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


NAMED = 10  # classes and placeholders; the rest are counted


def clean_rows(
    table: pd.DataFrame,
    cleaning: CleaningConfig,
    config: MixConfig,
    embed: Embed,
    workers: int,
    account: CurationReport,
) -> tuple[pd.DataFrame, Links]:
    """The rows that cleaning leaves, and the links between copies.

    What was found is written beside the mix, pictures too, before anything is refused.
    Raises UserError where the config wants to stop, or a rule takes more than it may.
    """
    verdicts = Verdicts.read(config.beside(".verdicts.csv"))
    evidence = Evidence(embed, Pixels(Path(config.image_root), workers), verdicts)
    cleaned = clean(table, cleaning, evidence, account.after)
    account.findings, account.limits = cleaned.findings, cleaned.links.limits
    verdicts.write(cleaned.findings)
    account.notes += [
        *_placeholders(cleaned),
        *_emptied_of_cleaning(cleaned),
        *_doubtful(cleaned, verdicts),
    ]
    account.notes += _unknown(verdicts, table["image_path"])
    _refuse(cleaned.table, account, cleaned.excess, cleaning.share_max)
    if cleaning.suggest_merges is not None:
        account.merges = suggest_merges(cleaned.table, cleaning.suggest_merges, embed)
    return cleaned.table, cleaned.links


def refuse_late_leaks(
    table: pd.DataFrame, links: Links, cleaning: CleaningConfig, account: CurationReport
) -> pd.DataFrame:
    """Copies that the validation split has put on both sides; dropped from train, or refused."""
    leaks = find_leaks(table, links, cleaning.leaks)
    account.findings = findings([account.findings, leaks])
    trained = table["split"] == "train"
    gone = trained & table["image_path"].isin(dropped(leaks))
    lines = too_many(leaks, table[trained], table[gone], cleaning.share_max)
    _refuse(table, account, {"leaks into val": lines} if lines else {}, cleaning.share_max)
    table = table[~gone].reset_index(drop=True)
    account.after("leaks into val", table)
    return table


def _placeholders(cleaned: Cleaned) -> list[str]:
    placeholders = cleaned.findings[cleaned.findings["kind"] == "placeholder"]
    pictures = cleaned.links.pictures.reindex(placeholders["image_path"]).to_numpy()
    groups = [group for _, group in placeholders.groupby(pictures)]
    lines = [
        f"{group['image_path'].iloc[0]} is a placeholder: {len(group):,} images under"
        f" {group['labels'].iloc[0]:,} labels; dropped from train"
        for group in sorted(groups, key=len, reverse=True)
    ]
    more = [f"{len(lines) - NAMED:,} more placeholders"] if len(lines) > NAMED else []
    return lines[:NAMED] + more


def _emptied_of_cleaning(cleaned: Cleaned) -> list[str]:
    return [
        f"{rule} left no training image of {len(classes):,} classes: {', '.join(classes[:NAMED])}"
        + (", ..." if len(classes) > NAMED else "")
        for rule, classes in cleaned.emptied.items()
    ]


def _doubtful(cleaned: Cleaned, verdicts: Verdicts) -> list[str]:
    doubtful = (~cleaned.findings["sure"].astype(bool)).sum()
    if not doubtful:
        return []
    return [
        f"{doubtful:,} images may be copies of others and were left alone: look at them on the page,"
        f" and write copy or not a copy into {verdicts.path.name}"
    ]


def _unknown(verdicts: Verdicts, images: pd.Series) -> list[str]:
    """A mix may have lost images since somebody judged them, but a name may be mistyped too."""
    names = verdicts.unknown(images)
    if not names:
        return []
    shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return [
        f"{verdicts.path.name} judges {len(names):,} images that the mix does not have: {shown}"
    ]


def _refuse(
    table: pd.DataFrame, account: CurationReport, excess: dict[str, list[str]], share_max: float
) -> None:
    try:
        refuse(account.findings)
        if excess:
            details = "\n".join(f"{rule}: {'; '.join(lines)}" for rule, lines in excess.items())
            raise UserError(
                f"more than clean.share_max, {share_max:.0%}, would go; look,"
                f" then correct {account.config.beside('.verdicts.csv')}, or raise share_max:\n{details}"
            )
    except UserError as error:
        account.write_list("findings")
        account.write_report(table)
        raise UserError(f"{error}\nall of them, with pictures: {account.page}") from None
