"""The report: whole in one file, every name escaped, every number the one it was given."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib import pyplot
from PIL import Image

from guie.config.cleaning import CleaningConfig
from guie.curation.copies.findings import COLUMNS as FINDING
from guie.report import figures
from guie.report.figures.sizes import histograms
from guie.report.pages import class_sizes, left_after, write_report
from guie.report.pages.funnel import funnels, whole
from guie.report.pages.pairs import OF_ONE, SHOWN, accepting, groups
from guie.report.pages.samples import CLASSES, IMAGES, MAX_PICTURES, galleries
from guie.report.pages.svg import inline_svg

ODD = ["<script>alert(1)</script>", "a \"quoted\" & 'odd' name", "日本語の車", "🍕 pizza", "مرحبا"]
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """The elements of a page, its text, and whether each element is closed where it should be."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]) and data.strip():
            self.text.append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(20):
        image = Image.new("RGB", (300, 40 + i), (12 * i, 200, 90))
        image.save(tmp_path / f"{i}.jpg", comment=b"a secret of the camera")
    return tmp_path


@pytest.fixture
def table() -> pd.DataFrame:
    """A class of four images for each odd name, each in a domain of that name."""
    names = np.repeat(ODD, 4)
    return pd.DataFrame(
        {
            "image_path": [f"{i}.jpg" for i in range(20)],
            "label": [f"{name}/class of {name}" for name in names],
            "domain": names,
            "split": np.where(names == ODD[-1], "test", "train"),
        }
    )


def summary(table: pd.DataFrame, **more) -> dict:
    domains = {
        domain: {"dropped": {}, "train": {"classes": 1, "images": len(rows)}}
        for domain, rows in table.groupby("domain")
    }
    return {
        "name": "a_mix",
        "command": "python src/curate.py --config 'a <b>.yaml'",
        "rows": len(table),
        "domains": domains,
        "notes": [],
        "dropped_files": [],
        "sources": [{"kind": "folder", "path": "input/<x>", "skipped": {"no image <i>": 1234}}],
        "config": {"seed": 0, "verify": True},
    } | more


def finding(kind: str, similarity: float, action: str = "dropped", **more) -> dict:
    values = dict.fromkeys(FINDING, ODD[0])
    values |= {"image_path": "0.jpg", "other_path": "1.jpg", "split": "train", "distance": 3.0}
    values |= {"other_split": "train", "kind": kind, "similarity": similarity, "action": action}
    values |= {"copy": "near", "difference": 1 - similarity, "limit": 0.6, "labels": 0}
    values |= {"sure": True, "said": False}
    return values | more


def earned(*rows: tuple) -> pd.DataFrame:
    columns = ["step", "change", "gain", "standard_error", "score", "mix"]
    types = {"step": "Int64", "gain": "float64", "standard_error": "Float64", "score": "Float64"}
    return pd.DataFrame(rows, columns=columns).astype(types)


SELECTION = earned(
    (1, "+<b>", 0.5, 0.0, 0.5, "<b>"),
    (2, "+logos", 0.1, 0.02, 0.6, "<b>+logos"),
    (pd.NA, "+toys", -0.01, pd.NA, pd.NA, ""),
)
MERGES = pd.DataFrame(
    [("a: <b>", 'c "d"', 0.97, "one", "two", 3, 1234, "0.jpg", "1.jpg")],
    columns=[
        *("label", "into", "similarity", "dataset", "into_dataset", "images", "into_images"),
        *("image_path", "into_path"),
    ],
)


@pytest.fixture
def written(root, table):
    """Write a report and return its text."""

    def write(**more) -> str:
        told = more.pop("summary", summary(table))
        path = root / "report.html"
        stages = {"read": table, "unusable": table}
        write_report(
            path, told, table, root, left=left_after(stages), before=class_sizes(table), **more
        )
        return path.read_text(encoding="utf-8")

    return write


@pytest.fixture
def full(written, table) -> str:
    """With every section."""
    files = [{"file": "x/<i>.jpg", "split": "train", "reason": "broken & <bad>"}]
    pairs = pd.DataFrame([finding("leak", 0.98), finding("conflict", 0.97, "both dropped")])
    told = summary(table, dropped_files=files, notes=["<b>: no val split"])
    return written(summary=told, findings=pairs, merges=MERGES, earned=SELECTION)


def test_nothing_comes_from_elsewhere(full):
    page = Page(full)
    assert page.open == []
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert not page.all("link") and not page.all("iframe")
    assert all(attrs["src"].startswith("data:image/jpeg;base64,") for attrs in page.all("img"))
    assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert "@import" not in full and "://" not in full
    assert not re.search(r"(url\(|href=\")(?!#)", full)
    [policy] = [attrs for attrs in page.all("meta") if "http-equiv" in attrs]
    assert policy["content"].startswith("default-src 'none'")


def test_names_arrive_as_they_are(full):
    page = Page(full)
    for name in ODD:
        assert name in page.text
        assert f"{name}/class of {name}" in page.text
        assert f"{name}/class of {name}" in {attrs["alt"] for attrs in page.all("img")}
    for text in ("python src/curate.py --config 'a <b>.yaml'", "input/<x>", "no image <i>",
                 "x/<i>.jpg", "broken & <bad>", "<b>: no val split", "a: <b>", "+<b>"):  # fmt: skip
        assert text in page.text


def test_links_and_labels_lead_somewhere(full):
    page = Page(full)
    names = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(names) == len(set(names))
    wanted = {attrs["href"][1:] for attrs in page.all("a")}
    wanted |= {attrs["aria-labelledby"] for attrs in page.all("section")}
    assert wanted and wanted <= set(names) and len(page.all("section")) == len(page.all("a"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert all(attrs.get("alt") for attrs in page.all("img"))


def test_same_input_same_bytes(written):
    assert written(earned=SELECTION) == written(earned=SELECTION)


def test_thumbnails_are_small_and_true(written, table, root):
    pictures = {attrs["title"]: attrs for attrs in Page(written()).all("img")}
    assert set(pictures) == set(table["image_path"])
    for path, attrs in pictures.items():
        data = base64.b64decode(attrs["src"].partition(",")[2])
        image = Image.open(io.BytesIO(data))
        assert image.size == (int(attrs["width"]), int(attrs["height"])) and image.width == 128
        assert b"secret" not in data
        source = Image.open(root / path).resize((1, 1)).getpixel((0, 0))
        assert np.allclose(image.resize((1, 1)).getpixel((0, 0)), source, atol=3)


def test_what_was_not_looked_for_has_no_section(full, written):
    nothing = written(findings=pd.DataFrame(columns=FINDING), merges=MERGES[:0])
    every, some = ({attrs["id"] for attrs in Page(text).all("section")} for text in (full, nothing))
    assert every - some == {"merges", "selection"}


def test_an_empty_mix_has_a_page(tmp_path):
    table = pd.DataFrame(columns=["image_path", "label", "domain", "split"], dtype=str)
    path = tmp_path / "report.html"
    left, before = left_after({"read": table}), class_sizes(table)
    write_report(path, summary(table), table, tmp_path, left=left, before=before)
    assert Page(path.read_text(encoding="utf-8")).open == []


def test_a_picture_that_is_gone_is_said_to_be(written, root):
    (root / "3.jpg").unlink()
    (root / "4.jpg").write_text("no picture")
    page = Page(written())
    assert "no such image" in page.text
    assert any(text.startswith("not a readable image") for text in page.text)
    assert {attrs["title"] for attrs in page.all("img")}.isdisjoint({"3.jpg", "4.jpg"})


def test_a_name_that_is_no_utf8_is_written(written, table):
    files = [{"file": "bad-\udcff.jpg", "split": "train", "reason": "broken"}]
    assert "bad-\\udcff.jpg" in written(summary=summary(table, dropped_files=files))


def rows(*classes: tuple[str, str, str, int]) -> pd.DataFrame:
    """(dataset, label, split, images)."""
    made = [(d, label, split) for d, label, split, images in classes for _ in range(images)]
    table = pd.DataFrame(made, columns=["dataset", "label", "split"])
    return table.assign(domain=table["label"].str.partition("/")[0])


def test_funnel_counts_what_each_rule_left():
    read = rows(("x", "cars/a", "train", 5), ("x", "cars/a|cars/b", "train", 2),
                ("x", "cars/a", "test", 3), ("y", "toys/c", "train", 2))  # fmt: skip
    kept = read[(read["label"] != "cars/a|cars/b") & (read["dataset"] == "x")]
    cars, toys = funnels(left_after({"read": read, "min_images": kept}))
    assert [(stage.images, stage.classes, stage.lost) for stage in cars.stages] == [
        (10, 3, 0),  # a in train, b in train, a in test
        (8, 2, 2),
    ]
    assert [(stage.images, stage.lost, stage.share) for stage in toys.stages] == [
        (2, 0, 1.0),
        (0, 2, 0.0),  # gone, not passed over
    ]
    assert [(stage.name, stage.images) for stage in whole([cars, toys])] == [
        ("found", 12),
        ("classes large enough", 8),
    ]


def test_a_source_without_a_rule_loses_nothing_by_it():
    one, two = rows(("x", "cars/a", "train", 5)), rows(("y", "cars/a", "train", 9))
    accounts = [
        left_after({"read": one, "unusable": one[:4]}),
        left_after({"read": two, "unusable": two, "max_images": two[:6]}),
    ]
    first, second = funnels(pd.concat(accounts))
    assert [stage.images for stage in first.stages] == [5, 4, 4]
    assert [stage.images for stage in second.stages] == [9, 9, 6]
    assert [stage.name for stage in first.stages] == ["found", "readable", "capped"]


def test_rules_of_the_whole_mix_follow_those_of_the_sources():
    table = rows(("x", "cars/a", "train", 5), ("y", "cars/a", "train", 9))
    before = left_after({"read": table, "unusable": table})
    after = left_after({"unusable": table[:8], "leaks": table[:4]})
    first, second = funnels(pd.concat([before, after]))
    assert [stage.images for stage in first.stages] == [5, 5, 4]
    assert [stage.images for stage in second.stages] == [9, 3, 0]


def test_images_that_a_rule_moves_to_another_domain_are_counted_there():
    read = rows(("x", "unknown/a", "train", 5))
    moved = read.assign(domain=["cars", "cars", "cars", "toys", "toys"])
    parts = funnels(left_after({"read": read, "pseudo_labels": moved, "min_images": moved[:3]}))
    assert {part.domain: [stage.images for stage in part.stages] for part in parts} == {
        "cars": [0, 3, 3],
        "toys": [0, 2, 0],
        "unknown": [5, 0, 0],
    }
    assert [stage.share for stage in parts[0].stages] == [0, 1, 1]
    assert [(stage.images, stage.lost) for stage in whole(parts)] == [(5, 0), (5, 0), (3, 2)]


def test_a_table_without_datasets_takes_the_name_given():
    table = rows(("x", "cars/a", "train", 2), ("x", "cars/b", "train", 1))
    assert set(left_after({"read": table.drop(columns="dataset")}, "sop")["dataset"]) == {"sop"}
    table.loc[0, "dataset"] = None
    assert left_after({"read": table}, "sop").set_index("dataset")["images"].to_dict() == {
        "sop": 1,
        "x": 2,
    }


def test_sizes_count_train_and_val_of_every_label():
    table = rows(("x", "cars/a", "train", 5), ("x", "cars/a|cars/b", "val", 2),
                 ("x", "cars/a", "test", 3))  # fmt: skip
    assert class_sizes(table).to_dict() == {("cars", "cars/a"): 7, ("cars", "cars/b"): 2}


def test_histograms_agree_with_counting_one_by_one():
    sizes = np.random.default_rng(0).integers(1, 300, 200)
    index = pd.MultiIndex.from_product([["cars"], range(200)], names=["domain", "label"])
    before = pd.Series(sizes, index)
    after = before[before > 9].clip(upper=64)
    [panel] = histograms(before, after)
    counted = {}
    for bar in panel.bins:
        low, _, high = bar.name.partition("–")
        low, high = int(low), int(high or low)
        counted[bar.name] = [sum(low <= n <= high for n in part) for part in (before, after)]
    assert counted == {bar.name: [bar.before, bar.after] for bar in panel.bins}
    assert panel.classes == (200, len(after)) == tuple(np.sum(list(counted.values()), axis=0))
    assert panel.highest == max(map(max, counted.values()))
    assert [bar.name for bar in panel.bins][:5] == ["1", "2", "3–4", "5–8", "9–16"]


def test_a_domain_that_is_gone_keeps_its_histogram():
    index = pd.MultiIndex.from_tuples([("cars", "a"), ("toys", "b")], names=["domain", "label"])
    before = pd.Series([1, 2], index)
    cars, toys = histograms(before, before[:1])
    assert (cars.classes, toys.classes) == ((1, 1), (1, 0)) and toys.median == (2.0, 0.0)
    assert [(bar.name, bar.before, bar.after) for bar in toys.bins] == [("1", 0, 0), ("2", 1, 0)]


def test_small_classes_have_a_bin_for_each_size():
    index = pd.MultiIndex.from_product([["cars"], list("abc")], names=["domain", "label"])
    [panel] = histograms(pd.Series([3, 9, 12], index), pd.Series([3, 9, 12], index))
    assert [bar.name for bar in panel.bins if bar.after] == ["3", "9", "12"]
    assert len(panel.bins) == 12


def test_galleries_show_train_and_say_how_much_there_is():
    table = pd.concat([rows(("x", f"cars/{i}", "train", 9)) for i in range(20)])
    table = pd.concat([table, rows(("x", "cars/t", "test", 3), ("x", "toys/t", "test", 2))])
    table["image_path"] = [f"{i}.jpg" for i in range(len(table))]
    table = table.reset_index(drop=True)
    (cars, toys), hidden = galleries(table, seed=0)
    assert (cars.split, cars.total, len(cars.classes), hidden) == ("train", 20, CLASSES, 0)
    label_of = table.set_index("image_path")["label"]
    for shown in cars.classes:
        assert shown.images == 9 and len(set(shown.paths)) == IMAGES
        assert set(label_of[shown.paths]) == {shown.label}
    assert (toys.split, len(toys.classes[0].paths)) == ("test", 2)
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert galleries(shuffled, seed=0) == ([cars, toys], 0)
    assert galleries(table, seed=1) != ([cars, toys], 0)


@pytest.mark.parametrize("domains", [60, 1000])
def test_many_domains_share_the_room(domains):
    table = rows(*(("x", f"{d}/{c}", "train", 5) for d in range(domains) for c in "abcd"))
    table["image_path"] = table.index.astype(str)
    found, hidden = galleries(table, seed=0)
    assert len(found) + hidden == domains
    pictures = sum(len(shown.paths) for gallery in found for shown in gallery.classes)
    assert MAX_PICTURES / 2 < pictures <= MAX_PICTURES


def test_the_least_alike_pairs_are_shown_and_the_rest_counted(written):
    pairs = [
        finding("near duplicate", 0.9 + n / 1000, image_path=f"{n}.jpg", other_path=f"{n}.png")
        for n in range(SHOWN + 7)
    ]
    pairs += [finding("leak", 0.5, "stop"), finding("strange", 0.5)]
    table = pd.DataFrame(pairs[::-1])
    leak, near, strange = groups(table)
    assert (leak.kind, near.kind, strange.title) == ("leak", "near duplicate", "strange")
    assert [pair["similarity"] for pair in near.pairs] == [0.9 + n / 1000 for n in range(SHOWN)]
    assert near.total == SHOWN + 7 and near.actions == {"dropped": SHOWN + 7}
    page = Page(written(findings=table))
    assert any(t.startswith(f"{SHOWN} of {SHOWN + 7} finds, each") for t in page.text)
    assert len([a for a in page.all("article") if "pair" in a["class"].split()]) == SHOWN + 2
    # one mark for each image that went: the first of a pair
    assert page.text.count("dropped") == SHOWN + 1


def test_a_placeholder_leaves_room_for_other_pairs(written):
    """Two hundred images of one picture, in conflict by others; twenty of them duplicates."""
    crowd = [
        finding(kind, 0.9, image_path=f"{n}.jpg", other_path=f"{n // 2}.jpg")
        for kind, some in (("conflict", range(1, 200)), ("near duplicate", range(101, 120)))
        for n in some
    ]
    others = [
        finding(kind, 0.99, image_path="a", other_path="b")
        for kind in ("conflict", "near duplicate")
    ]
    table = pd.DataFrame(crowd + others)
    for kind in groups(table):
        assert [pair["similarity"] for pair in kind.pairs] == [0.9] * OF_ONE + [0.99]
    assert [kind.total for kind in groups(table)] == [200, 20]
    page = Page(written(findings=table))
    assert (
        f"{OF_ONE + 1} of 200 finds, each pair of pictures once and three at most of one picture, "
        "are shown." in page.text
    )


def test_a_find_is_explained_by_what_differs_and_by_the_numbers(written, table):
    near = finding("leak", 0.98, difference=0.123, limit=0.456, distance=7)
    doubtful = finding("conflict", 0.9, "reported", difference=0.5, sure=False, other_path="2.jpg")
    told = [finding("conflict", 0.9, said=True), finding("exact duplicate", 1.0, copy="exact")]
    placeholder = finding("placeholder", 1.0, copy="exact", labels=17)
    page = Page(written(findings=pd.DataFrame([near, doubtful, *told, placeholder])))
    text = " ".join(page.text)
    assert "7 bits apart, cosine 0.980, pixels differ by 0.12 (copies: up to 0.46)" in text
    assert "a picture under 17 labels" in text
    drawn = [attrs for attrs in page.all("img") if attrs["alt"].startswith("what differs")]
    assert len(drawn) == 3, "of each near pair"


def test_how_sure_cleaning_is_stands_in_a_table(written, table):
    row = {"domain": ODD[0], "labels": "none in common", "images": 9, "compared": 1234, "near": 7}
    row |= {"reach": 0.5, "exponent": 3.0, "sure_limit": 0.31, "copy_limit": 0.42, "sure": 5}
    row |= {"copies": 6, "false_sure": 0.25, "false_copies": 1.5, "recall_sure": 0.9}
    told = summary(table, copies=[row | {"recall_copies": None}])
    page = Page(written(summary=told, findings=pd.DataFrame([finding("leak", 0.98)])))
    for cell in (ODD[0], "1,234", "0.31", "0.25", "90%", "0.42", "1.50", "7"):
        assert cell in page.text


def test_both_images_of_a_dropped_conflict_are_marked(written):
    page = Page(written(findings=pd.DataFrame([finding("conflict", 0.9, "both dropped")])))
    assert page.text.count("dropped") == 2


def test_accepted_merges_are_a_legal_config():
    block = yaml.safe_load(accepting(MERGES.to_dict("records")))
    assert CleaningConfig(**block["clean"]).merge == {"a: <b>": 'c "d"'}


def test_selection_tells_what_was_turned_down(full):
    page = Page(full)
    assert "turned down" in page.text and "-0.0100" in page.text and "0.6000" in page.text
    assert "-0.0100" in "".join(told(full)) and "+<b>" in page.text


def told(html: str) -> list[str]:
    """What pages show where the mouse rests on something drawn, as it stands in the file."""
    return re.findall("<g><title>(.*?)</title>", html)


def drawings(html: str) -> list[str]:
    return re.findall("<svg.*?</svg>", html, flags=re.DOTALL)


def test_each_chart_says_what_it_is_and_has_its_own_ids(full):
    page = Page(full)
    charts = page.all("svg")
    assert len(charts) == len(ODD) - 1 + 2, "a panel a domain that has train images, and two more"
    assert all(chart["role"] == "img" and chart["aria-label"] for chart in charts)
    ids = re.findall(r'\bid="([^"]+)"', full)
    assert len(ids) == len(set(ids))
    referred = re.findall(r'(?:url\(|xlink:href="|<use href=")#([^")]+)', full)
    assert referred and set(referred) <= set(ids)
    assert pyplot.get_fignums() == []


def test_charts_are_small_plain_and_take_the_colours_of_the_page(full):
    for chart in drawings(full):
        assert len(chart) < 20_000
        assert not re.search(r"xmlns|metadata|<style|#222222|#777777|#dddddd|DejaVu", chart)
    assert any("var(--ink)" in chart for chart in drawings(full))


def test_the_funnel_and_the_sizes_show_their_numbers(written, table):
    page = written()
    funnel, *panels = drawings(page)
    for text in ("found", "readable", "<text", ">20<", ">in 5 classes<"):
        assert text in funnel
    assert len(panels) == len(ODD) - 1
    assert all("4 images: 1 classes before, 1 after" in panel for panel in panels)
    cells = re.findall('<td class="number" data-sort="1">1</td>', page)
    assert len(cells) >= len(panels), "one class of four images in each"


def test_what_a_rule_took_of_the_sizes_stands_in_the_table(root, table):
    left, before = left_after({"read": table, "max_images": table[1:]}), class_sizes(table)
    path = root / "report.html"
    write_report(path, summary(table), table[1:], root, left=left, before=before)
    page = path.read_text(encoding="utf-8")
    assert "1&nbsp;→&nbsp;0" in page and "0&nbsp;→&nbsp;1" in page
    assert "4 images: 1 classes before, 0 after" in page
    assert "−1<" in drawings(page)[0]


NASTY = ["<script>x</script>", "$\\foo$", "a$b", "\x00\x1b", "two\nlines", "日本語", "x" * 300]


def test_any_name_can_be_drawn(recwarn):
    steps = [(i, f"+{name}", 0.1, 0.01, 0.5, "") for i, name in enumerate(NASTY, start=1)]
    steps += [(pd.NA, f"-{name}", 0.01, pd.NA, pd.NA, "") for name in NASTY]
    text = inline_svg(figures.selection_curve(earned(*steps)), "a", "a <b>")
    page = Page(text)
    assert page.open == [] and not page.all("script")
    assert page.all("svg")[0]["aria-label"] == "a <b>"
    for name in ("<script>x</script>", "$\\foo$", "a$b", "\ufffd\ufffd", "two lines", "日本語"):
        assert f"+{name}" in page.text and f"-{name}" in page.text
    assert f"-{'x' * 300}: +0.0100" in page.text, "whole where the mouse rests"
    assert not recwarn.list


def test_a_chart_is_drawn_to_the_same_text_twice():
    first, second, other = (
        str(inline_svg(figures.selection_curve(SELECTION), name, "")) for name in "aab"
    )
    assert first == second != other
    assert first.replace('"a-', '"b-').replace("#a-", "#b-") == other


def test_hundreds_of_domains_make_a_page_of_megabytes_not_more(tmp_path):
    table = rows(*(("x", f"{d}/{c}", "train", n) for d in range(300) for c, n in enumerate((1, 5))))
    table["image_path"] = "none.jpg"
    steps = earned(*((n, f"+{n}", 0.1, 0.01, n / 300, "") for n in range(1, 301)),
                   *((pd.NA, f"-{n}", 0.1, pd.NA, pd.NA, "") for n in range(300)))  # fmt: skip
    path, left = tmp_path / "report.html", left_after({"read": table})
    write_report(
        path, summary(table), table, tmp_path, left=left, before=class_sizes(table), earned=steps
    )
    text = path.read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    assert "the best 20 of 300" in text and "200 of 300 domains are shown" in text
