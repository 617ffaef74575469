"""The papers' tables: whole, of protocols and numbers that we have, and as printed where looked up."""

from statistics import fmean, harmonic_mean

import pytest
from page_parser import Page

from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.report.pages.published import comparable_tables, papers
from guie.report.tables import OVER_ALL
from scored_pages import DOMAINS, scored_table, write_scored

# Printed means that are not those of the numbers in their row; each table's note says so.
FULL = ("Triplet", "Margin", "MS", "PA", "SoftTriple", "CosFace", "ArcFace", "Hyp")
SLIPS = {  # table, method, metric
    *(("table 2", f"{name} (one model, all trained)", "harmonic_r_at_1") for name in FULL),
    ("table 3", "static adapter", "harmonic_r_at_1"),
    ("table 7", "PUMA + Stochastic LoRA", "harmonic_r_at_1"),
    ("table 9", "PA (one model, all trained)", "harmonic_r_at_1"),
    ("table 10", "PA (CNN, a model a data set, 512-D)", "harmonic_r_at_1"),
    *(
        ("table 4", f"{name}+Oracle", key)
        for name in ("IN", "CLIP")
        for key in ("r_at_1", "mmp_at_5")
    ),
    ("table 10", "IN+Food2k", "mmp_at_5"),
    ("table 3", "VID (specialist)", "recall_at_2"),
}
FALLING = {  # printed recalls below those at a smaller depth: PUMA's table 11, whose note says so
    ("MS (one model, all trained)", "In-Shop R@20"),
    ("PA (one model, all trained)", "Flowers R@4"),
    ("SoftTriple (one model, all trained)", "SOP R@100"),
}
PAPERS = {paper.paper.partition(" et al")[0].partition(" and ")[0]: paper for paper in papers()}
TABLES = [table for paper in PAPERS.values() for table in paper.tables]
NUMBERS = {  # tables of results in each paper, all of which are here
    "Ypsilantis": range(4, 12),
    "Kim": range(2, 13),
    "Feng": range(1, 6),
    "Xuan": range(1, 4),
    "Vo": range(1, 4),
}
EACH = pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.title}, {table.where}")


@EACH
def test_columns_are_numbers_that_the_protocol_has(table):
    protocol = PROTOCOLS[table.protocol]
    parts = {part.name: part for part in protocol.parts}
    parts |= {f"{name}, {s}": part for name, part in parts.items() for s in protocol.subsets}
    paths = list(table.columns.values())
    for name, of, metric in filter(None, paths):
        part = parts[name]
        keys = {*part.keys(of), *(f"harmonic_{key}" for key in part.metrics)}
        assert metric in keys | ({"nmi"} if part.clusters else set())
        assert of in OVER_ALL or of.isalnum()
    assert any(paths) and table.spreads.keys() <= table.rows.keys()
    for row in [*table.rows.values(), *table.spreads.values()]:
        for path, value in zip(paths, row, strict=True):
            assert value is None or 0 <= value <= 100 or path is None


@EACH
def test_a_mean_is_that_of_its_row(table):
    """What is printed as mean over domains is within rounding of it: a slip in a number shows here."""
    paths = list(table.columns.values())
    for place, path in enumerate(paths):
        if path is None or path[1] != "mean":
            continue
        part, _, metric = path
        average = harmonic_mean if metric.startswith("harmonic_") else fmean
        like = (part, metric.removeprefix("harmonic_"))
        own = [
            i
            for i, other in enumerate(paths)
            if other and (other[0], other[2]) == like and other[1] not in OVER_ALL
        ]
        assert own or table.domains
        for method, row in table.rows.items():
            if not own or row[place] is None:
                continue
            near = row[place] == pytest.approx(average([row[i] for i in own]), abs=0.15)
            slip = (table.where, method, metric) in SLIPS
            assert near != slip, method
            assert not slip or "not that of" in table.note


@EACH
def test_recall_rises_with_its_depth(table):
    shallower: dict[tuple[str, str], str] = {}
    titles = list(table.columns)
    for place, (title, path) in enumerate(table.columns.items()):
        if path is None or not (path[2] == "r_at_1" or path[2].startswith("recall_at_")):
            continue
        before = shallower.get(path[:2])
        shallower[path[:2]] = title
        if before is None:
            continue
        for method, row in table.rows.items():
            low, high = row[titles.index(before)], row[place]
            falls = low is not None and high is not None and high < low
            assert falls == ((method, title) in FALLING and table.where == "table 11"), method


@pytest.mark.parametrize("paper", NUMBERS)
def test_every_table_of_results_is_there_and_tables_of_one_paper_agree(paper):
    """A method's number is the same in each table that prints it (Feng et al.: other students)."""
    tables, seen = PAPERS[paper].tables, {}
    assert {table.where for table in tables} == {f"table {number}" for number in NUMBERS[paper]}
    for table in tables if paper in ("Ypsilantis", "Kim", "Vo") else ():
        for method, row in table.rows.items():
            for path, value in zip(table.columns.values(), row, strict=True):
                if path is not None:
                    assert seen.setdefault((method, *path), value) == value, (table.where, method)


def test_numbers_that_were_looked_up_again():
    found = {(t.title, t.where): t for t in TABLES}
    uned = found["UnED, R@1, merged index", "table 4"]
    assert uned.rows["CLIP+Oracle"][-1] == 70.4 and uned.rows["IN+Oracle"][-1] == 66.6
    assert uned.spreads["CLIP+Oracle"][-1] == 0.2 and uned.spreads["IN+Oracle"][0] == 0.5
    assert len(uned.rows) == 16 and len(uned.spreads) == 10
    random = found["UnED, mMP@5, PCA whitening against a random projection", "table 11"].spreads
    assert random["IN+Rand.Proj."] == [0.5, 0.3, 0.1, 0.6, 0.2, 0.5, 0.2, 0.1, 0.1]
    puma = found["PUMA, R@1", "table 2"].rows
    assert len(puma) == 24
    assert puma["PUMA (one model, few parameters)"][0] == 83.9
    assert puma["PUMA (one model, few parameters)"][-4:] == [81.3, 84.1, 2.5, 24.2]


def compared(protocol, **parts):
    """The tables for one model's report: domains by part, each .25, and .5 over all; by number."""
    over_all = {"r_at_1": 0.5, "harmonic_r_at_1": 0.5}
    over_all = {"mean": over_all, "pooled": over_all}
    found = {
        name: over_all | {"domains": {domain: {"r_at_1": 0.25} for domain in domains}}
        for name, domains in parts.items()
    }
    tables = comparable_tables({"m": [{"protocol": protocol, "parts": found}]})
    # The first of a number counts
    return {printed.where: (printed, ours) for _, printed, ours in reversed(tables)}


def test_ours_are_the_domains_that_we_have():
    """A mean over other domains, and parameters, which no protocol has, are shown without ours."""
    some = compared("uned", merged=["food2k", "cars"])
    assert set(some) == {f"table {number}" for number in (4, 6, 7, 8, 9, 10, 11)}
    assert some["table 4"][1]["m"][:3] == [25.0, 25.0, None]
    printed, ours = some["table 8"]
    assert some["table 4"][1]["m"][-1] is None and ours == {}
    whole = compared("uned", merged=sorted(printed.covered))
    assert whole["table 4"][1]["m"][-1] == 50.0 and whole["table 8"][1] == {"m": [50.0, None]}
    # A domain more matters only where the index is shared
    assert not compared("uned", merged=["food2k", "emoji"])
    eight = ["cub", "cars196", "sop", "inshop", "nabirds", "dogs", "flowers", "aircraft"]
    for domains, first, last in ((eight, 25.0, None), (eight[:4], 25.0, 50.0)):
        numbers = compared("puma", unified=domains, separate=domains)["table 10"][1]["m"]
        assert (numbers[0], numbers[4], numbers[-1]) == (first, last, None)


def test_the_page_shows_the_tables_of_its_protocol_and_opens_the_first(tmp_path):
    table = scored_table(tmp_path)
    names = dict(zip(DOMAINS, ("food2k", "cars", "sop"), strict=True))
    table = table.assign(domain=table["domain"].map(names))
    html = write_scored(tmp_path / "page.html", tmp_path, table, protocols=["uned"], pictures=False)
    shown = html[html.index('<section id="published"') :]
    page = Page(shown.partition("</section>")[0] + "</section>")
    tables = page.all("details")
    assert len(tables) == sum(table.protocol == "uned" for table in PAPERS["Ypsilantis"].tables)
    assert ["open" in attrs for attrs in tables] == [True] + 11 * [False]
    assert "62.8 ± 0.5" in page.text and "table 8; not compared" in page.text
    assert not any("Kim et al" in text for text in page.text)
    assert page.text.count("runs/ours") == 11  # not in table 8
