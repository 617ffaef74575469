"""The manifest: every check of a row and of a file, by line, and what is unusual but legal."""

from __future__ import annotations

import importlib
import logging
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest

from guie.base.errors import UserError
from guie.data.manifest import (
    DomainDeclaration,
    Sidecar,
    checks,
    load_manifest,
    queries_without_positive,
    save_manifest,
)
from guie.data.manifest.checks import CONTROL
from guie.data.manifest.reading import sidecar_path
from guie.data.manifest.table import NOTED, SHOWN

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


def test_a_good_manifest_loads(written, tmp_path):
    manifest = load_manifest(written())
    assert len(manifest.table) == 6
    assert manifest.root == manifest.path.parent
    assert manifest.file("t/0.jpg") == manifest.path.parent / "t/0.jpg"
    assert manifest.split("val")["image_path"].tolist() == ["t/2.jpg", "t/3.jpg"]
    assert manifest.split("val").index.tolist() == [0, 1]
    assert load_manifest(written(), tmp_path / "images").root == tmp_path / "images"


def test_an_absent_split_names_those_there_are(written):
    manifest = load_manifest(written(TRAIN.format(0)))
    with pytest.raises(UserError, match="no rows of split 'test'; it has: train"):
        manifest.split("test")
    with pytest.raises(UserError, match="'val'; it has: train; set val_fraction in the mix's"):
        manifest.split("val")
    val = load_manifest(written("t/0.jpg,toys/car,toys,val,both"))
    with pytest.raises(UserError, match="it has: val; use --split val, or set test_fraction"):
        val.split("test")
    with pytest.raises(UserError, match="it has: val$"):
        val.split("train")


def test_domains_are_left_out_of_every_split(written):
    food = ["t/8.jpg,food/a,food,train,train", "t/9.jpg,food/b,food,test,both"]
    manifest = load_manifest(written(*GOOD, *food))
    assert manifest.without([]).table.equals(manifest.table)
    left = manifest.without(["food"])
    assert list(left.table["domain"].unique()) == ["toys"]
    assert list(left.table.index) == list(range(len(manifest.table) - 2))
    with pytest.raises(UserError, match="has no domain tools to leave out; it has: food, toys"):
        manifest.without(["tools", "food"])
    with pytest.raises(UserError, match="every domain is left out"):
        manifest.without(["toys", "food"])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_saved_manifest_comes_back(written, tmp_path, suffix):
    table = load_manifest(written()).table
    table = table.assign(caption=["a, b", 'say "c"', "", "é", "line\nbreak", "x"], weight=0.5)
    toys = {"toys": DomainDeclaration(shared_classes=True)}
    sidecar = Sidecar(domains=toys, decode="host")
    path = tmp_path / "new" / f"mix.{suffix}"
    save_manifest(table, path, sidecar)
    back = load_manifest(path)
    pd.testing.assert_frame_equal(back.table, table, check_dtype=False)
    assert back.sidecar == sidecar
    assert sorted(p.name for p in path.parent.iterdir()) == [f"mix.{suffix}", "mix.sidecar.yaml"]
    save_manifest(table, path)  # a sidecar left behind would excuse overlaps of the new manifest
    assert not sidecar_path(path).exists()


def test_a_config_of_the_manifests_name_is_left_alone(written):
    path = written()
    config = path.with_suffix(".yaml")
    for text in ("name: somebody's config\n", "domains: [\n"):
        config.write_text(text)
        save_manifest(load_manifest(path).table, path)
        assert config.read_text() == text and load_manifest(path).sidecar == Sidecar()


UNREADABLE = {  # what other programs save as CSV is in test_dirty.py
    "absent.csv": (lambda path: None, "no such manifest"),
    "blank.csv": (lambda path: path.write_bytes(b"\n \n"), "is empty"),
    "text.parquet": (lambda path: path.write_bytes(b"PAR?"), "cannot be read as a table"),
    "folder.csv": (Path.mkdir, "is a folder, not a file"),
    "pipe.csv": (os.mkfifo, "not a regular file"),
    "zero.csv": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_table_is_refused_by_name(name, tmp_path):
    make, fault = UNREADABLE[name]
    make(tmp_path / name)
    message = refusal(tmp_path / name)
    assert message.startswith(f"{tmp_path / name}: ") and fault in message


def test_words_like_null_are_text_and_a_null_of_parquet_is_empty(written, tmp_path):
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


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_manifest_that_is_written_meanwhile_is_refused(written, tmp_path, monkeypatch, suffix):
    """Cut at a line's end it would be a good, shorter one."""
    path = tmp_path / f"m.{suffix}"
    whole = load_manifest(written()).table
    save_manifest(whole.head(4), path)
    module = importlib.import_module("guie.data.manifest.table")
    checked = module.check

    def slowly(*arguments):
        save_manifest(whole, path)
        return checked(*arguments)

    monkeypatch.setattr(module, "check", slowly)
    assert "changed while it was read" in refusal(path)


# ---------------------------------------------------------------- rows


BAD = [
    ("t/9.jpg,toys/x|,toys,train,train", "has an empty part"),
    ("t/9.jpg,|toys/x,toys,train,train", "has an empty part"),
    ("t/9.jpg,toys/x||toys/y,toys,train,train", "has an empty part"),
    ("t/9.jpg,toys/x,toys,Train,train", "split 'Train': allowed are train, val, test"),
    ("t/9.jpg,toys/x,toys,train,query", "role 'query' in train: allowed are train"),
    ("t/9.jpg,toys/x,toys,test,train", "role 'train' in test: allowed are query, index, both"),
    ("t/9.jpg,toys/x,toys,train,", "role '' in train"),
    ("/etc/hostname,toys/x,toys,train,train", "leaves the root"),
    ("t/../../9.jpg,toys/x,toys,train,train", "leaves the root"),
    (r"t\..\..\9.jpg,toys/x,toys,train,train", "leaves the root"),
    ("C:/9.jpg,toys/x,toys,train,train", "leaves the root"),
    ("./t/9.jpg,toys/x,toys,train,train", "without './' and '//'"),
    ("t//9.jpg,toys/x,toys,train,train", "without './' and '//'"),
    ("t/9.jpg/.,toys/x,toys,train,train", "without './' and '//'"),
    ("t/0.jpg,toys/x,toys,train,train", "conflicting labels: 'toys/car' there, 'toys/x' here"),
    ("t/0.jpg,toys/x,toys,test,both", "a leak: split 'train' there, 'test' here"),
    ("t/9.jpg,toys/car,toys,val,both", "class 'toys/car' is in train and in val"),
    ("t/9.jpg,toys/z|toys/car,toys,test,both", "class 'toys/car' is in train and in test"),
    (",,,,", "split '': allowed are"),
]


@pytest.mark.parametrize(("row", "fault"), BAD)  # more of them are in test_dirty.py
def test_a_bad_row_is_named_by_line(written, row, fault):
    found = refused(written(*GOOD, row))
    assert {line for line, _ in found} == {"8"}
    assert any(fault in what for _, what in found)


@pytest.mark.parametrize("name", ["t/a..b.jpg", "t/...jpg", "t/.x.jpg", "t/a b, c.jpg", "t/é.jpg"])
def test_odd_but_honest_names_pass(written, name):
    table = load_manifest(written(*GOOD, f'"{name}",toys/x,toys,train,train')).table
    assert table["image_path"].iloc[-1] == name


def test_a_label_in_two_domains_is_named_in_both_rows(written):
    found = refused(written("a.jpg,cup,toys,train,train", "b.jpg,mug|cup,shop,train,train"))
    assert [line for line, _ in found] == ["2", "3"]
    assert all("class 'cup' is in several domains" in what for _, what in found)


def test_all_faults_at_once_and_a_count_of_the_rest(written):
    lines = refusal(written(*(f"t/{n}.jpg,toys/x,toys,dev,train" for n in range(SHOWN + 7))))
    lines = lines.splitlines()
    assert len(lines) == SHOWN + 1 and lines[0].split(": ")[0].endswith("m.csv:2")
    assert lines[-1].endswith("and 7 more faults")


OUTSIDE = "an epoch draws an image 1e-09 to 1,000 times"
WEIGHTS = dict.fromkeys(["", "0", "-1", "nan", "inf", "heavy"], "is not a positive number")
WEIGHTS |= dict.fromkeys(["1e9", "1e300", "1001", "1e-300", "5e-324"], OUTSIDE)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_bad_weights_are_named_all_at_once(written, weight):
    rows = [f"{TRAIN.format(n)},{value}" for n, value in enumerate(["1", weight, weight])]
    found = refused(written(*rows, header=f"{HEADER},weight"))
    assert [line for line, _ in found] == ["3", "4"]
    assert all(f"weight {weight!r}" in what and WEIGHTS[weight] in what for _, what in found)


def test_weights_load_as_numbers_that_an_epoch_holds(written, monkeypatch):
    monkeypatch.setattr(checks, "EPOCH_MAX", 1_500)
    rows, header = [f"{TRAIN.format(n)},1000" for n in range(2)], f"{HEADER},weight"
    held_out = "t/9.jpg,toys/y,toys,test,query,0.5"
    fault = "weight: those of train make an epoch of 2,000 images; at most 1,500 are allowed"
    assert refused(written(*rows, header=header)) == [("2", f"{fault}; lower the weights")]
    assert load_manifest(written(rows[0], held_out, header=header)).table["weight"].sum() == 1000.5


@pytest.mark.parametrize("end", ["\n", "\r", "\t", "\x00", "\x7f", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("column", ["label", "domain"])
def test_a_line_break_in_a_label_or_a_domain_is_refused(end: str, column: str, tmp_path: Path):
    """A list of labels has one a line, and a report has them on a terminal."""
    rows = pd.DataFrame([TRAIN.format(n).split(",") for n in range(3)], columns=HEADER.split(","))
    rows["label"] = [f"toys/{n}" for n in range(3)]
    rows.loc[1, column] += f"{end}x"
    rows.to_parquet(tmp_path / "m.parquet")
    message = refusal(tmp_path / "m.parquet")
    fault = f"m.parquet: row 1: {column} {rows.loc[1, column]!r} has a line break or a control"
    assert fault in message and "\n" not in message


def test_arrow_finds_control_characters():
    """Some versions of pandas pass the expression on to Arrow, which does not know \\u."""
    labels = pa.array(["a b", "a\u2028b", "a\x85b", "a\x00b"])
    found = pyarrow.compute.match_substring_regex(labels, CONTROL).to_pylist()
    assert found == [False, True, True, True]


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
        ("domains: {toys: {shared_classes: 1}}", "domains.toys.shared_classes"),
        ("- a list", "must be a mapping"),
        ("domains: [", r"yaml:1: not valid YAML"),
        # the last one would count without a word
        ("domains:\n  toys: {}\n  toys: {}", 'yaml:3: not valid YAML: found duplicate key "toys"'),
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


def test_faults_of_every_kind_come_in_one_refusal(written):
    path = written(
        "a, b.jpg,toys/car,toys,train,train",  # 2: too wide, where the columns are counted first
        TRAIN.format(0),
        "t/1.jpg,toys/car",  # 4
        TRAIN.format(2).replace("train,train", "dev,train"),  # 5
        "",
        TRAIN.format(0),  # 7
        'say "x",toys/car,toys,train,train',
        '"t/3.jpg"x",toys/car,toys,train,train',  # 9
        "t/4.jpg,toys/car,toys,val,both",  # 10
        "t/5.jpg,toys/car,toys,train,train,",  # 11
        't/6.jpg,"toys/c\nar",toys,train,train',  # 12
    )
    expected = {
        "2": "6 columns where the header has 5; put quotes",
        "4": "2 columns where the header has 5; a column without a value still needs its comma",
        "5": "split 'dev'",
        "7": "image 't/0.jpg' is already in line 3",
        "9": "a quote is opened or closed in the wrong place",
        "10": "class 'toys/car' is in train and in val",
        "11": "6 columns where the header has 5",
        "12": "label 'toys/c\\nar' has a line break",
    }
    found = refused(path)
    assert [line for line, _ in found] == list(expected)
    assert all(what.startswith(expected[line]) for line, what in found)


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


def test_rows_of_parquet_are_named_by_number(tmp_path):
    rows = [TRAIN.format(0), TRAIN.format(0), TRAIN.format(2).replace("toys,train", "toys,dev")]
    path = tmp_path / "m.parquet"
    pd.DataFrame([row.split(",") for row in rows], columns=HEADER.split(",")).to_parquet(path)
    assert refusal(path).splitlines() == [
        f"{path}: row 1: image 't/0.jpg' is already in row 0; delete one of the two",
        f"{path}: row 2: split 'dev': allowed are train, val, test",
    ]


# ---------------------------------------------------------------- legal but unusual


LONELY = [f"v/{n}.jpg,toys/lone{n},toys,val,query" for n in range(NOTED + 3)]


def warned(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_manifest(path)
    return [message.removeprefix(str(path)) for message in caplog.messages]


def test_queries_without_a_positive_are_named_by_line(written, caplog):
    what = "warning: val query without a positive in the index; metrics leave it out"
    assert warned(written(TRAIN.format(0), "", *LONELY), caplog) == [
        *(f":{line}: {what}" for line in range(4, 4 + NOTED)),
        ": warning: and 3 more rows like the last",
    ]
    assert warned(written(*GOOD[:4]), caplog) == []


@pytest.mark.parametrize(
    ("label", "odd"),
    [("toys/x", False), ("x", False), ("cars/x", True), ("toys/x|cars/y", True), ("toysx/y", True)],
)
def test_a_prefix_of_another_domain_is_named(written, caplog, label, odd):
    path = written(TRAIN.format(0), f"t/9.jpg,{label},toys,train,train")
    what = f":3: warning: label {label!r} in domain 'toys'; by convention a label is domain/class"
    assert warned(path, caplog) == ([what] if odd else [])


@pytest.mark.parametrize(
    ("labels", "how"),
    [
        (["t/Cup", "t/cup"], "'t/Cup' and 't/cup' differ only in case or space"),
        (["t/caf\u00e9", "t/cafe\u0301"], "differ only in Unicode normal form"),
        (["t/a", "t/A"], None),  # classes of characters
    ],
)
def test_classes_that_look_the_same_are_named(written, caplog, labels: list[str], how: str | None):
    rows = [f"t/{n}.jpg,{label},t,train,train" for n, label in enumerate(labels * 2)]
    messages = warned(written(*rows), caplog)
    assert len(messages) == (how is not None)
    if how:
        assert re.match(r":[23]: warning: the classes ", messages[0]), messages
        assert messages[0].endswith("and are not one class") and how in messages[0]


def test_warnings_go_to_stderr_of_the_first_process(written):
    path = written(LONELY[0])
    program = f"""
import os
from guie.data.manifest import load_manifest
for rank in "10":
    os.environ["RANK"] = rank
    print("rank", rank, flush=True)
    load_manifest({str(path)!r})
"""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([sys.executable, "-c", program], text=True, check=True, **both)
    start = f"rank 1\nrank 0\n{path}:2: warning: val query without a positive"
    assert done.stdout.startswith(start) and done.stdout.count("\n") == 3
