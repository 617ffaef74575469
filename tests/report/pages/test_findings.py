"""What cleaning found, pair by pair: which are shown, and how they are explained."""

from __future__ import annotations

import pandas as pd
from mix_report import MERGES, ODD, finding, summary
from page_parser import Page

from guie.config.data import CleaningConfig
from guie.config.loading import parsed
from guie.report.pages.mix import OF_ONE, SHOWN, accepting, groups


def test_the_least_alike_pairs_are_shown_and_the_rest_counted(written):
    pairs = [
        finding("near duplicate", 0.9 + n / 1000, image_path=f"{n}.jpg", other_path=f"{n}.png")
        for n in range(SHOWN + 7)
    ]
    pairs += [finding("leak", 0.5, "stop"), finding("strange", 0.5)]
    table = pd.DataFrame(pairs[::-1])
    leak, near, strange = groups(table)
    assert (leak["kind"], near["kind"], strange["title"]) == ("leak", "near duplicate", "strange")
    assert [pair["similarity"] for pair in near["pairs"]] == [0.9 + n / 1000 for n in range(SHOWN)]
    assert near["total"] == SHOWN + 7 and near["actions"] == {"dropped": SHOWN + 7}
    page = Page(written(findings=table))
    assert any(t.startswith(f"{SHOWN} of {SHOWN + 7} findings (each") for t in page.text)
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
        assert [pair["similarity"] for pair in kind["pairs"]] == [0.9] * OF_ONE + [0.99]
    assert [kind["total"] for kind in groups(table)] == [200, 20]
    page = Page(written(findings=table))
    assert (
        f"{OF_ONE + 1} of 200 findings (each pair once, at most three of one image) are shown."
        in page.text
    )


def test_a_find_is_explained_by_what_differs_and_by_the_numbers(written, table):
    near = finding("leak", 0.98, difference=0.123, limit=0.456, distance=7)
    doubtful = finding("conflict", 0.9, "reported", difference=0.5, sure=False, other_path="2.jpg")
    message = [finding("conflict", 0.9, confirmed=True), finding("exact duplicate", 1.0, copy="exact")]
    placeholder = finding("placeholder", 1.0, copy="exact", labels=17)
    page = Page(written(findings=pd.DataFrame([near, doubtful, *message, placeholder])))
    text = " ".join(page.text)
    assert "7 bits apart, cosine 0.980, pixels differ by 0.12 (copies: up to 0.46)" in text
    assert "a picture with 17 labels" in text
    drawn = [attrs for attrs in page.all("img") if attrs["alt"].startswith("difference")]
    assert len(drawn) == 3, "of each near pair"


def test_how_sure_cleaning_is_stands_in_a_table(written, table):
    row = {"domain": ODD[0], "labels": "none in common", "images": 9, "compared": 1234, "near": 7}
    row |= {"reach": 0.5, "exponent": 3.0, "sure_limit": 0.31, "copy_limit": 0.42, "sure": 5}
    row |= {"copies": 6, "false_sure": 0.25, "false_copies": 1.5, "recall_sure": 0.9}
    message = summary(table, copies=[row | {"recall_copies": None}])
    page = Page(written(summary=message, findings=pd.DataFrame([finding("leak", 0.98)])))
    for cell in (ODD[0], "1,234", "0.31", "0.25", "90%", "0.42", "1.50", "7"):
        assert cell in page.text


def test_both_images_of_a_dropped_conflict_are_marked(written):
    page = Page(written(findings=pd.DataFrame([finding("conflict", 0.9, "both dropped")])))
    assert page.text.count("dropped") == 2


def test_accepted_merges_are_a_legal_config():
    block = parsed(accepting(MERGES.to_dict("records"))).plain
    assert CleaningConfig(**block["clean"]).merge == {"a: <b>": 'c "d"'}
