"""The evaluation page: whole in one file, every name escaped, its numbers those of the report."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from page_parser import Page, check_self_contained

import validate
from guie.base.errors import UserError
from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import evaluate
from guie.report.pages.evaluation import short_names, write_evaluation
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
    """Arguments of validate.py: two models' embeddings, of which the first is to be scored."""
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


def written(arguments: list[str], *more: str) -> str:
    """Write a page by validate.py and return its text."""
    validate.main([*arguments, *more])
    return Path(arguments[7]).read_text(encoding="utf-8")


def test_two_models_are_compared_in_one_file(arguments, table):
    html = written(arguments, "--against", other(arguments))
    [against] = json.loads(Path(arguments[5]).read_text())["against"]
    assert against["embeddings"] == other(arguments) and len(against["verdicts"]) == 2
    check_self_contained(html)
    page = Page(html)

    assert SCRIPT not in html and "<img src=x" not in html
    assert len(page.all("script")) == 3  # the points, their pictures, and the page's own
    assert SCRIPT in page.text and any(CLOSING in text for text in page.text)
    points, pictures = (
        json.loads(re.search(f'id="map-{name}">(.*?)</script>', html)[1])
        for name in ("points", "pictures")
    )
    assert {point["domain"] for point in points} == set(DOMAINS)
    missing = {table["image_path"][row] for row in (MISSING, BROKEN)}
    assert {path for path, picture in pictures.items() if picture["fault"]} == missing

    report = evaluate(embeddings(table, 1.0), table)
    values = {attrs["data-sort"] for attrs in page.all("td") if "data-sort" in attrs}
    scores = [*report["domains"].values(), report["mean"]]
    wanted = {str(one[key]) for one in scores for key in ("r_at_1", "mmp_at_5", "map_at_100")}
    assert wanted <= values
    assert sum("interval" in attrs.get("class", "") for attrs in page.all("span")) > 12
    assert sum("best" in attrs.get("class", "") for attrs in page.all("td")) >= 3 * 3
    assert any(re.match(r"R@1: .*a/E is .*b/E", text) for text in page.text)
    assert any(
        text.startswith(f"R@10 {report['mean']['recall_at_10']:.3f}, ") for text in page.text
    )
    texts = {"Side by side", "mix.csv, test split", "only by a/E", "only by b/E"}
    assert texts <= set(page.text)


def test_without_images_there_is_no_picture(arguments):
    html = written(arguments, "--no-images")
    page = Page(html)
    assert not page.all("img") and "data:image" not in html
    assert page.all("circle") and "cars" in page.text


def test_graded_pairs_have_only_scores(root, table):
    """By the metrics of the protocol; a page that cannot be written is one line."""
    scores = {"easy_ap": 0.5, "queries": 3, "queries_without_positive": 0}
    part = {"domains": {"roxford": scores}, "mean": {"easy_ap": 0.5}, "index": "separate"}
    report = {"protocol": "revisited", "parts": {"separate": part | {"dimension": 8}}}
    models, reports = {"ours": embeddings(table, 1.0)}, {"ours": [report]}
    (root / "folder").mkdir()
    with pytest.raises(UserError, match="folder"):
        write_evaluation(root / "folder", models, reports, [protocol_of("revisited")], table, root)
    path = root / "graded.html"
    write_evaluation(path, models, reports, [protocol_of("revisited")], table, root)
    page = Page(path.read_text())
    assert "easy ap" in page.text and "0.500" in page.text and not page.all("svg")
    assert [attrs["href"] for attrs in page.all("a")] == ["#scores"]


@pytest.mark.parametrize(
    "files, names",
    [
        (["/x/runs/a/E.npz"], ["a/E"]),
        (["the specialists", "/x/runs/side.npz"], ["the specialists", "side"]),
        (["/x/runs/a/E.npz", "/x/runs/b/c/E.npz"], ["a/E", "c/E"]),
        (["E.npz", "./E.npz"], ["E.npz", "./E.npz"]),
    ],
)
def test_short_names(files, names):
    assert short_names(files) == names


@pytest.mark.filterwarnings("error")
def test_a_perfect_model_on_few_images_has_nothing_to_show(root, table):
    """One class alone in its domain: no wrong answer is there; five queries make no map."""
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
    # Specialists have no common map
    oracle = {name: embeddings(table, 1.0, seed) for seed, name in enumerate(DOMAINS)}
    models = {"the specialists": oracle}
    html = write_scored(root / "page.html", root, table, models=models, pictures=False)
    assert 'id="map"' not in html and 'id="hubs"' in html
