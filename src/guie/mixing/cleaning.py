"""Cleaning as a step of a mix: found, written down, then refused or dropped."""

from __future__ import annotations

import pandas as pd

from guie.config import MixConfig
from guie.curation.cleaning import clean
from guie.curation.copies import find_leaks
from guie.curation.findings import dropped, findings, refuse
from guie.curation.links import Embed, Links
from guie.curation.merging import suggest_merges
from guie.errors import UserError
from guie.mixing.account import Account


def clean_rows(
    table: pd.DataFrame, config: MixConfig, embed: Embed, account: Account
) -> tuple[pd.DataFrame, Links]:
    """The rows that cleaning leaves, and the links between copies.

    What was found is written beside the mix, pictures too, before anything is refused.
    Raises UserError where the config wants to stop.
    """
    table, account.findings, links = clean(table, config.clean, embed, account.after)
    _refuse(table, account)
    if config.clean.suggest_merges is not None:
        account.merges = suggest_merges(table, config.clean.suggest_merges, embed)
    return table, links


def refuse_late_leaks(
    table: pd.DataFrame, links: Links, config: MixConfig, account: Account
) -> pd.DataFrame:
    """Copies that the validation split has put on both sides; dropped from train, or refused."""
    leaks = find_leaks(table, links, config.clean.leaks)
    account.findings = findings([account.findings, leaks])
    _refuse(table, account)
    gone = (table["split"] == "train") & table["image_path"].isin(dropped(leaks))
    table = table[~gone].reset_index(drop=True)
    account.after("leaks into val", table)
    return table


def _refuse(table: pd.DataFrame, account: Account) -> None:
    try:
        refuse(account.findings)
    except UserError as error:
        account.write_list("findings")
        account.write_report(table)
        raise UserError(f"{error}\nall of them, with pictures: {account.page}") from None
