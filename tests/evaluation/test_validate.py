"""validate.py as a user runs it: its file, table and faults; a search of minutes that resumes."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scored_tables import gaussian_embeddings, mixed_table

import two_processes
import validate
from guie.base.errors import UserError
from guie.evaluation import search as searching
from guie.evaluation.knn import ExactIndex
from guie.evaluation.protocols.evaluating import evaluate
from guie.report.tables import report_table


@pytest.fixture
def case(tmp_path):
    """A manifest of three splits, its embeddings in another order, and the command's arguments."""
    rng = np.random.default_rng(0)
    rows = []
    for domain in ("cars", "food"):
        for c in range(9):
            split = ("train", "val", "test")[c % 3]
            role = "train" if split == "train" else "both"
            for i in range(4):
                rows.append((f"{domain}/{c}/{i}.jpg", f"{domain}/{c}", domain, split, role))
    rows.append(("food/alone.jpg", "food/alone", "food", "test", "query"))
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain", "split", "role"])
    table.to_csv(tmp_path / "manifest.csv", index=False)
    classes = pd.factorize(table["label"])[0]
    embeddings_TD = rng.normal(size=(classes.max() + 1, 8))[classes]
    embeddings_TD = (embeddings_TD + rng.normal(size=embeddings_TD.shape)).astype(np.float32)
    order = rng.permutation(len(table))
    np.savez(
        tmp_path / "E.npz",
        image_path=table["image_path"].to_numpy(dtype=str)[order],
        embedding=embeddings_TD[order],
    )
    files = {"--embeddings": "E.npz", "--manifest": "manifest.csv", "--out": "new/report.json"}
    arguments = [part for key, name in files.items() for part in (key, str(tmp_path / name))]
    return tmp_path, table, embeddings_TD, arguments


def report_of(folder):
    return json.loads((folder / "new/report.json").read_text())


@pytest.mark.parametrize("words", [[], ["--split", "val", "--index", "separate"]])
def test_the_report_is_that_of_the_split_and_the_index(case, words, capsys):
    folder, table, embeddings_TD, arguments = case
    validate.main([*arguments, *words])
    split, index = (words[1], words[3]) if words else ("test", "merged")
    rows = table["split"] == split
    expected = evaluate(embeddings_TD[rows], table[rows].reset_index(drop=True), index)
    report = report_of(folder)
    assert report.pop("intervals")["draws"] == 2000
    assert report == expected and report["dimension"] == 8
    printed = capsys.readouterr().out
    for name in ("cars", "food"):
        line = next(line for line in printed.splitlines() if line.startswith(name))
        assert f"{expected['domains'][name]['r_at_1']:.4f}" in line
    assert f"{index} index, 8-D" in printed
    assert "\nmean: over domains, each counts once; pooled: over all queries\n" in printed
    keys = {"r_at_1", "mmp_at_5", "map_at_100", "map_at_r", "r_precision"}
    keys |= {f"recall_at_{k}" for k in (2, 4, 8, 10, 20, 30, 40, 100)}
    harmonic = {"harmonic_r_at_1", "harmonic_map_at_r", "harmonic_r_precision"}
    assert report["mean"].keys() == keys | harmonic and report["pooled"].keys() == keys
    assert report["domains"]["cars"].keys() == keys | {"queries", "queries_without_positive"}


def test_a_domain_without_scores_is_printed_as_such(case):
    folder, table, _, arguments = case
    table.loc[(table["domain"] == "cars") & (table["role"] == "both"), "role"] = "query"
    table.to_csv(folder / "manifest.csv", index=False)
    validate.main(arguments)
    report = report_of(folder)
    assert report["domains"]["cars"]["r_at_1"] is None
    assert f"{'-':>9}" in report_table(report).splitlines()[1]


def test_rankings_are_written_and_scored_in_place_of_embeddings(case, capsys):
    folder, _, _, arguments = case
    results, how = str(folder / "R.json"), ["--protocol", "ilias", "--draws", "20"]
    validate.main([*arguments, *how, "--write-results", results])
    first = report_of(folder)["protocols"]["ilias"]
    assert 0 < first["headline"]["mAP@1k"] < 1
    assert "mAP@1k   oracle" in capsys.readouterr().out
    validate.main(["--results", results, *arguments[2:], *how])
    again = report_of(folder)["protocols"]["ilias"]
    assert again["headline"] == pytest.approx(first["headline"], rel=1e-12)
    of_first, of_again = (report["parts"]["merged"]["intervals"] for report in (first, again))
    assert of_first == of_again
    assert "merged index\n" in capsys.readouterr().out, "rankings have no dimension"


def test_all_files_are_looked_for_before_the_first_is_read(tmp_path):
    words = ["--specialists", f"a={__file__}", "--reduce", "pca", "--fit", "a=gone"]
    with pytest.raises(UserError, match="^gone: no such file or folder$"):
        validate.main([*words, "--manifest", __file__, "--out", str(tmp_path / "r.json")])


def test_random_projections_differ_by_seed(case):
    """UnED averages three (A.5)."""
    folder, _, _, arguments = case
    reports = []
    for seed in ("0", "1"):
        random = ["--reduce", "random", "--dim", "2", "--seed", seed, "--draws", "0"]
        validate.main([*arguments, *random])
        reports.append(report_of(folder))
    assert reports[0]["mean"] != reports[1]["mean"]


def test_scores_of_each_query_are_written(case):
    """Their means by domain are those of the report; a query without a positive has no score."""
    folder, _, _, arguments = case
    validate.main([*arguments, "--draws", "0", "--write-queries", str(folder / "Q.csv")])
    report = report_of(folder)
    queries = pd.read_csv(folder / "Q.csv")
    assert set(queries["protocol"]) == {"merged"} and queries["query"].is_unique
    for domain, of_domain in queries.groupby("domain"):
        expected = report["domains"][domain]
        assert of_domain["mmp_at_5"].mean() == pytest.approx(expected["mmp_at_5"])
        assert len(of_domain) == expected["queries"]
        assert of_domain["r_at_1"].isna().sum() == expected["queries_without_positive"]
        assert set(of_domain["class"].str.partition("/")[0]) == {domain}


def test_scores_of_each_query_are_there_before_the_report(case, monkeypatch):
    """study.py takes a report for a complete test, so a kill must not come between the two."""
    folder, _, _, arguments = case
    monkeypatch.setattr("guie.report.scoring.write_query_scores", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        validate.main([*arguments, "--draws", "0", "--write-queries", str(folder / "Q.csv")])
    assert not (folder / "new/report.json").exists()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--results R.json --write-results S.json", "--results: rankings have no embeddings"),
        ("--results R.json --embeddings E.npz", "not allowed with argument"),
        ("--unlisted-negative", "--unlisted-negative: needs --results; leave it out"),
        ("--join mean", "--join: needs --specialists; leave it out"),
        ("--quirk round", "--quirk: needs --protocol; leave it out"),
        ("--index merged --protocol uned", "--index: --protocol already defines"),
        ("--against E.npz", "--against: a file is named twice or is also --embeddings"),
        ("--reduce pca --fit F G", "--fit: one model has one file"),
        ("--specialists a=A b=B --reduce pca --fit b=B a=A", "--specialists, in their order: a, b"),
        ("--rerank csls --html p.html", "--rerank: leave out --html and --write"),
        ("--rerank local", "--model: is needed with --rerank local"),
        ("--rerank csls --model m", "--model: is needed with --rerank local"),
        ("--rerank local --model m --against F.npz", "--rerank local: leave out --against"),
        ("--seed 1", "--seed: needs --reduce random; leave it out"),
        ("--seed -1 --reduce random", "--seed -1: must be 0 or more"),
        ("--draws -1", "--draws -1: must be 0 or more"),
        ("--dim 0", "--dim: 0: must be 1 to"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words, fault, capsys):
    source = [] if words.startswith(("--results", "--spec")) else ["--embeddings", "E.npz"]
    with pytest.raises(SystemExit) as refused:
        validate.main([*source, "--manifest", "M", "--out", "r.json", *words.split()])
    assert refused.value.code == 2 and fault in capsys.readouterr().err


def test_subsets_and_texts_next_to_the_manifest_are_scored(case, capsys):
    folder, table, embeddings_TD, arguments = case
    test = table[(table["split"] == "test") & (table["label"] != "food/8")]
    rows = test[["image_path"]].assign(subset="small")
    rows.to_csv(folder / "manifest.subsets.csv", index=False)
    validate.main([*arguments, "--protocol", "vehicleid", "--draws", "0"])
    report = report_of(folder)["protocols"]["vehicleid"]
    keys = ("R@1", "R@5", "R@1, re-id", "R@5, re-id")
    assert list(report["headline"]) == [f"{key}, small" for key in keys]
    assert report["parts"]["separate, small"]["domains"]["food"]["queries"] == len(test) - 12
    assert "\nre-identification, small:\n" in capsys.readouterr().out
    texts = {"image_path": ["t"], "text": ["a car"], "label": ["cars/2"], "domain": ["cars"]}
    pd.DataFrame(texts).to_csv(folder / "texts.csv", index=False)
    how = ["--protocol", "ilias", "--texts", str(folder / "texts.csv"), "--draws", "0"]
    with pytest.raises(UserError, match="no embedding for 1 image.s., first 't'"):
        validate.main([*arguments, *how])
    paths = [*table["image_path"], "t"]
    both = np.concatenate([embeddings_TD, embeddings_TD[table["label"] == "cars/2"][:1]])
    np.savez(folder / "E.npz", image_path=np.array(paths), embedding=both)
    validate.main([*arguments, *how])
    parts = report_of(folder)["protocols"]["ilias"]["parts"]
    assert parts["merged"]["domains"]["texts"]["queries"] == 1


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a search that counts as long, in many blocks."""
    table = mixed_table().assign(split="test")
    table.to_csv(tmp_path / "m.csv", index=False)
    paths = table["image_path"].to_numpy(dtype=str)
    np.savez(tmp_path / "E.npz", image_path=paths, embedding=gaussian_embeddings(len(table)))
    monkeypatch.setattr(searching, "MOST_QUERIES", 9)
    monkeypatch.setattr(searching, "LONG", 0)
    files = ["--embeddings", str(tmp_path / "E.npz"), "--manifest", str(tmp_path / "m.csv")]
    return [*files, "--protocol", "uned", "merged", "--draws", "5"]


class Killed(BaseException):
    """As SIGKILL: nothing tidies up."""


def test_a_start_after_a_kill_resumes_to_the_same_report(words, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.json", tmp_path / "cut.json"
    search, searched, limit = ExactIndex.search, [], -1

    def counting(self, *args):
        if len(searched) == limit:
            raise Killed
        searched.append(len(args[0]))
        return search(self, *args)

    monkeypatch.setattr(ExactIndex, "search", counting)
    validate.main([*words, "--out", str(whole)])
    blocks = len(searched)
    assert blocks > 20 and not list(tmp_path.glob("*.parts"))
    searched.clear()
    limit = 7
    with pytest.raises(Killed):
        validate.main([*words, "--out", str(cut)])
    assert not cut.exists() and len(list(tmp_path.glob("cut.json.parts/*/*.parquet"))) == 7
    searched.clear()
    limit = -1
    validate.main([*words, "--out", str(cut)])
    assert len(searched) == blocks - 7 and not list(tmp_path.glob("*.parts"))
    assert cut.read_bytes() == whole.read_bytes()


def test_scores_of_another_ranking_are_not_taken(words, tmp_path, monkeypatch):
    whole, cut, corrected = tmp_path / "whole.json", tmp_path / "cut.json", ["--rerank", "csls"]
    validate.main([*words, *corrected, "--out", str(whole)])
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("guie.report.scoring.finish", lambda *_: (_ for _ in ()).throw(Killed))
        validate.main([*words, "--out", str(cut)])
    assert list(tmp_path.glob("cut.json.parts/*/*.parquet"))
    validate.main([*words, *corrected, "--out", str(cut)])
    assert json.loads(cut.read_text()) == json.loads(whole.read_text())


@pytest.mark.slow
def test_two_processes_share_the_blocks(words, tmp_path, monkeypatch):
    monkeypatch.undo()  # the others would not see it
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    validate.main([*words, "--out", str(one)])
    two_processes.run("validate", [*words, "--out", str(two)])
    assert json.loads(two.read_text()) == json.loads(one.read_text())
    assert not list(tmp_path.glob("*.parts"))
