"""The cleaning step of a mix: apply the config's rules, record findings, then drop or refuse."""

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pandas as pd

from guie.base.errors import UserError
from guie.config.data import CleaningConfig
from guie.curation.centroids import find_outliers, suggest_merges
from guie.curation.classes import apply_merges
from guie.curation.duplicates.differences import PixelDifferences
from guie.curation.duplicates.limits import ALIKE
from guie.curation.duplicates.links import Links, find_links
from guie.curation.duplicates.rules import (
    find_conflicts,
    find_duplicates,
    find_leaks,
    find_placeholders,
)
from guie.curation.features import Embed, Job
from guie.curation.findings import Verdicts, dropped, findings, stops, too_many
from guie.curation.summary import CurationReport
from guie.data.manifest.reading import class_names

NAMED = 10  # classes and placeholders; the rest are counted
FEW = 0.5  # of altered copies below a limit: with fewer, the limit is named


class Cleaned(NamedTuple):
    """The remaining rows and the findings of cleaning."""

    table: pd.DataFrame  # the remaining rows, indexed from 0
    findings: pd.DataFrame
    links: Links  # for `find_leaks` after the validation split
    excess: dict[str, list[str]]  # by rule, the domains that would lose too many images
    emptied: dict[str, list[str]]  # by rule, the classes that lost all training images


def clean(
    table: pd.DataFrame,
    config: CleaningConfig,
    embed: Embed,
    differences: PixelDifferences,
    verdicts: Verdicts | None = None,
    after: Callable[[str, pd.DataFrame], None] = lambda rule, table: None,
) -> Cleaned:
    """Merge classes; drop placeholders, leaks, conflicts, duplicates and outliers from train.

    Each rule sees the rows that the earlier rules left. Findings raise nothing here.

    Args:
        table: rows of all sources with the columns of `FINGERPRINTS`, indexed from 0.
        embed, differences, verdicts: see `find_links`.
        after: called with the name of each rule and the rows that it left.
    """
    table = apply_merges(table, config.merge)
    links = find_links(table, config.near, embed, differences, verdicts)
    policies = {"exact": config.exact, "near": config.near.action if config.near else "report"}
    rules: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
        "placeholders": lambda rows: find_placeholders(rows, links, config.labels_max),
        "leaks": lambda rows: find_leaks(rows, links, config.leaks),
        "conflicts": lambda rows: find_conflicts(rows, links, config.conflicts),
        "duplicates": lambda rows: find_duplicates(rows, links, policies),
    }
    if (outliers := config.outliers) is not None:
        rules["outliers"] = lambda rows: find_outliers(rows, outliers, embed)
    tables, excess, emptied = [], {}, {}
    for name, rule in rules.items():
        found = findings([rule(table)])
        tables.append(found)
        before = class_names(table.loc[table["split"] == "train", "label"])
        table, lines = _without(table, found, config.share_max)
        if lines:
            excess[name] = lines
        if lost := before - class_names(table.loc[table["split"] == "train", "label"]):
            emptied[name] = sorted(lost)
        after(name, table)
    return Cleaned(table, findings(tables), links, excess, emptied)


def clean_rows(
    table: pd.DataFrame, cleaning: CleaningConfig, embed: Embed, job: Job
) -> tuple[pd.DataFrame, Links]:
    """Return the rows that cleaning keeps, and the links between copies. Raises UserError.

    The findings are written next to the mix, with pictures, before anything is refused.
    """
    config, report = job.config, job.report
    verdicts = Verdicts.read(config.beside(".verdicts.csv"))
    differences = PixelDifferences(config.image_root, job.workers, table)
    cleaned = clean(table, cleaning, embed, differences, verdicts, report.after)
    report.findings = cleaned.findings
    limits = cleaned.links.limits.round(4).to_json(orient="records")
    report.details["copies"] = json.loads(limits)
    Verdicts.read(verdicts.path).write(cleaned.findings)  # a person may have written meanwhile
    report.notes += _notes(cleaned, verdicts, table["image_path"])
    _refuse(cleaned.table, report, cleaned.excess, cleaning.share_max)
    if cleaning.suggest_merges is not None:
        report.merges = suggest_merges(cleaned.table, cleaning.suggest_merges, embed)
    return cleaned.table, cleaned.links


def drop_late_leaks(
    table: pd.DataFrame, links: Links, cleaning: CleaningConfig, report: CurationReport
) -> pd.DataFrame:
    """Drop from train, or refuse, copies that the validation split put on both sides."""
    leaks = find_leaks(table, links, cleaning.leaks)
    report.findings = findings([report.findings, leaks])
    kept, lines = _without(table, leaks, cleaning.share_max)
    _refuse(table, report, {"leaks into val": lines} if lines else {}, cleaning.share_max)
    return kept


def _without(
    table: pd.DataFrame, found: pd.DataFrame, share_max: float
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows that the findings of a rule leave, and the domains that lose too many."""
    trained = table["split"] == "train"
    goes = trained & table["image_path"].isin(dropped(found))
    lines = too_many(found, table[trained], table[goes], share_max)
    return table[~goes].reset_index(drop=True), lines


def _notes(cleaned: Cleaned, verdicts: Verdicts, images: pd.Series) -> Iterator[str]:
    """Yield what was done that a person may not expect, and what a person should look at."""
    placeholders = cleaned.findings[cleaned.findings["kind"] == "placeholder"]
    pictures = cleaned.links.pictures.reindex(placeholders["image_path"]).to_numpy()
    groups = [group for _, group in placeholders.groupby(pictures)]
    for group in sorted(groups, key=len, reverse=True)[:NAMED]:
        yield (
            f"{group['image_path'].iloc[0]} is a placeholder: {len(group):,} images under"
            f" {group['labels'].iloc[0]:,} labels; dropped from train"
        )
    if len(groups) > NAMED:
        yield f"{len(groups) - NAMED:,} more placeholders"
    for rule, classes in cleaned.emptied.items():
        yield f"{rule} left no training image of {len(classes):,} classes: {_listed(classes)}"
    doubtful = (~cleaned.findings["sure"].astype(bool)).sum()
    if doubtful:
        yield (
            f"{doubtful:,} images may be copies of others and were kept: look at them on the page,"
            f" and write copy or not a copy into {verdicts.path.name}"
        )
    for limit in cleaned.links.limits.itertuples():
        key, recall, found = "false_sure", limit.recall_sure, limit.sure
        if limit.labels == ALIKE:
            key, recall, found = "false_copies", limit.recall_copies, limit.copies
        if recall < FEW and found < limit.near:
            yield (
                f"{limit.domain}, labels {limit.labels}: look-alikes differ as little as copies, so the"
                f" limit is low. Only {recall:.0%} of altered copies are below it, and"
                f" {limit.near - found:,} pairs may be copies; raise clean.near.{key} to drop more"
            )
    # The mix may have lost these images, or a name is mistyped.
    if names := verdicts.unknown(images):
        yield (
            f"{verdicts.path.name} has verdicts on {len(names):,} images that are not in the mix:"
            f" {_listed(names)}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _refuse(
    table: pd.DataFrame, report: CurationReport, excess: dict[str, list[str]], share_max: float
) -> None:
    """Raise UserError for findings that stop, or too many of them, once a page shows them."""
    fault = stops(report.findings)
    if excess and not fault:
        details = "\n".join(f"{rule}: {'; '.join(lines)}" for rule, lines in excess.items())
        fault = (
            f"cleaning would drop more than clean.share_max ({share_max:.0%}); check the findings,"
            f" then edit {report.config.beside('.verdicts.csv')} or raise share_max:\n{details}"
        )
    if fault:
        report.write_list("findings", report.findings)
        report.write_page(table)
        raise UserError(f"{fault}\nall findings, with images: {report.page}")
