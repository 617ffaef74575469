"""Cleaning as a step of a mix: found, written down, then refused or dropped."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.config import MixConfig
from guie.config.cleaning import CleaningConfig
from guie.curation.classes.merging import suggest_merges
from guie.curation.copies.findings import dropped, findings, refuse, too_many
from guie.curation.copies.links import Links
from guie.curation.copies.pixels import Pixels
from guie.curation.copies.rules import find_leaks
from guie.curation.copies.verdicts import Verdicts
from guie.curation.steps.account import Account
from guie.curation.steps.clean_rules import Cleaned, Evidence, clean
from guie.evaluation.features import Embed

NAMED = 10  # classes and placeholders; the rest are counted


def clean_rows(
    table: pd.DataFrame,
    cleaning: CleaningConfig,
    config: MixConfig,
    embed: Embed,
    workers: int,
    account: Account,
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
    account.notes += [*_placeholders(cleaned), *_emptied(cleaned), *_doubtful(cleaned, verdicts)]
    account.notes += _unknown(verdicts, table["image_path"])
    _refuse(cleaned.table, account, cleaned.excess, cleaning.share_max)
    if cleaning.suggest_merges is not None:
        account.merges = suggest_merges(cleaned.table, cleaning.suggest_merges, embed)
    return cleaned.table, cleaned.links


def refuse_late_leaks(
    table: pd.DataFrame, links: Links, cleaning: CleaningConfig, account: Account
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


def _emptied(cleaned: Cleaned) -> list[str]:
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
    table: pd.DataFrame, account: Account, excess: dict[str, list[str]], share_max: float
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
