"""Shares of domains: met by the largest mix, whatever the order of rows."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
from label_inputs import rows

from guie.base.errors import UserError
from guie.config.data import DomainShares
from guie.curation.pseudo_labels import match_shares


def mixed() -> pd.DataFrame:
    cars = rows(["cars/a"] * 30 + ["cars/b"] * 6 + ["cars/c"] * 2)
    toys = rows(["toys/a"] * 8 + ["toys/b"] * 2, domain="toys")
    val = rows(["cars/v"] * 5, split="val")
    return pd.concat([cars, toys, val], ignore_index=True)


def test_shares_are_met_by_the_largest_mix():
    table = mixed()
    matched = match_shares(table, table["domain"], {"cars": 1.0, "toys": 1.0}, seed=0)
    train = matched[matched["split"] == "train"]
    assert train["domain"].value_counts().to_dict() == {"cars": 10, "toys": 10}
    assert (matched["split"] == "val").sum() == 5
    sizes = train["label"].value_counts()
    assert sizes["cars/a"] == 4 and sizes["cars/b"] == 4 and sizes["cars/c"] == 2
    thrice = match_shares(table, table["domain"], {"cars": 3, "toys": 1}, seed=0)
    counts = thrice[thrice["split"] == "train"]["domain"].value_counts().to_dict()
    assert counts == {"cars": 30, "toys": 10}


def test_shares_do_not_depend_on_row_order():
    table = mixed()
    shuffled = table.sample(frac=1, random_state=1).reset_index(drop=True)
    chosen = [
        set(match_shares(t, t["domain"], {"cars": 1, "toys": 1}, seed=5)["image_path"])
        for t in (table, shuffled)
    ]
    assert chosen[0] == chosen[1]
    other = match_shares(table, table["domain"], {"cars": 1, "toys": 1}, seed=6)["image_path"]
    assert chosen[0] != set(other)


def test_shares_of_domains_that_were_told():
    """The manifest says cars throughout; what a CLIP told counts. A domain without share goes."""
    table = rows(["cars/a"] * 12)
    message = pd.Series(["x", "y", "z"] * 4)
    matched = match_shares(table, message, {"x": 0.5, "y": 0.25}, seed=0)
    told_of = dict(zip(table["image_path"], message, strict=True))
    assert Counter(map(told_of.get, matched["image_path"])) == {"x": 4, "y": 2}


def test_a_share_of_nothing_is_refused():
    table = mixed()
    with pytest.raises(UserError, match="no train image in boats; found: cars, toys"):
        match_shares(table, table["domain"], {"cars": 1, "boats": 1}, seed=0)


def test_told_domains_need_a_name_for_each_share():
    message = {"clip": {"model": "open_clip:x:y"}, "names": {"cars": ["a car"], "toys": ["a toy"]}}
    with pytest.raises(ValueError, match="lacks art, which shares names"):
        DomainShares.model_validate({"shares": {"cars": 1.0, "art": 1.0}, "domain_source": message})
