"""The page of a report: whole in one file, every name escaped, its numbers those of the report."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from page_parser import Page

import validate
from guie.base.errors import UserError
from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import evaluate
from guie.report.pages.evaluation import write_evaluation
from guie.report.pages.evaluation_scores import ModelReports, short_names
from scored_pages import (
    BROKEN,
    CLOSING,
    DOMAINS,
    MISSING,
    SCRIPT,
    embeddings,
    scored_table,
    write_scored,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def table(root):
    return scored_table(root)


@pytest.fixture(scope="module")
def arguments(root, table, tmp_path_factory) -> list[str]:
    """Of validate.py: two models' embeddings, of which the first is to be scored."""
    folder = tmp_path_factory.mktemp("runs")
    table.to_csv(folder / "mix.csv", index=False)
    for name, noise, seed in (("a", 1.0, 0), ("b", 1.6, 1)):
        paths, emb_TD = table["image_path"].to_numpy(str), embeddings(table, noise, seed)
        (folder / name).mkdir()
        np.savez(folder / name / "E.npz", image_path=paths, embedding=emb_TD)
    files = {"embeddings": "a/E.npz", "manifest": "mix.csv", "out": "r.json", "html": "page.html"}
    words = [word for key, name in files.items() for word in (f"--{key}", str(folder / name))]
    return [*words, "--root", str(root), "--draws", "20"]


def other(arguments: list[str]) -> str:
    return arguments[1].replace("/a/", "/b/")


def validated(arguments: list[str], *more: str) -> str:
    """Write a page by validate.py and return its text."""
    page, said = Path(arguments[7]), io.StringIO()
    with redirect_stdout(said):
        validate.main([*arguments, *more])
    assert f"wrote {page}" in said.getvalue()
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def two(arguments) -> str:
    html = validated(arguments, "--against", other(arguments))
    [message] = json.loads(Path(arguments[5]).read_text())["against"]
    assert message["embeddings"] == other(arguments) and len(message["verdicts"]) == 2
    return html


@pytest.fixture(scope="module")
def bare(arguments) -> str:
    """One model, no pictures."""
    return validated(arguments, "--no-images")


def test_nothing_comes_from_elsewhere(two):
    page = Page(two)
    assert page.open == []
    assert all(attrs["src"].startswith("data:image/jpeg;base64,") for attrs in page.all("img"))
    assert all(attrs["href"].startswith("#") for attrs in page.all("a"))
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert not page.all("link") and "@import" not in two and "://" not in two
    [policy] = [attrs for attrs in page.all("meta") if "http-equiv" in attrs]
    assert policy["content"].startswith("default-src 'none'")
    names = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(names) == len(set(names))
    assert {attrs["href"][1:] for attrs in page.all("a")} <= set(names)


def test_foreign_names_stay_text(two):
    page = Page(two)
    assert SCRIPT not in two and "<img src=x" not in two
    assert len(page.all("script")) == 3  # the points, their pictures, and the page's own
    assert SCRIPT in page.text and any(CLOSING in text for text in page.text)
    data = json.loads(re.search(r'id="map-points">(.*?)</script>', two)[1])
    assert {point["domain"] for point in data} == set(DOMAINS)


def test_the_numbers_are_the_reports(two, table):
    report = evaluate(embeddings(table, 1.0), table)
    page = Page(two)
    values = [attrs["data-sort"] for attrs in page.all("td") if "data-sort" in attrs]
    for name in DOMAINS:
        for key in ("r_at_1", "mmp_at_5", "map_at_100"):
            assert str(report["domains"][name][key]) in values
    assert str(report["mean"]["r_at_1"]) in values
    assert sum("interval" in attrs.get("class", "") for attrs in page.all("span")) > 12


def test_two_models_stand_side_by_side(two):
    page = Page(two)
    assert any(re.match(r"R@1: .*a/E is .*b/E", text) for text in page.text)
    assert "Side by side" in page.text and "mix.csv, test split" in page.text
    assert "only by a/E" in page.text and "only by b/E" in page.text
    assert sum("best" in attrs.get("class", "") for attrs in page.all("td")) >= 3 * 3


def test_what_cannot_be_shown_is_told(two, table):
    pictures = json.loads(re.search(r'id="map-pictures">(.*?)</script>', two)[1])
    gone = {table["image_path"][row] for row in (MISSING, BROKEN)}
    assert {path for path, picture in pictures.items() if picture["fault"]} == gone


def test_without_images_there_is_no_picture(bare):
    page = Page(bare)
    assert not page.all("img") and "data:image" not in bare
    assert page.all("circle") and "cars" in page.text


def test_same_input_same_bytes(arguments, bare):
    assert validated(arguments, "--no-images") == bare


def test_specialists_have_no_map_in_common(root, table):
    oracle = {name: embeddings(table, 1.0, seed) for seed, name in enumerate(DOMAINS)}
    models = {"the specialists": oracle}
    html = write_scored(root / "page.html", root, table, models=models, pictures=False)
    assert 'id="map"' not in html and 'id="hubs"' in html


def test_graded_pairs_have_no_classes_to_look_into(root, table):
    """Scores alone, by whatever metrics the protocol has; where they cannot be written, one line."""
    protocol = protocol_of("revisited")
    scores = {"easy_ap": 0.5, "queries": 3, "queries_without_positive": 0}
    part = {"domains": {"roxford": scores}, "mean": {"easy_ap": 0.5}, "index": "separate"}
    reports = [{"protocol": "revisited", "parts": {"separate": part | {"dimension": 8}}}]
    model = ModelReports("ours", reports, embeddings(table, 1.0))
    (root / "folder").mkdir()
    with pytest.raises(UserError, match="folder"):
        write_evaluation(root / "folder", [model], [protocol], table, root)
    write_evaluation(root / "graded.html", [model], [protocol], table, root)
    page = Page((root / "graded.html").read_text())
    assert "easy ap" in page.text and "0.500" in page.text and not page.all("svg")


@pytest.mark.parametrize(
    "files, names",
    [
        (["/x/runs/a/E.npz"], ["a/E"]),
        (["E.npz"], ["E"]),
        (["/E.npz"], ["/E"]),
        (["the specialists"], ["the specialists"]),
        (["the specialists", "/x/runs/side.npz"], ["the specialists", "side"]),
        (["/x/runs/a/E.npz", "/x/runs/b/c/E.npz"], ["a/E", "c/E"]),
        (["/x/a.npz", "/x/b.npz", "/x/c.npz"], ["a", "b", "c"]),
        (["E.npz", "./E.npz"], ["E.npz", "./E.npz"]),
    ],
)
def test_short_names(files, names):
    assert short_names(files) == names


def test_a_file_that_is_named_twice_is_refused(arguments, capsys):
    for files in ([arguments[1]], [other(arguments)] * 2):
        with pytest.raises(SystemExit):
            validate.main([*arguments, "--against", *files])
        assert "a file is named twice" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_a_perfect_model_on_little_has_nothing_to_show(root, table):
    """One class alone in its domain: no wrong answer lies there; five queries make no map."""
    few = table.iloc[[0, 1, 2, 17, 18]].reset_index(drop=True)
    html = write_scored(
        root / "few.html",
        root,
        few,
        models={"E.npz": embeddings(few, 0.0)},
        protocols=["separate"],
    )
    page = Page(html)
    assert "Every first answer is right." in page.text
    assert "No first answer is from another domain." in page.text
    assert "no wrong answer in the index" in page.text and 'id="map"' not in html
    assert not any(re.search(r"\bnan\b", text, re.IGNORECASE) for text in page.text)
