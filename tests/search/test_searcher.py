"""Queries: by a picture, its part, a picture of the index; among domains; exactly and nearly so."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

# pytorch-metric-learning loads it, and faiss is stricter from then on: tests of both in one process
import faiss.contrib.torch_utils
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import search
from guie.base.errors import UserError
from guie.evaluation.knn import ExactIndex
from guie.evaluation.rerank import Reranker
from guie.models.pretrained import sha256_of
from guie.search import Searcher, engines, open_index
from guie.search.building import finish
from guie.search.engines import (
    Approximate,
    Flat,
    among,
    describe,
    engine_of,
    filled,
    measure_confidence,
    sure,
)
from guie.search.index import Confidence, Facts, recipe_hash
from guie.search.searcher import Hit
from some_pictures import folder_of, indexed, picture


def test_a_picture_finds_itself_and_its_class(searcher: Searcher) -> None:
    root = Path(searcher.index.facts.root)
    path = searcher.index.files["image_path"].iloc[7]
    first, *rest = searcher.query(root / path, k=5)
    assert first.image_path == path and first.distance < 1e-3 and len(rest) == 4
    assert [hit.distance for hit in rest] == sorted(hit.distance for hit in rest)
    assert path not in [hit.image_path for hit in searcher.like(7, k=29)]
    assert len(searcher.like(7, k=100)) == 29
    vectors = searcher.vectors_ND
    expected = np.argsort(-(vectors @ vectors[7]), kind="stable")[1:6]
    assert [hit.row for hit in searcher.like(7, k=5)] == expected.tolist()
    similarity = float(vectors[expected[0]] @ vectors[7])
    assert searcher.like(7, k=1)[0].distance == pytest.approx((2 - 2 * similarity) ** 0.5, abs=1e-5)


def test_among_domains(searcher: Searcher) -> None:
    plain = [hit for hit in searcher.like(7, k=29) if hit.domain == "left"]
    among = searcher.like(7, k=29, domain="LEF")
    assert [hit.row for hit in among] == [hit.row for hit in plain]
    with pytest.raises(UserError, match="no domain contains 'x'; the index has: left, right"):
        searcher.like(7, domain="x")


@pytest.mark.parametrize("mapped", [False, True])
def test_among_rows_is_exact_and_ties_go_to_the_lower_row(mapped: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.integers(-1, 2, (3000, 4)).astype(np.float32)  # 81 kinds: every rank is tied
    if mapped:
        np.save(tmp_path / "v.npy", vectors)
        vectors = np.asarray(np.load(tmp_path / "v.npy", mmap_mode="r"))
    for size in (1, 2, 9, 500, 3000):
        rows = np.sort(rng.choice(3000, size, replace=False))
        for k, own in ((1, None), (7, None), (7, int(rows[0])), (300, 2999), (4000, None)):
            query = vectors[rows[0]]
            left = rows[rows != own] if own is not None else rows
            score = vectors[left] @ query  # of small integers: exact
            expected = left[np.argsort(-score, kind="stable")[:k]]
            found, similarity = among(vectors, rows, query, k, own)
            assert found.tolist() == expected.tolist()
            assert similarity.tolist() == (vectors[expected] @ query).tolist()


def test_a_query_within_a_domain_copies_no_vectors(searcher: Searcher) -> None:
    """Of a large index they may be larger than memory."""
    count = 200_000
    vectors = np.random.default_rng(0).normal(size=(count, 64)).astype(np.float32)
    domains = pd.Series(["even", "odd"] * (count // 2))
    files = pd.DataFrame({"image_path": "x", "label": ""}, range(count)).assign(domain=domains)
    large = Searcher(replace(searcher.index, files=files), searcher.engine)
    large.vectors_ND = vectors
    large.near(vectors[4], 3, "odd")  # the codes of the domains are kept
    tracemalloc.start()
    hits = large.near(vectors[4], 3, "odd")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = 1 + 2 * np.argsort(-(vectors[1::2] @ vectors[4]), kind="stable")[:3]
    assert [hit.row for hit in hits] == expected.tolist()
    assert peak_bytes < vectors[1::2].nbytes / 5


@pytest.mark.parametrize("factory", ["SQ8", "IVF4,SQ8", "HNSW8"])
def test_a_query_within_a_domain_is_exact_whatever_the_factory(
    factory: str, searcher: Searcher, tmp_path: Path
) -> None:
    engine = Approximate(filled(factory, searcher.vectors_ND, tmp_path), searcher.vectors_ND, None)
    approximate = Searcher(searcher.index, engine)
    for row in range(5):
        assert approximate.like(row, 9, "left") == searcher.like(row, 9, "left")


def test_an_inverted_file_is_trained_on_64_vectors_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    monkeypatch.setattr(engines, "TRAINED_ON", 300)
    counts = []
    train = faiss.IndexIVFFlat.train
    monkeypatch.setattr(
        faiss.IndexIVFFlat, "train", lambda self, x: counts.append(len(x)) or train(self, x)
    )
    for factory in ("IVF3,Flat", "IVF16,Flat", "IVF50,Flat"):
        assert engines.trained(factory, vectors).is_trained
    assert counts == [300, 16 * 64, 2000]


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
    known = searcher.index.facts.sureness
    assert known and known["labelled"] and known["pictures"] == 30
    sures = [hit.sure for hit in searcher.like(7, k=29)]
    assert all(0 <= s <= 1 for s in sures) and sures == sorted(sures, reverse=True)
    assert "neighbour of the same label" in describe(known)

    # One class on each side of a gap: near is right, far is wrong
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(32)[:30], 2, axis=0)
    noise = np.repeat([[0.02], [0.02]] * 20 + [[3.0], [3.0]] * 10, 1, axis=0)
    vectors = (centres + noise * rng.normal(size=(60, 32)) / 5).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    files = pd.DataFrame({"label": np.repeat([f"d/{n}" for n in range(30)], 2)})
    found = measure_confidence(files, vectors, Flat(vectors))
    assert sure(found, 0.999) > 0.99 and sure(found, 0.3) < 0.5
    unlabelled = measure_confidence(files.assign(label=""), vectors, Flat(vectors))
    assert unlabelled and not unlabelled["labelled"] and "farther away" in describe(unlabelled)
    assert sure(unlabelled, 1.0) == 1 and sure(unlabelled, -1.0) == 0
    assert (
        measure_confidence(files[:9], vectors[:9], Flat(vectors[:9])) is None
        and sure(None, 0.5) is None
    )


def test_a_name_does_not_command_the_terminal() -> None:
    hit = Hit(0, "left/\x1b]0;mine\x07 ü.png", "left", "", 1.0, 0.0, None)
    assert hit.description == r"  0.000  left/\x1b]0;mine\x07 ü.png  left"


def test_an_image_alone_in_its_list_has_no_confidence() -> None:
    def measured(together: int) -> Confidence | None:
        vectors = np.eye(8, dtype=np.float32)[[0] * together + [1]]
        lists = faiss.index_factory(8, "IVF2,Flat", faiss.METRIC_INNER_PRODUCT)
        lists.quantizer.add(np.eye(8, dtype=np.float32)[:2])
        lists.is_trained = True
        lists.add(vectors)
        files = pd.DataFrame({"label": [""] * len(vectors)})
        return measure_confidence(files, vectors, Approximate(lists, vectors, 1))

    found = measured(25)
    assert found and found["pictures"] == 25 and min(found["similarity"]) == 1
    assert measured(19) is None, "20 images, but one has no neighbour"


def test_a_submission_is_known_by_its_hash_before_it_is_opened(
    searcher: Searcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*given: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr("guie.search.searcher.load_embedding_model", opened)
    swapped = tmp_path / "submission.zip"
    swapped.write_bytes(b"a program")
    with pytest.raises(UserError, match="submission.zip: not the model that .* was made with"):
        Searcher(searcher.index, searcher.engine, str(swapped)).open_model()
    with pytest.raises(UserError, match="gone.zip: no such submission; .* --model"):
        Searcher(searcher.index, searcher.engine, str(tmp_path / "gone.zip")).open_model()
    recipe = recipe_hash({"submission_sha256": sha256_of(swapped)})
    facts = replace(searcher.index.facts, recipe=recipe)
    with pytest.raises(AssertionError, match="it was opened"):
        Searcher(replace(searcher.index, facts=facts), searcher.engine, str(swapped)).open_model()


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["query", "--k", value, "a.png"]
            for value in ("²", "9" * 5000, "0", "-1", "１", "2147483648")
        ),
        *(["query", "--box", f"1,2,{value},4", "a.png"] for value in ("²", "9" * 5000, "-1")),
        *(
            ["index", "--shard", value]
            for value in ("²/4", "1/²", "4/4", "9" * 5000 + "/4", "/", "1")
        ),
        *(["index", "--probes", value] for value in ("³", "9" * 5000)),
        *(["serve", "--port", value] for value in ("²", "9" * 5000, "99999", "-1")),
        *(["duplicates", "--out", value] for value in ("", ".")),
        *(["serve", "--allow-host", value] for value in ("*", "", "http://a", "a:8000", "a b")),
    ],
    ids=lambda words: " ".join(words)[:20],
)
def test_an_option_of_a_false_value_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rest = {"index": ["--model", "m", "--images", "i", "--out", "o"]}.get(
        words[0], ["--index", "i"]
    )
    with pytest.raises(SystemExit) as ended:
        search.main([*words, *rest])
    assert ended.value.code == 2
    assert f"error: argument {words[1]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["query", "photo.jpg", "--json", "photo.jpg"],
        ["query", "photo.jpg", "--json", "found", "--html", "./found"],
        ["duplicates", "--out", "copies.csv", "--html", "copies.csv"],
        ["query", "photo.jpg", "--json", "none/index.json"],
        ["duplicates", "--out", "none/index.json"],
    ],
)
def test_results_replace_no_picture_and_no_other_result(words: list[str]) -> None:
    with pytest.raises(UserError, match="would replace .*; write it elsewhere"):
        search.main([*words, "--index", "none"])


@pytest.mark.parametrize(
    "words",
    [
        ["query", "--index", "none", __file__, "gone"],
        ["merge", "--out", "all", "--shards", str(Path(__file__).parent), "gone"],
    ],
)
def test_all_inputs_are_looked_for_before_the_first_is_read(words: list[str]) -> None:
    with pytest.raises(UserError, match="^gone: no such file or folder$"):
        search.main(words)


def test_a_name_that_is_not_utf_8_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"'a\\udce9': is not UTF-8; rename"):
        search.main(["query", "--index", "a\udce9", "a.png"])


def test_what_is_not_finite_is_no_neighbour(searcher: Searcher, tmp_path: Path) -> None:
    """Of a large file that is not read whole before a query."""
    vectors = np.array(searcher.vectors_ND)
    vectors[3] = np.nan
    damaged = Searcher(searcher.index, searcher.engine)
    damaged.vectors_ND = vectors
    with pytest.raises(UserError, match=r"vectors.npy: row 3: a value that is not finite"):
        damaged.like(3)
    with pytest.raises(UserError, match="the query's embedding has a value that is not finite"):
        damaged.near(np.full(vectors.shape[1], np.nan))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(np.array(searcher.vectors_ND))
    rows, _ = Approximate(flat, vectors, None).search(vectors[:1], 30)
    assert 3 not in rows[0] and rows[0, -1] == -1 and set(rows[0]) == set(range(30)) - {3} | {-1}
    with pytest.raises(UserError, match="vectors.faiss: damaged, it names rows"):
        Approximate(flat, vectors[:20], None).search(vectors[:1], 10)


def test_an_approximation_tells_what_it_loses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3000, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"{n}.png" for n in range(len(vectors))]
    files = pd.DataFrame(
        {
            "image_path": names,
            "domain": "",
            "label": "",
            "size_bytes": 1,
            "mtime_ns": 1,
            "content": -1,
        }
    )
    facts = Facts("m", "r", 16, 0, "s", str(tmp_path), factory="IVF16,SQ8")
    recalls = []
    for probes in (1, 16):
        (tmp_path / str(probes)).mkdir()
        asked = Facts(**{**facts.__dict__, "probes": probes})
        made = finish(tmp_path / str(probes), asked, files, [vectors])
        recalls.append(made.facts.recall["recall_at_10"])
        rows, scores = engine_of(made).search(vectors[:5], 3)
        assert rows[:, 0].tolist() == [0, 1, 2, 3, 4] and np.allclose(scores[:, 0], 1, atol=1e-5)
    assert recalls[0] < 0.9 < 0.99 < recalls[1]
    with pytest.raises(UserError, match="--probes 3: this --factory has no inverted lists"):
        finish(
            tmp_path, Facts(**{**asked.__dict__, "factory": "SQ8", "probes": 3}), files, [vectors]
        )
    with pytest.raises(UserError, match="--factory nonsense: faiss rejects it for 3,000 vectors"):
        finish(tmp_path, Facts(**{**facts.__dict__, "factory": "nonsense"}), files, [vectors])


def test_the_commands(
    loaders: None, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, out = folder_of(tmp_path, classes=4, each=6), tmp_path / "index"
    made = ["index", "--model", str(run), "--images", str(pictures), "--workers", "1"]
    search.main([*made, "--out", str(out)])
    assert f"{out}: 24 images, 16 dimensions (flat, exact): 24 new" in capsys.readouterr().out
    asked = [str(pictures / "left" / "1_0.png"), str(pictures / "right" / "0_0.png")]
    words = ["query", "--index", str(out), *asked, "--k", "3", "--domain", "left"]
    found = [f"--{kind}={tmp_path / 'found'}.{kind}" for kind in ("json", "html")]
    search.main([*words, *found])
    first, second = json.loads((tmp_path / "found.json").read_text())
    assert first["hits"][0]["image_path"] == "left/1_0.png"
    assert {hit["domain"] for hit in second["hits"]} == {"left"}
    search.main([*words, *found, "--rerank", "expand", "csls"])
    reranked = open_index(out, rerank=["expand", "csls"]).query(asked[1], 3, domain="left")
    second = json.loads((tmp_path / "found.json").read_text())[1]
    assert [hit["row"] for hit in second["hits"]] == [hit.row for hit in reranked]
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/jpeg") == 8 and "<script" not in page
    with pytest.raises(SystemExit):
        search.main(["query", "--index", str(out), asked[0], "--box", "1,2,3"])

    # Shards by themselves, joined: the same vectors, the same answers
    parts = [str(tmp_path / f"part_{number}") for number in range(2)]
    for number, part in enumerate(parts):
        search.main([*made, "--out", part, "--shard", f"{number}/2"])
    whole = open_index(out)
    for kind in ([], ["--factory", "IVF2,Flat", "--probes", "2"]):
        joined = tmp_path / f"joined{len(kind)}"
        search.main(["merge", "--shards", *parts, "--out", str(joined), *kind])
        both = open_index(joined)
        query = whole.vectors_ND[5]
        names = [[hit.image_path for hit in one.near(query, 6)] for one in (whole, both)]
        assert names[0] == names[1]
    with pytest.raises(UserError, match="in two of the shards"):
        search.main(["merge", "--shards", parts[0], parts[0], "--out", str(tmp_path / "twice")])
    with pytest.raises(UserError, match="has no inverted lists to merge"):
        search.main(["merge", "--shards", *parts, "--out", str(joined), "--factory", "SQ8"])


def test_re_ranking_is_that_of_validation(searcher: Searcher) -> None:
    methods = ["expand", "csls"]
    reranked = open_index(searcher.index.folder, rerank=methods)
    vectors = np.asarray(searcher.vectors_ND)
    find = ExactIndex(vectors).search
    for row in (0, 7, 29):
        expected, _ = Reranker(vectors, find, methods).search(vectors[[row]], 8, np.array([row]))
        hits = reranked.like(row, 8)
        assert [hit.row for hit in hits] == expected[0].tolist()
        cosine = vectors[expected[0]] @ vectors[row]
        assert [hit.similarity for hit in hits] == pytest.approx(cosine.tolist(), abs=1e-6)
    left = np.flatnonzero(searcher.index.files["domain"] == "left")
    found = [hit.row for hit in reranked.like(int(left[2]), 8, domain="left")]
    alone = Reranker(vectors[left], ExactIndex(vectors[left]).search, methods)
    expected, _ = alone.search(vectors[left[[2]]], 8, np.array([2]))
    assert found == left[expected[0]].tolist()
    with pytest.raises(UserError, match="--rerank x: unknown"):
        open_index(searcher.index.folder, rerank=["x"])


def test_an_approximate_index_is_re_ranked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    flat = faiss.IndexFlatIP(8)
    flat.add(vectors)
    engine = Approximate(flat, vectors, None)
    for methods in (["expand"], ["augment", "csls"], ["softmax"]):
        own = np.array([4, -1])
        near = Reranker(vectors, engine.search, methods).search(vectors[[4, 9]], 5, own)
        true = Reranker(vectors, ExactIndex(vectors).search, methods).search(
            vectors[[4, 9]], 5, own
        )
        assert near[0].tolist() == true[0].tolist()


def test_copies_of_an_index(run: Path, tmp_path: Path) -> None:
    pictures = folder_of(tmp_path, classes=3, each=2)
    base = Image.effect_noise((96, 96), 80).resize((192, 192)).convert("RGB")
    base.save(pictures / "one.png")
    base.save(pictures / "right" / "the_same.bmp")
    base.resize((160, 160)).save(pictures / "smaller.jpg", quality=85)
    indexed(run, pictures, tmp_path / "index")
    out = tmp_path / "copies.csv"
    search.main(["duplicates", "--index", str(tmp_path / "index"), "--out", str(out),
                 "--html", str(tmp_path / "copies.html")])  # fmt: skip
    found = pd.read_csv(out).set_index("image_path")
    group = found[found["group"] == found.loc["one.png", "group"]]
    assert set(group.index) == {"one.png", "right/the_same.bmp", "smaller.jpg"}
    assert group.loc["one.png", "kind"] == "equal" == group.loc["right/the_same.bmp", "kind"]
    assert group.loc["smaller.jpg", "kind"] in ("copy", "alike")
    assert "smaller.jpg" in (tmp_path / "copies.html").read_text()


def test_a_run_states_its_own_image_size(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--size-px", "64"], ["--fit", "pad"]):
        with pytest.raises(SystemExit):
            search.main(["index", "--model", "runs/demo", "--images", "i", "--out", "o", *words])
        assert "--size-px and --fit: need a model LIBRARY:NAME:TAG" in capsys.readouterr().err
