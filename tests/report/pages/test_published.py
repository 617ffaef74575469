"""The papers' tables: whole, of protocols and numbers that we have, and as printed where looked up."""

from __future__ import annotations

from statistics import fmean, harmonic_mean

import pytest
from pydantic import ValidationError

from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.report.pages.published import OVER_ALL, Table, beside, papers

# Printed means that are not those of what is printed beside them; each table's note says so.
FULL = ("Triplet", "Margin", "MS", "PA", "SoftTriple", "CosFace", "ArcFace", "Hyp")
SLIPS = {
    *(("table 2", f"{name} (one model, all trained)", "harmonic") for name in FULL),
    ("table 4", "IN+Oracle", "mean"),
    ("table 4", "CLIP+Oracle", "mean"),
    ("table 3", "VID (specialist)", "mean R@2"),
}
TABLES = [table for paper in papers() for table in paper.tables]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.title}, {table.where}")
def test_columns_are_numbers_that_the_protocol_has(table):
    protocol = PROTOCOLS[table.protocol]
    parts = {part.name: part for part in protocol.parts}
    for name, of, metric in table.columns.values():
        part = parts[name]
        keys = {*part.keys(of), *(f"harmonic_{key}" for key in part.metrics)}
        assert metric in keys | ({"nmi"} if part.clusters else set())
        assert of in OVER_ALL or of.isalnum()
    assert all(
        0 <= value <= 100 for row in table.rows.values() for value in row if value is not None
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.title}, {table.where}")
def test_a_mean_is_that_of_its_row(table):
    """What is printed as mean over domains is within rounding of it: a slip in a number shows here."""
    for place, (mean, (part, of, metric)) in enumerate(table.columns.items()):
        if of != "mean":
            continue
        average = harmonic_mean if metric.startswith("harmonic_") else fmean
        key = metric.removeprefix("harmonic_")
        paths = list(table.columns.values())
        own = [
            i for i, (p, o, m) in enumerate(paths) if (p, m) == (part, key) and o not in OVER_ALL
        ]
        for method, row in table.rows.items():
            near = row[place] == pytest.approx(average([row[i] for i in own]), abs=0.15)
            slip = (table.where, method, mean) in SLIPS
            assert near != slip, method
            assert not slip or "not that of" in table.note


def test_numbers_that_were_looked_up_again():
    found = {(t.title, t.where): t for t in TABLES}
    uned = found["UnED, R@1, merged index", "table 4"].rows
    assert uned["CLIP+Oracle"][-1] == 70.4 and uned["IN+Oracle"][-1] == 66.6
    assert len(uned) == 16 and len(found["PUMA, R@1", "table 2"].rows) == 24
    puma = found["PUMA, R@1", "table 2"].rows["PUMA (one model, few parameters)"]
    assert puma[-2:] == [81.3, 84.1]


def test_a_broken_table_is_refused():
    with pytest.raises(ValidationError, match="1 numbers for 2 columns"):
        columns = {"a": ("merged", "a", "r_at_1"), "b": ("merged", "b", "r_at_1")}
        Table(title="t", where="w", protocol="uned", columns=columns, rows={"x": [1.0]})


def test_ours_stands_beside_the_domains_that_we_have():
    def report(*domains):
        scores = {"mean": {"r_at_1": 0.5}, "domains": {name: {"r_at_1": 0.25} for name in domains}}
        return {"m": [{"protocol": "uned", "parts": {"merged": scores}}]}

    [some, *_] = beside(report("food2k", "cars"))
    assert some.ours["m"][:3] == [25.0, 25.0, None]
    assert some.ours["m"][-1] is None  # a mean over other domains
    every = [of for _, of, _ in some.table.columns.values() if of not in OVER_ALL]
    [all_of_them, *_] = beside(report(*every))
    assert all_of_them.ours["m"][-1] == 50.0
    assert beside(report("food2k", "emoji")) == []
