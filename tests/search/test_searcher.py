"""Queries: by pictures, parts, pictures of the index; in domains; exact, approximate, re-ranked."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import search
from guie.base.errors import UserError
from guie.evaluation.confidence import FEWEST, describe, measure, sure, to_measure
from guie.evaluation.knn import ExactIndex
from guie.evaluation.rerank import Reranker
from guie.models.pretrained import sha256_of
from guie.search import Searcher, open_index
from guie.search.engines import Approximate, Exact, Hit
from guie.search.updating import recipe_hash
from some_pictures import folder_of, indexed, picture


def paths(hits: list[Hit]) -> list[str]:
    return [hit.image_path for hit in hits]


def test_a_picture_finds_itself_and_its_class(searcher: Searcher) -> None:
    assert isinstance(searcher.engine, Exact)
    names, vectors = searcher.engine.files["image_path"], searcher.engine.vectors_ND
    first, *rest = searcher.query(searcher.root / names[7], k=5)
    assert first.image_path == names[7] and first.distance < 1e-3 and len(rest) == 4
    expected = np.argsort(-(vectors @ vectors[7]), kind="stable")[1:6]
    near = searcher.like(names[7], k=5)
    assert paths(near) == names[expected].tolist()
    similarity = float(vectors[expected[0]] @ vectors[7])
    assert near[0].distance == pytest.approx((2 - 2 * similarity) ** 0.5, abs=1e-5)
    assert len(searcher.like(names[7], k=2**31 - 1)) == 29
    both = searcher.query_many([searcher.root / names[7], picture(3, 50)], 4)
    assert both[1] == searcher.query(picture(3, 50), 4) and paths(both[0])[0] == names[7]
    plain = [hit for hit in searcher.like(names[7], k=29) if hit.domain == "left"]
    assert searcher.like(names[7], k=29, domain="LEF") == plain
    with pytest.raises(UserError, match="no domain contains 'x'; the index has: left, right"):
        searcher.like(names[7], domain="x")
    with pytest.raises(UserError, match="gone.png: not in the index"):
        searcher.like("gone.png")
    with pytest.raises(UserError, match="a value that is not finite"):
        searcher.near(np.full((1, vectors.shape[1]), np.nan))


def test_ties_go_to_the_lower_path(run: Path, tmp_path: Path) -> None:
    """Though Lance returns rows in another order after an update."""
    (tmp_path / "p").mkdir()
    for name in "cxbya":
        picture(1, 1).save(tmp_path / f"p/{name}.png")
    indexed(run, tmp_path / "p", tmp_path / "index")
    (tmp_path / "p/b.png").unlink()
    indexed(run, tmp_path / "p", tmp_path / "index")
    picture(1, 1).save(tmp_path / "p/b.png")
    indexed(run, tmp_path / "p", tmp_path / "index")
    for options in ([], ["--ann"]):
        words = ["index", "--model", str(run), "--images", str(tmp_path / "p"), "--workers", "1"]
        search.main([*words, "--out", str(tmp_path / "index"), *options])
        found = paths(open_index(tmp_path / "index").query(picture(1, 1)))
        assert found == [f"{name}.png" for name in "abcxy"]


def test_a_box_is_a_picture_of_its_own_and_a_turned_one_stands_upright(
    searcher: Searcher, tmp_path: Path
) -> None:
    inner, whole = picture(3, 50), Image.new("RGB", (90, 80), "white")
    whole.paste(inner, (20, 30))
    boxed = searcher.query(whole, 3, (20, 30, 60, 62))
    assert boxed == searcher.query(inner, 3) != searcher.query(whole, 3)
    for box in ((0, 0, 91, 10), (5, 5, 5, 9), (9, 0, 4, 8)):
        with pytest.raises(UserError, match="is not in the image of 90 x 80"):
            searcher.query(whole, 3, box)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    inner.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    assert searcher.query(tmp_path / "turned.png", 3) == searcher.query(inner, 3)


def test_how_sure_it_is(searcher: Searcher) -> None:
    known = searcher.index.facts.confidence
    assert known and known["labelled"] and known["pictures"] == 30
    sures = [hit.sure for hit in searcher.like(searcher.engine.files["image_path"][7], k=29)]
    assert all(0 <= s <= 1 for s in sures) and sures == sorted(sures, reverse=True)
    assert "neighbour of the same label" in describe(known)
    # Near is right, far is wrong
    labels, score = [f"d/{n % 30}" for n in range(60)], np.linspace(0.2, 1, 60)
    found = measure(
        labels, [a if s > 0.6 else "d/x" for a, s in zip(labels, score, strict=True)], score, True
    )
    assert sure(found, 0.99) == 1 and sure(found, 0.3) == 0
    unlabelled = measure([""] * 60, [""] * 60, score, False)
    assert unlabelled and "farther away" in describe(unlabelled)
    assert sure(unlabelled, 1.0) == 1 and sure(unlabelled, -1.0) == 0 and sure(None, 0.5) is None
    assert measure(labels[: FEWEST - 1], labels[: FEWEST - 1], score[: FEWEST - 1], True) is None
    rows, labelled = to_measure(np.array(["a", "b", "", *labels], object))
    assert labelled and rows.tolist() == [*range(3, 63)]  # others have no right neighbour
    assert not to_measure(np.arange(50).astype(str).astype(object))[1]


def test_an_approximate_index_answers_from_the_disk(run: Path, tmp_path: Path, capsys) -> None:
    pictures, out = folder_of(tmp_path, classes=6, each=5), tmp_path / "index"
    indexed(run, tmp_path / "m.csv", tmp_path / "exact", regions=5)
    words = ["index", "--model", str(run), "--images", str(tmp_path / "m.csv"), "--workers", "1"]
    search.main([*words, "--out", str(out), "--ann", "--regions", "5"])
    assert "(approximate, recall at 10 1.000)" in capsys.readouterr().out
    exact, near = open_index(tmp_path / "exact"), open_index(out)
    assert isinstance(near.engine, Approximate)
    for asked in ({"k": 4}, {"k": 40}, {"k": 9, "domain": "left"}):
        one, other = (at.like("pictures/left/1_0.png", **asked) for at in (exact, near))
        assert paths(one) == paths(other) and [h.region for h in one] == [h.region for h in other]
        assert [h.similarity for h in one] == pytest.approx([h.similarity for h in other], abs=1e-6)
    picture(9, 9).save(pictures / "left/new.png")
    table = pd.read_csv(tmp_path / "m.csv")
    new = table[-1:].assign(image_path="pictures/left/new.png", domain="left", label="left/9")
    pd.concat([table, new]).to_csv(tmp_path / "m.csv", index=False)
    search.main([*words, "--out", str(out)])
    near.refresh()
    assert near.query(picture(9, 9), 1)[0].image_path == "pictures/left/new.png"
    for index, kind in ((out, "an approximate search"), (tmp_path / "exact", "several regions")):
        with pytest.raises(UserError, match=f"{kind}.*, which cannot be re-ranked"):
            open_index(index, rerank=["csls"])


def test_re_ranking_is_that_of_validation(searcher: Searcher) -> None:
    methods = ["expand", "csls"]
    reranked = open_index(searcher.index.folder, rerank=methods)
    names, vectors = searcher.engine.files["image_path"], searcher.engine.vectors_ND
    find = ExactIndex(vectors).search
    for row in (0, 7, 29):
        expected, _ = Reranker(vectors, find, methods).search(vectors[[row]], 8, np.array([row]))
        hits = reranked.like(names[row], 8)
        assert paths(hits) == names[expected[0]].tolist()
        cosine = vectors[expected[0]] @ vectors[row]
        assert [hit.similarity for hit in hits] == pytest.approx(cosine.tolist(), abs=1e-6)
    left = np.flatnonzero(searcher.engine.files["domain"] == "left")
    alone = Reranker(vectors[left], ExactIndex(vectors[left]).search, methods)
    expected, _ = alone.search(vectors[left[[2]]], 8, np.array([2]))
    assert paths(reranked.like(names[left[2]], 8, "left")) == names[left[expected[0]]].tolist()
    with pytest.raises(UserError, match="--rerank x: unknown"):
        open_index(searcher.index.folder, rerank=["x"])


def test_a_submission_is_known_by_its_hash_before_it_is_opened(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*given: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr("guie.evaluation.queries.load_embedding_model", opened)
    swapped, folder = tmp_path / "submission.zip", searcher.index.folder
    swapped.write_bytes(b"a program")
    for name, fault in (
        ("submission.zip", "not the model that"),
        ("gone.zip", "no such submission;"),
    ):
        with pytest.raises(UserError, match=f"{name}: {fault} .*--model"):
            open_index(folder, str(tmp_path / name)).query(picture(1, 1))
    own = open_index(folder, str(swapped))
    recipe = recipe_hash({"submission_sha256": sha256_of(swapped)})
    own.index.facts = replace(own.index.facts, recipe=recipe)
    with pytest.raises(AssertionError, match="it was opened"):
        own.query(picture(1, 1))


INDEX = ["index", "--model", "m", "--images", "i", "--out", "o"]
QUERY = ["query", "--index", "none"]
COPIES = ["duplicates", "--index", "none", "--out"]


@pytest.mark.parametrize(
    "words, fault",
    [
        ([*QUERY, "--k", "²", "a.png"], "argument --k: "),
        ([*QUERY, "--k", "0", "a.png"], "argument --k: "),
        ([*QUERY, "--box", "1,2,-1,4", "a.png"], "box 1,2,-1,4: must be left"),
        ([*QUERY, "--text", "a", "--box", "0,0,9,9"], "--box: is a part of an image"),
        (QUERY, "give an image, or --text"),
        (["serve", "--index", "i", "--port", "99999"], "argument --port: "),
        ([*COPIES, ""], "argument --out: "),
        ([*INDEX, "--shard", "4/4"], "argument --shard: "),
        ([*INDEX, "--regions", "7"], "argument --regions: "),
        ([*INDEX, "--size-px", "64"], "--size-px and --fit: need a model LIBRARY:NAME:TAG"),
        ([*QUERY, "photo.jpg", "--json", "photo.jpg"], "would replace .*; write it elsewhere"),
        ([*QUERY, "photo.jpg", "--json", "f", "--html", "./f"], "would replace"),
        ([*COPIES, "c.csv", "--html", "c.csv"], "would replace"),
        ([*QUERY, __file__, "gone"], "gone: no such file or folder$"),
        (["push", "ftp://a", "--index", "none"], "none: no index"),
        (["query", "--index", "a\udce9", "a.png"], r"'a\\udce9': is not UTF-8; rename"),
    ],
)
def test_faults_are_found_before_work(words: list[str], fault: str, capsys) -> None:
    with pytest.raises((UserError, SystemExit)) as ended:
        search.main(words)
    assert re.search(fault, str(ended.value) + capsys.readouterr().err)


def test_a_name_that_commands_the_terminal_is_escaped() -> None:
    hit = Hit("left/\x1b]0;mine\x07 ü.png", "left", "", 1.0, 0.0, None)
    assert hit.description == r"  0.000  left/\x1b]0;mine\x07 ü.png  left"


def test_the_commands(loaders: None, run: Path, tmp_path: Path, capsys) -> None:
    pictures, out = folder_of(tmp_path, classes=4, each=6), tmp_path / "index"
    base = Image.effect_noise((96, 96), 80).resize((192, 192)).convert("RGB")
    base.save(pictures / "one.png")
    base.save(pictures / "right" / "the_same.bmp")
    base.resize((160, 160)).save(pictures / "smaller.jpg", quality=85)
    made = ["index", "--model", str(run), "--images", str(pictures), "--workers", "1"]
    search.main([*made, "--out", str(out)])
    assert f"{out}: 27 images, 16 dimensions (exact): 27 new" in capsys.readouterr().out
    run.rename(tmp_path / "run")
    pictures.rename(tmp_path / "moved")
    moved = ["--model", str(tmp_path / "run"), "--root", str(tmp_path / "moved")]
    asked = [str(tmp_path / "moved" / name) for name in ("left/1_0.png", "right/0_0.png")]
    words = ["query", "--index", str(out), *asked, "--k", "3", "--domain", "left"]
    found = [f"--{kind}={tmp_path / 'found'}.{kind}" for kind in ("json", "html")]
    try:
        with pytest.raises(UserError, match="run: no such .* --model"):
            search.main([*words, *found])
        search.main([*words, *found, *moved])
        first, second = json.loads((tmp_path / "found.json").read_text())
        assert first["hits"][0]["image_path"] == "left/1_0.png"
        assert {hit["domain"] for hit in second["hits"]} == {"left"}
        page = (tmp_path / "found.html").read_text()
        assert page.count("data:image/jpeg") == 8 and "src=x" not in page
        words = ["duplicates", "--index", str(out), "--out", str(tmp_path / "copies.csv")]
        search.main([*words, "--html", str(tmp_path / "copies.html"), *moved[2:]])
    finally:
        (tmp_path / "run").rename(run)
    copies = pd.read_csv(tmp_path / "copies.csv").set_index("image_path")
    group = copies[copies["group"] == copies.loc["one.png", "group"]]
    assert set(group.index) == {"one.png", "right/the_same.bmp", "smaller.jpg"}
    assert group.loc["one.png", "kind"] == "equal" == group.loc["right/the_same.bmp", "kind"]
    assert group.loc["smaller.jpg", "kind"] in ("copy", "alike")
    assert "smaller.jpg" in (tmp_path / "copies.html").read_text()
