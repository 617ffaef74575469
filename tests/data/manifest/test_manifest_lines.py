"""Lines of a manifest: what is no row, where a fault stands, and what is told without refusing."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pytest

from guie.base.errors import UserError
from guie.data.manifest import load_manifest
from guie.data.manifest.checks import CONTROL
from guie.data.manifest.table import NOTED

HEADER = "image_path,label,domain,split,role"
GOOD = "t/{}.jpg,toys/car,toys,train,train"


def write(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


def refused(path: Path) -> list[tuple[str, str]]:
    """[(line, what)] of the refusal."""
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    found = [
        line.removeprefix(f"{path}:").partition(": ") for line in str(caught.value).split("\n")
    ]
    return [(line, what) for line, _, what in found]


def test_faults_of_every_kind_come_in_one_refusal(tmp_path):
    path = write(
        tmp_path / "m.csv",
        "a, b.jpg,toys/car,toys,train,train",  # 2: too wide, where the columns are counted first
        GOOD.format(0),
        "t/1.jpg,toys/car",  # 4
        GOOD.format(2).replace("train,train", "dev,train"),  # 5
        "",
        GOOD.format(0),  # 7
        'say "x",toys/car,toys,train,train',
        '"t/3.jpg"x",toys/car,toys,train,train',  # 9
        "t/4.jpg,toys/car,toys,val,both",  # 10
        "t/5.jpg,toys/car,toys,train,train,",  # 11
    )
    expected = {
        "2": "6 columns where the header has 5; put quotes",
        "4": "2 columns where the header has 5; a column without a value",
        "5": "split 'dev'",
        "7": "image 't/0.jpg' is already in line 3",
        "9": "a quote is opened or closed in the wrong place",
        "10": "class 'toys/car' is in train and in val",
        "11": "6 columns where the header has 5",
    }
    found = refused(path)
    assert [line for line, _ in found] == list(expected)
    for line, what in found:
        assert what.startswith(expected[line])


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


def test_a_row_that_is_short_of_an_optional_column_is_refused(tmp_path):
    rows = (GOOD.format(0) + ",a car", GOOD.format(1))
    assert refused(write(tmp_path / "m.csv", *rows, header=f"{HEADER},caption")) == [
        ("3", "5 columns where the header has 6; a column without a value still needs its comma")
    ]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_left_open_swallows_nothing(tmp_path, end):
    path = tmp_path / "m.csv"
    rows = [GOOD.format(0) + ",x", GOOD.format(1) + ',"a car', GOOD.format(2) + ",x"]
    path.write_text("\n".join([f"{HEADER},caption", *rows]) + end)
    ((line, what),) = refused(path)
    assert line == "3" and "quote" in what


def test_rows_are_the_same_read_at_once_or_by_line(tmp_path):
    """A blank line changes how the file is read, and nothing else."""
    rows = [GOOD.format(n) + f',"{n}, ""so"" é",NULL,' for n in range(5)]
    header = f"{HEADER},caption,dataset,width"
    plain = load_manifest(write(tmp_path / "a.csv", *rows, header=header)).table
    by_line = load_manifest(write(tmp_path / "b.csv", "", *rows, "", header=header)).table
    pd.testing.assert_frame_equal(plain, by_line)
    assert plain["caption"][3] == '3, "so" é' and plain["dataset"][3] == "NULL"
    assert plain["width"].eq("").all()


def test_captions_of_several_lines_load(tmp_path):
    rows = [GOOD.format(n) + ',"one\ntwo"' for n in range(3)]
    table = load_manifest(write(tmp_path / "m.csv", *rows, header=f"{HEADER},caption")).table
    assert table["caption"].tolist() == ["one\ntwo"] * 3


def test_rows_of_parquet_are_named_by_number(tmp_path):
    rows = [GOOD.format(0), GOOD.format(0), GOOD.format(2).replace("toys,train", "toys,dev")]
    table = pd.DataFrame([row.split(",") for row in rows], columns=HEADER.split(","))
    table.to_parquet(tmp_path / "m.parquet")
    with pytest.raises(UserError) as caught:
        load_manifest(tmp_path / "m.parquet")
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/m.parquet: row 1: image 't/0.jpg' is already in row 0; delete one of the two",
        f"{tmp_path}/m.parquet: row 2: split 'dev': allowed are train, val, test",
    ]


# ---------------------------------------------------------------- told, not refused


LONELY = [f"v/{n}.jpg,toys/lone{n},toys,val,query" for n in range(NOTED + 3)]


def warned(path: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_manifest(path)
    return [message.removeprefix(str(path)) for message in caplog.messages]


def test_queries_without_a_positive_are_named_by_line(tmp_path, caplog):
    path = write(tmp_path / "m.csv", GOOD.format(0), "", *LONELY)
    what = "warning: val query without a positive in the index; metrics leave it out"
    assert warned(path, caplog) == [
        *(f":{line}: {what}" for line in range(4, 4 + NOTED)),
        ": warning: and 3 more rows like the last",
    ]


def test_a_good_manifest_is_loaded_in_silence(tmp_path, caplog):
    rows = [f"v/{n}.jpg,toys/bus,toys,val,both" for n in range(2)]
    assert warned(write(tmp_path / "m.csv", GOOD.format(0), *rows), caplog) == []


@pytest.mark.parametrize(
    ("label", "odd"),
    [("toys/x", False), ("x", False), ("cars/x", True), ("toys/x|cars/y", True), ("toysx/y", True)],
)
def test_a_prefix_of_another_domain_is_told(tmp_path, caplog, label, odd):
    path = write(tmp_path / "m.csv", GOOD.format(0), f"t/9.jpg,{label},toys,train,train")
    what = f":3: warning: label {label!r} in domain 'toys'; by convention a label is domain/class"
    assert warned(path, caplog) == ([what] if odd else [])


@pytest.mark.parametrize(
    ("labels", "how"),
    [
        (["t/Cup", "t/cup"], "'t/Cup' and 't/cup' differ only in case or space"),
        (["t/a b", "t/a  b"], "'t/a  b' and 't/a b' differ only in case or space"),
        (["t/caf\u00e9", "t/cafe\u0301"], "differ only in Unicode normal form"),
        (["t/a", "t/A"], None),  # classes of characters
    ],
)
def test_classes_that_look_the_same_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: list[str], how: str | None
) -> None:
    rows = [f"t/{n}.jpg,{label},t,train,train" for n, label in enumerate(labels * 2)]
    said = warned(write(tmp_path / "m.csv", *rows), caplog)
    assert len(said) == (how is not None)
    if how:
        assert re.match(r":[23]: warning: the classes ", said[0]), said
        assert said[0].endswith("and are not one class") and how in said[0]


def test_warnings_go_to_stderr_of_the_first_process(tmp_path):
    path = write(tmp_path / "m.csv", LONELY[0])
    program = f"""
import os
from guie.data.manifest import load_manifest
for rank in "10":
    os.environ["RANK"] = rank
    print("rank", rank, flush=True)
    load_manifest({str(path)!r})
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    assert done.stdout.startswith(
        f"rank 1\nrank 0\n{path}:2: warning: val query without a positive"
    )
    assert done.stdout.count("\n") == 3


def test_arrow_finds_control_characters():
    """Some versions of pandas pass the expression on to Arrow, which does not know \\u."""
    labels = pa.array(["a b", "a\u2028b", "a\x85b", "a\x00b"])
    found = pyarrow.compute.match_substring_regex(labels, CONTROL).to_pylist()
    assert found == [False, True, True, True]


@pytest.mark.parametrize("end", ["\n", "\r", "\t", "\x00", "\x7f", "\x85", "\u2028", "\u2029"])
@pytest.mark.parametrize("column", ["label", "domain"])
def test_a_line_break_in_a_label_or_a_domain_is_refused(end: str, column: str, tmp_path: Path):
    """A list of labels has one a line, and a report has them on a terminal."""
    rows = pd.DataFrame([GOOD.format(n).split(",") for n in range(3)], columns=HEADER.split(","))
    rows["label"] = [f"toys/{n}" for n in range(3)]
    rows.loc[1, column] += f"{end}x"
    rows.to_parquet(tmp_path / "m.parquet")
    with pytest.raises(UserError) as refusal:
        load_manifest(tmp_path / "m.parquet")
    said = f"m.parquet: row 1: {column} {rows.loc[1, column]!r} has a line break or a control"
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_line_break_in_a_label_is_named_by_its_line(tmp_path: Path):
    path = write(tmp_path / "m.csv", GOOD.format(0), 't/1.jpg,"toys/c\nar",toys,train,train')
    assert [line for line, what in refused(path) if "has a line break" in what] == ["3"]
