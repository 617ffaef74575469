"""The papers' tables: whole, of protocols and numbers that we have, and as printed where looked up."""

from __future__ import annotations

from statistics import fmean, harmonic_mean

import pytest
from page_parser import Page
from pydantic import ValidationError

from guie.evaluation.protocols.catalogue import PROTOCOLS
from guie.report.pages import evaluation
from guie.report.pages.published import OVER_ALL, Table, beside, papers
from scored_pages import DOMAINS, scored_table, write_scored

# Printed means that are not those of what is printed beside them; each table's note says so.
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
    for name, of, metric in table.paths:
        part = parts[name]
        keys = {*part.keys(of), *(f"harmonic_{key}" for key in part.metrics)}
        assert metric in keys | ({"nmi"} if part.clusters else set())
        assert of in OVER_ALL or of.isalnum()
    assert table.paths
    for row in table.rows.values():
        for path, value in zip(table.columns.values(), row, strict=True):
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
def test_every_table_of_results_is_there(paper):
    found = {table.where for table in PAPERS[paper].tables}
    assert found == {f"table {number}" for number in NUMBERS[paper]}


@pytest.mark.parametrize("paper", ["Ypsilantis", "Kim", "Vo"])
def test_tables_of_one_paper_agree(paper):
    """A method's number is the same in each table that prints it (Feng et al.: other students)."""
    seen = {}
    for table in PAPERS[paper].tables:
        for method, row in table.rows.items():
            for path, value in zip(table.columns.values(), row, strict=True):
                if path is not None:
                    assert seen.setdefault((method, *path), value) == value, (table.where, method)


# By paper, table and title: rows, columns, first and last row as read in the paper.
READ = [
    (
        *("Ypsilantis", 7, "UnED, mAP@100, merged index", 14),
        ("IN 768-D", [23.6, 9.6, 38.5, 34.5, 43.1, 22.6, 7.8, 41.9, 27.7]),
        ("CLIP+USCSS", [42.1, 33.5, 62.9, 70.2, 42.5, 8.5, 20.3, 61.9, 42.7]),
    ),
    (
        *("Ypsilantis", 8, "UnED, merged index, by the size of the backbone", 3),
        ("ViT-S (IN)", [58.9, 48.3]),
        ("ViT-L (IN)", [62.7, 52.4]),
    ),
    (
        *("Ypsilantis", 10, "UnED, R@1, specialists as universal models", 16),
        ("IN+Food2k", [63.0, 40.5, 49.1, 34.7, 60.2, 7.0, 13.6, 61.9, 41.2]),
        ("CLIP+Rp2k", [29.1, 71.6, 55.6, 46.0, 47.1, 20.5, 25.2, 84.6, 47.5]),
    ),
    (
        *("Ypsilantis", 10, "UnED, mMP@5, specialists as universal models", 16),
        ("IN+Food2k", [50.3, 30.9, 29.4, 21.8, 53.5, 7.8, 8.8, 40.5, 30.1]),
        ("CLIP+Rp2k", [19.0, 62.8, 34.6, 29.3, 38.9, 15.5, 15.4, 69.6, 35.6]),
    ),
    (
        *("Ypsilantis", 11, "UnED, R@1, PCA whitening against a random projection", 6),
        ("IN 768-D", [44.1, 54.1, 65.6, 53.9, 74.2, 30.8, 25.2, 74.3, 52.8]),
        ("CLIP+Rand.Proj.", [28.5, 71.7, 55.0, 42.0, 49.8, 13.2, 18.5, 47.7, 40.8]),
    ),
    (
        *("Ypsilantis", 11, "UnED, mMP@5, PCA whitening against a random projection", 6),
        ("IN 768-D", [31.1, 41.4, 43.7, 35.5, 67.1, 21.1, 14.8, 52.9, 38.4]),
        ("CLIP+Rand.Proj.", [18.1, 61.7, 34.5, 26.8, 41.3, 9.7, 12.5, 29.3, 29.2]),
    ),
    (
        *("Kim", 3, "PUMA, R@1 by component", 6),
        ("single prompt", [82.8, 51.0, 74.7, 72.9, 78.3, 85.5, 99.2, 50.8, 72.3, 70.8, 0.05]),
        (
            "conditional prompt and stochastic adapter",
            [83.9, 84.3, 84.0, 89.8, 79.2, 84.1, 99.3, 72.6, 81.3, 84.1, 2.49],
        ),
    ),
    (
        *("Kim", 4, "PUMA, R@1 by backbone and dimension", 6),
        (
            "CurricularFace (ViT-S/16, 128-D)",
            [78.3, 77.9, 82.0, 89.1, 73.0, 79.3, 99.1, 65.6, 77.9, 79.5, 21.7],
        ),
        (
            "PUMA (ViT-B/16, 128-D)",
            [85.7, 88.2, 86.0, 92.2, 83.0, 87.5, 99.4, 78.8, 84.0, 87.2, 90.8],
        ),
    ),
    (
        *("Kim", 5, "PUMA, R@1 by loss", 10),
        ("Triplet", [75.2, 36.5, 78.5, 79.9, 69.3, 78.3, 98.7, 39.8, 71.1, 62.3]),
        ("CurricularFace", [83.9, 84.3, 84.0, 89.8, 79.2, 84.1, 99.3, 72.6, 81.3, 84.1]),
    ),
    (
        *("Kim", 6, "PUMA, R@1 by backbone", 4),
        ("ViT-S, 128-D", [83.9, 84.3, 84.0, 89.8, 79.2, 84.1, 99.3, 72.6, 81.3, 84.1, 2.5, 24.2]),
        (
            "ViT-L, 128-D, adapters in its first 12 layers",
            [86.8, 90.5, 86.3, 92.8, 85.3, 90.9, 99.3, 79.5, 84.9, 88.6, 6.6, 309.9],
        ),
    ),
    (
        *("Kim", 7, "PUMA, R@1 with LoRA", 5),
        ("LoRA", [77.0, 70.9, 81.3, 86.2, 70.8, 79.1, 98.9, 59.7, 76.1, 76.5, 2.4, 24.1]),
        ("PUMA", [83.9, 84.3, 84.0, 89.8, 79.2, 84.1, 99.3, 72.6, 81.3, 84.1, 2.5, 24.2]),
    ),
    (
        *("Kim", 8, "PUMA, R@1 of pair losses with and without a cross-batch memory", 4),
        ("Triplet", [75.2, 36.5, 78.5, 79.9, 69.3, 78.3, 98.7, 39.8, 71.1, 62.3]),
        ("MS + XBM", [78.1, 55.1, 84.3, 91.5, 72.4, 79.6, 98.0, 54.7, 77.0, 73.7]),
    ),
    (
        *("Kim", 9, "PUMA, R@1 trained on each data set or on all", 6),
        ("PA (a model a data set)", [80.2, 83.7, 84.4, 91.5, 69.6, 84.2, 99.0, 67.9, 81.4]),
        (
            "PUMA (one model, few parameters)",
            [83.9, 84.3, 84.0, 89.8, 79.2, 84.1, 99.3, 72.6, 84.1],
        ),
    ),
    (
        *("Kim", 10, "PUMA, R@1 on four data sets", 25),
        (
            "Margin (CNN, a model a data set, 128-D)",
            [63.9, 79.6, 72.7, None, None, None, 95.1, 95.1],
        ),
        (
            "PUMA (ViT, one model, few parameters, 128-D)",
            [82.5, 84.6, 84.9, 91.5, 85.7, 85.7, 2.5, 24.2],
        ),
    ),
    (
        *("Kim", 11, "PUMA, Recall@k", 19),
        (
            "Triplet (a model a data set)",
            [
                *(81.1, 88.1, 92.9, 75.2, 84.2, 90.2, 80.2, 84.9, 88.6, 87.4, 92.1, 95.2),
                *(75.2, 83.4, 89.5, 81.0, 88.4, 93.3, 99.1, 99.5, 99.7, 64.7, 76.6, 86.6),
            ],
        ),
        (
            "PUMA (one model, few parameters)",
            [
                *(83.9, 90.2, 93.5, 84.3, 90.3, 94.3, 84.0, 93.7, 97.5, 89.8, 98.0, 98.6),
                *(79.2, 86.7, 91.9, 84.1, 90.7, 94.5, 99.3, 99.6, 99.8, 72.6, 82.7, 94.3),
            ],
        ),
    ),
    (
        *("Kim", 12, "PUMA, MAP@R", 7),
        ("PA (a model a data set)", [46.2, 27.8, 51.5, 65.5, 37.0, 48.5, 91.7, 21.4, 40.5]),
        (
            "PUMA (one model, few parameters)",
            [48.5, 28.1, 50.3, 65.2, 38.8, 48.7, 91.4, 21.8, 41.1],
        ),
    ),
    (
        *("Kim", 12, "PUMA, R-Precision", 7),
        ("PA (a model a data set)", [55.5, 38.3, 54.2, 68.1, 47.1, 58.8, 93.3, 34.7, 51.6]),
        (
            "PUMA (one model, few parameters)",
            [57.5, 38.5, 53.3, 68.0, 49.1, 59.0, 92.5, 34.4, 52.0],
        ),
    ),
    (
        *("Feng", 1, "recall of each evaluation set by itself, CUB, Cars, In-Shop", 3),
        ("Specialists", [59.8, 71.6, 70.1, 79.4, 84.3, 89.2]),
        ("SND (universal)", [59.7, 72.0, 71.8, 81.2, 84.3, 89.5]),
    ),
    (
        *("Feng", 1, "recall of each evaluation set by itself, SOP, VehicleID, In-Shop", 3),
        ("Specialists", [73.4, 78.8, 86.9, 90.8, 84.3, 89.2]),
        ("SND (universal)", [73.7, 78.8, 86.9, 90.5, 82.9, 88.3]),
    ),
    (
        *("Feng", 5, "recall of each evaluation set by itself, ImageNet and CUB", 5),
        ("ImageNet (specialist)", [65.3, 74.0, 80.2, 84.6, 44.6, 55.8, 68.0, 79.1]),
        ("SND (universal)", [64.6, 73.4, 79.8, 84.3, 59.8, 71.5, 81.5, 88.6]),
    ),
    (
        *("Feng", 5, "recall of each evaluation set by itself, ImageNet and Cars", 5),
        ("ImageNet (specialist)", [65.3, 74.0, 80.2, 84.6, 27.6, 38.5, 50.7, 63.5]),
        ("SND (universal)", [64.5, 73.3, 79.6, 84.3, 72.3, 82.2, 88.8, 93.3]),
    ),
    (
        *("Xuan", 3, "VehicleID", 1),
        ("DREML (R,192,12)", [88.5, 94.8, 87.2, 94.2, 83.1, 92.4]),
        ("DREML (R,192,12)", [88.5, 94.8, 87.2, 94.2, 83.1, 92.4]),
    ),
    (
        *("Vo", 1, "R@k of NetA, Cars-196 and CUB-200-2011", 1),
        ("NetA, pool5.3", [87.8, 92.7, 95.6, 97.5, 98.6, 99.2, 66.4, 77.5, 85.4, 91.3, 95.2, 97.1]),
        ("NetA, pool5.3", [87.8, 92.7, 95.6, 97.5, 98.6, 99.2, 66.4, 77.5, 85.4, 91.3, 95.2, 97.1]),
    ),
    (
        *("Vo", 1, "R@k of NetA, Stanford Online Products", 1),
        ("NetA, pool5.3", [74.8, 88.3, 95.2, 98.5]),
        ("NetA, pool5.3", [74.8, 88.3, 95.2, 98.5]),
    ),
    (
        *("Vo", 2, "R@1 by layer and of earlier methods, Cars-196 and CUB-200-2011", 13),
        ("Lifted structure (GoogLeNet, 64-D, SOP 512-D)", [53.0, 47.2]),
        ("NetE, fc7 (VGG16-BN, 512-D)", [71.4, 56.8]),
    ),
    (
        *("Vo", 2, "R@1 by layer and of earlier methods, Stanford Online Products", 13),
        ("Lifted structure (GoogLeNet, 64-D, SOP 512-D)", [62.5]),
        ("NetE, fc7 (VGG16-BN, 512-D)", [71.4]),
    ),
    (
        *("Vo", 3, "R@1 by layer, train and test, Cars-196 and CUB-200-2011", 6),
        ("Lifted Structure, released, output (512)", [97.7, 47.9, 66.4, 46.3]),
        ("NetA, penultimate", [90.4, 87.8, 87.6, 66.4]),
    ),
    (
        *("Vo", 3, "R@1 by layer, train and test, Stanford Online Products", 6),
        ("Lifted Structure, released, output (512)", [65.2, 62.1]),
        ("NetA, penultimate", [77.9, 74.8]),
    ),
]


@pytest.mark.parametrize("read", READ, ids=lambda read: f"{read[2]}, {read[1]}")
def test_first_and_last_row_are_as_read_in_the_paper(read):
    paper, number, title, rows, first, last = read
    [table] = [
        table
        for table in PAPERS[paper].tables
        if (table.title, table.where) == (title, f"table {number}")
    ]
    found = list(table.rows.items())
    assert (len(found), found[0], found[-1]) == (rows, first, last)


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


def test_a_broken_table_is_refused():
    columns = {"a": ("merged", "a", "r_at_1"), "b": ("merged", "b", "r_at_1")}
    whole = {"title": "t", "where": "w", "protocol": "uned", "columns": columns}
    with pytest.raises(ValidationError, match="1 numbers for 2 columns"):
        Table(**whole, rows={"x": [1.0]})
    with pytest.raises(ValidationError, match="1 numbers for 2 columns"):
        Table(**whole, rows={"x": [1.0, 2.0]}, spreads={"x": [0.1]})
    with pytest.raises(ValidationError, match="spreads of y: no such row"):
        Table(**whole, rows={"x": [1.0, 2.0]}, spreads={"y": [0.1, 0.1]})


def reports(protocol, **parts):
    """One model's report: domains by part, each .25, and .5 over all."""
    over_all = {"r_at_1": 0.5, "harmonic_r_at_1": 0.5}
    return {
        "m": [
            {
                "protocol": protocol,
                "parts": {
                    name: {
                        "mean": over_all,
                        "pooled": over_all,
                        "domains": {domain: {"r_at_1": 0.25} for domain in domains},
                    }
                    for name, domains in parts.items()
                },
            }
        ]
    }


def test_ours_stands_beside_the_domains_that_we_have():
    [some, *_] = beside(reports("uned", merged=["food2k", "cars"]))
    assert some.ours["m"][:3] == [25.0, 25.0, None]
    assert some.ours["m"][-1] is None  # a mean over other domains
    every = [of for _, of, _ in some.table.paths if of not in OVER_ALL]
    [all_of_them, *_] = beside(reports("uned", merged=every))
    assert all_of_them.ours["m"][-1] == 50.0
    assert beside(reports("uned", merged=["food2k", "emoji"])) == []


def test_what_is_not_comparable_is_shown_without_ours():
    """A mean whose domains we lack, and parameters, which no protocol has."""
    found = {one.table.where: one for one in beside(reports("uned", merged=["food2k", "cars"]))}
    assert set(found) == {f"table {number}" for number in (4, 6, 7, 8, 9, 10, 11)}
    assert found["table 8"].ours == {}
    every = sorted(found["table 8"].table.covered)
    [backbones] = [
        one for one in beside(reports("uned", merged=every)) if one.table.where == "table 8"
    ]
    assert backbones.ours == {"m": [50.0, None]}
    [puma, *_] = beside(reports("puma", separate=["cub"]))
    assert puma.ours["m"] == [25.0, *11 * [None]]
    assert puma.table.rows["PUMA (one model, few parameters)"][-2:] == [2.5, 24.2]


def test_a_domain_more_matters_only_where_the_index_is_shared():
    eight = ["cub", "cars196", "sop", "inshop", "nabirds", "dogs", "flowers", "aircraft"]
    found = beside(reports("puma", unified=eight, separate=eight))
    [four] = [one for one in found if one.table.where == "table 10"]
    assert four.ours["m"] == [25.0, 25.0, 25.0, 25.0, *4 * [None]]
    found = beside(reports("puma", unified=eight[:4], separate=eight[:4]))
    [four] = [one for one in found if one.table.where == "table 10"]
    assert four.ours["m"][-4:] == [50.0, 50.0, None, None]


def test_the_page_shows_the_tables_of_its_protocol_one_of_them_open(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "looked_into", lambda protocols: None)  # the scores alone
    table = scored_table(tmp_path)
    names = dict(zip(DOMAINS, ("food2k", "cars", "sop"), strict=True))
    table = table.assign(domain=table["domain"].map(names))
    html = write_scored(tmp_path / "page.html", tmp_path, table, protocols=["uned"], pictures=False)
    shown = html[html.index('<section id="published"') :]
    page = Page(shown.partition("</section>")[0] + "</section>")
    wanted = [table for table in PAPERS["Ypsilantis"].tables if table.protocol == "uned"]
    tables = page.all("details")
    assert len(tables) == len(wanted) == 12
    assert ["open" in attrs for attrs in tables] == [True] + 11 * [False]
    assert "62.8 ± 0.5" in page.text and "table 8; not compared" in page.text
    assert not any("Kim et al" in text for text in page.text)
    assert page.text.count("runs/ours") == 11  # not in table 8
    puma = write_scored(
        tmp_path / "puma.html",
        tmp_path,
        table.assign(domain=table["domain"].replace({"cars": "cars196", "food2k": "cub"})),
        protocols=["puma"],
        pictures=False,
    )
    assert ">173.7<" in puma and ">0.05<" in puma
