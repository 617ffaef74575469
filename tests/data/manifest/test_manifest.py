"""The manifest: every check of a row and of a file, by line, and what is unusual but legal."""

import logging
import random
import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest

from guie.base.errors import UserError
from guie.data.manifest import (
    DomainDeclaration,
    Sidecar,
    load_manifest,
    queries_without_positive,
    save_manifest,
)
from guie.data.manifest.checks import CONTROL
from guie.data.manifest.reading import sidecar_path
from guie.data.manifest.table import SHOWN

HEADER = "image_path,label,domain,split,role"
GOOD = [
    "t/0.jpg,toys/car,toys,train,train",
    "t/1.jpg,toys/car,toys,train,train",
    "t/2.jpg,toys/bus,toys,val,both",
    "t/3.jpg,toys/bus,toys,val,both",
    "t/4.jpg,toys/cat,toys,test,query",
    "t/5.jpg,toys/cat,toys,test,index",
]
SHARED = [*GOOD, "t/9.jpg,toys/car,toys,test,index"]  # its class is in train too
MET = [*GOOD, "t/0.jpg,toys/car,toys,test,index", "t/9.jpg,toys/car,toys,test,query"]
TRAIN = "t/{}.jpg,toys/car,toys,train,train"


@pytest.fixture
def written(tmp_path):
    """Write a manifest (and a sidecar) and return its path."""

    def write(*rows: str, header: str = HEADER, sidecar: str | None = None) -> Path:
        path = tmp_path / "m.csv"
        path.write_text("\n".join([header, *(rows or GOOD), ""]), encoding="utf-8")
        if sidecar is not None:
            sidecar_path(path).write_text(sidecar, encoding="utf-8")
        return path

    return write


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    return str(caught.value)


def refused(path: Path) -> list[tuple[str, str]]:
    """Return [(line, fault)] of the refusal."""
    lines = [line.removeprefix(f"{path}:").partition(": ") for line in refusal(path).split("\n")]
    return [(line, fault) for line, _, fault in lines]


# ---------------------------------------------------------------- loading and saving


@pytest.mark.parametrize(
    ("row", "split", "says"),
    [
        (TRAIN.format(0), "test", "no rows of split 'test'; it has: train"),
        (TRAIN.format(0), "val", "'val'; it has: train; set val_fraction in the mix's"),
        ("0.jpg,a,toys,val,both", "test", "it has: val; use --split val, or set test_fraction"),
        ("0.jpg,a,toys,val,both", "train", "it has: val$"),
    ],
)
def test_an_absent_split_names_those_there_are(written, row, split, says):
    with pytest.raises(UserError, match=says):
        load_manifest(written(row)).split(split)


def test_domains_are_left_out_of_every_split(written):
    food = ["t/8.jpg,food/a,food,train,train", "t/9.jpg,food/b,food,test,both"]
    manifest = load_manifest(written(*GOOD, *food))
    assert manifest.without([]).table.equals(manifest.table)
    assert manifest.without(["food"]).table.equals(manifest.table.head(6))
    with pytest.raises(UserError, match="has no domain tools to leave out; it has: food, toys"):
        manifest.without(["tools", "food"])
    with pytest.raises(UserError, match="every domain is left out"):
        manifest.without(["toys", "food"])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_saved_manifest_comes_back(written, tmp_path, suffix):
    rows = load_manifest(written()).table
    rows = rows.assign(caption=["a, b", 'say "c"', "", "é", "line\nbreak", "x"], weight=0.5)
    toys = {"toys": DomainDeclaration(shared_classes=True)}
    sidecar = Sidecar(domains=toys, decode="host")
    path = tmp_path / "new" / f"mix.{suffix}"
    save_manifest(rows, path, sidecar)
    back = load_manifest(path)
    pd.testing.assert_frame_equal(back.table, rows, check_dtype=False)
    assert back.sidecar == sidecar
    assert sorted(p.name for p in path.parent.iterdir()) == [f"mix.{suffix}", "mix.sidecar.yaml"]
    save_manifest(rows, path)  # a sidecar left behind would excuse overlaps of the new manifest
    assert not sidecar_path(path).exists()


def test_words_like_null_are_text_and_nulls_and_lists_of_parquet_are_refused(written, tmp_path):
    words = load_manifest(written("NA,toys/null,toys,train,train", "1.jpg,toys/nan,toys,val,both"))
    assert words.table["label"].tolist() == ["toys/null", "toys/nan"]
    assert words.table["image_path"].tolist() == ["NA", "1.jpg"]
    path = tmp_path / "m.parquet"
    rows = [
        ["a.jpg", None, "toys", "train", "train"],
        ["b.jpg", "toys/x", "toys", "train", "train"],
    ]
    table = pd.DataFrame(rows, columns=HEADER.split(","), index=[7, 7])
    table.astype({"split": "category"}).to_parquet(path)
    assert refusal(path) == f"{path}: row 0: label '' is empty or has an empty part"
    table.assign(label=[["toys/x"], ["toys/x", "toys/y"]]).to_parquet(path)
    assert refusal(path) == f"{path}: label holds lists; write each as one text, such as a|b"


# ---------------------------------------------------------------- rows


BAD = [
    ("t/9.jpg,toys/x|,toys,train,train", "has an empty part"),
    ("t/9.jpg,toys/x||toys/y,toys,train,train", "has an empty part"),
    ("t/9.jpg,toys/x,toys,test,train", "role 'train' in test: allowed are query, index, both"),
    ("t/9.jpg,toys/x,toys,train,", "role '' in train"),
    ("t/../../9.jpg,toys/x,toys,train,train", "leaves the root"),
    (r"t\..\..\9.jpg,toys/x,toys,train,train", "leaves the root"),
    ("C:/9.jpg,toys/x,toys,train,train", "leaves the root"),
    ("./t/9.jpg,toys/x,toys,train,train", "without './' and '//'"),
    ("t//9.jpg,toys/x,toys,train,train", "without './' and '//'"),
    ("t/9.jpg/.,toys/x,toys,train,train", "without './' and '//'"),
    ("t/0.jpg,toys/x,toys,test,both", "a leak: split 'train' there, 'test' here"),
    ("t/9.jpg,toys/car,toys,val,both", "class 'toys/car' is in train and in val"),
    ("t/9.jpg,toys/z|toys/car,toys,test,both", "class 'toys/car' is in train and in test"),
]


@pytest.mark.parametrize(("row", "fault"), BAD)  # more of them are in test_dirty.py
def test_a_bad_row_is_named_by_line(written, row, fault):
    found = refused(written(*GOOD, row))
    assert {line for line, _ in found} == {"8"}
    assert any(fault in what for _, what in found)


def test_odd_but_honest_names_pass(written):
    names = ["t/a..b.jpg", "t/...jpg", "t/.x.jpg", "t/a b, c.jpg", "t/é.jpg"]
    rows = [f'"{name}",toys/x,toys,train,train' for name in names]
    assert load_manifest(written(*rows)).table["image_path"].tolist() == names


def test_a_label_in_two_domains_is_named_in_both_rows(written):
    found = refused(written("a.jpg,cup,toys,train,train", "b.jpg,mug|cup,shop,train,train"))
    assert [line for line, _ in found] == ["2", "3"]
    assert all("class 'cup' is in several domains" in what for _, what in found)


@pytest.mark.parametrize("weight", ["", "0", "-1", "nan", "inf", "heavy", "1001", "1e-300"])
def test_bad_weights_are_named_all_at_once(written, weight):
    rows = [f"{TRAIN.format(n)},{value}" for n, value in enumerate(["1", *[weight] * (SHOWN + 7)])]
    lines = refusal(written(*rows, header=f"{HEADER},weight")).splitlines()
    outside = "an epoch draws an image 1e-09 to 1,000 times"
    fault = outside if weight.startswith("1") else "is not a positive number"
    assert len(lines) == SHOWN + 1 and lines[-1].endswith("and 7 more faults")
    assert f"m.csv:3: weight {weight!r}" in lines[0] and fault in lines[0]


@pytest.mark.parametrize("column", ["label", "domain"])
def test_a_line_break_in_a_label_or_a_domain_is_refused(column: str, tmp_path: Path):
    """A list of labels has one a line, and a report has them on a terminal."""
    ends = ["\n", "\r", "\t", "\x00", "\x7f", "\x85", "\u2028", "\u2029"]
    rows = [(f"{n}.jpg", f"{n}", f"d{n}", "train", "train") for n in range(len(ends))]
    table = pd.DataFrame(rows, columns=HEADER.split(","))
    table[column] += pd.Series(ends) + "x"
    table.to_parquet(tmp_path / "m.parquet")
    for row, line in enumerate(refusal(tmp_path / "m.parquet").splitlines()):
        assert f"row {row}: {column} {table[column][row]!r} has a line break or a control" in line
    assert row == len(ends) - 1
    # some versions of pandas pass the expression on to Arrow, which does not know \\u
    found = pyarrow.compute.match_substring_regex(pa.array(["a b", *table[column]]), CONTROL)
    assert found.to_pylist() == [False] + [True] * len(ends)


def _alone_slowly(rows: pd.DataFrame) -> list[bool]:
    """Queries that share no label with another image of the index: the definition, spelt out."""
    alone = []
    for query in rows[rows["role"] != "index"].itertuples():
        others = rows[(rows["role"] != "query") & (rows["image_path"] != query.image_path)]
        classes = set(query.label.split("|"))
        alone.append(not any(classes & set(label.split("|")) for label in others["label"]))
    return alone


@pytest.mark.parametrize("seed", range(5))
def test_queries_without_positive_agrees_with_its_definition(seed):
    draw = random.Random(seed)
    labels, roles = ["a", "b", "c", "d", "a|b", "c|e", "e"], ["query", "index", "both"]
    rows = pd.DataFrame(
        [(f"{n}.jpg", draw.choice(labels), draw.choice(roles)) for n in range(12)],
        columns=["image_path", "label", "role"],
    )
    alone = queries_without_positive(rows)
    assert alone.tolist() == _alone_slowly(rows)
    assert alone.index.tolist() == rows.index[rows["role"] != "index"].tolist()


# ---------------------------------------------------------------- declared overlaps


@pytest.mark.parametrize(
    ("sidecar", "fault"),
    [
        ("domains: {toys: {shared: true}}", "domains.toys.shared"),
        ("- a list", "must be a mapping"),
        ("domains: [", r"yaml:1: not valid YAML"),
    ],
)
def test_a_bad_sidecar_is_refused(written, sidecar, fault):
    path = written(sidecar=sidecar)
    message = refusal(path)
    assert message.startswith(str(sidecar_path(path))) and fault in message


def test_overlaps_need_their_declaration(written):
    assert load_manifest(written(sidecar="")).sidecar == Sidecar()
    for rows in (SHARED, MET):
        assert "is in train and in test" in refusal(written(*rows))
    load_manifest(written(*SHARED, sidecar="domains: {toys: {shared_classes: true}}"))
    refusal(written(*SHARED, sidecar="domains: {cars: {shared_classes: true}}"))
    load_manifest(written(*MET, sidecar="domains: {toys: {index_is_train: true}}"))
    assert "is already" in refusal(written(*MET, sidecar="domains: {toys: {shared_classes: true}}"))


@pytest.mark.parametrize(
    "row",
    [
        "t/0.jpg,toys/car,toys,test,query",  # a training image as query
        "t/0.jpg,toys/car,toys,test,both",
        "t/0.jpg,toys/bike,toys,test,index",  # under another label
        "t/0.jpg,toys/car,toys,train,train",  # twice in train
        "t/5.jpg,toys/cat,toys,test,index",  # twice in the index
        "t/4.jpg,toys/cat,toys,val,index",  # query of one split, index of another
        "t/5.jpg,toys/cat,toys,val,index",  # index of two splits, but never trained on
    ],
)
def test_index_is_train_excuses_nothing_else(written, row):
    path = written(*GOOD, row, sidecar="domains: {toys: {index_is_train: true}}")
    assert ":8: image" in refusal(path)


# ---------------------------------------------------------------- lines of a CSV


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_are_those_of_an_editor(tmp_path, ending):
    rows = [
        f"{HEADER},caption",
        '"t/0.jpg",toys/car,toys,train,train,"one\ntwo\n\nfour"',  # 2 to 5
        "",
        "   ",
        "t/1.jpg,toys/car,toys,train,train,",  # 8
        "t/2.jpg,toys/car,toys,dev,train,",  # 9
        "t/1.jpg,toys/car,toys,train,train,",  # 10
    ]
    path = tmp_path / "m.csv"
    path.write_bytes((ending.join(row.replace("\n", ending) for row in rows) + ending).encode())
    (split, _), (again, what) = refused(path)
    assert (split, again) == ("9", "10") and "in line 8" in what


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_left_open_swallows_nothing(tmp_path, end):
    path = tmp_path / "m.csv"
    rows = [TRAIN.format(0) + ",x", TRAIN.format(1) + ',"a car', TRAIN.format(2) + ",x"]
    path.write_text("\n".join([f"{HEADER},caption", *rows]) + end)
    ((line, what),) = refused(path)
    assert line == "3" and "quote" in what


def test_rows_are_the_same_read_at_once_or_by_line(written):
    """A blank line changes how the file is read, and nothing else."""
    rows = [f'{TRAIN.format(n)},"{n}, ""so"" é\ntwo",NULL,' for n in range(5)]
    header = f"{HEADER},caption,dataset,width"
    plain = load_manifest(written(*rows, header=header)).table
    pd.testing.assert_frame_equal(plain, load_manifest(written("", *rows, header=header)).table)
    assert plain["caption"][3] == '3, "so" é\ntwo' and plain["dataset"][3] == "NULL"
    assert plain["width"].eq("").all()


# ---------------------------------------------------------------- legal but unusual


def warned(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_manifest(path)
    return [message.removeprefix(str(path)) for message in caplog.messages]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["toys/x", "x"], None),
        (["toys/x|cars/y"], "label 'toys/x|cars/y' in domain 'toys'; by convention a label"),
        (["toysx/y"], "label 'toysx/y' in domain 'toys'; by convention"),
        (["toys/Cup", "toys/cup"], "'toys/Cup' and 'toys/cup' differ only in case or space"),
        (["toys/a/Big dog", "toys/a/big  dog"], "differ only in case or space"),
        (["toys/cat\u3000", "toys/cat"], "differ only in case or space"),
        (["toys/caf\u00e9", "toys/cafe\u0301"], "differ only in Unicode normal form"),
        (["toys/a", "toys/A"], None),  # classes of characters
    ],
)
def test_odd_labels_are_named(written, caplog, labels: list[str], says: str | None):
    rows = [f"t/{n}.jpg,{label},toys,train,train" for n, label in enumerate(labels)]
    messages = warned(written(*rows), caplog)
    assert len(messages) == (says is not None)
    if says:
        line = "2" if len(labels) == 1 else "[23]"
        assert re.match(f":{line}: warning: ", messages[0]) and says in messages[0]
