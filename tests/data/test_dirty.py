"""Bad and odd input: what becomes of each line, drawn here and in the real folder of such files.

`pytest tests/data/test_dirty.py -s` prints how many rows came out as expected.
"""

import csv
import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dirty_cases
from guie.base.errors import UserError
from guie.data.datasets import read_folder
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.rows.checks import VERIFY, Checks, drop_unusable

# What expected.csv of the real folder allows, by how its text begins; see `allowed`.
ALLOWED = [
    (r"ok.*\b(or|,) reject", {"ok", "reject"}),
    (r"ok", {"ok"}),
    (r"reject or warn", {"reject", "note"}),
    (r"reject.* or .*(scale|normalise)", {"ok", "reject"}),
    (r"reject", {"reject"}),
    (r"excluded from metrics and reported", {"note"}),
    (r"ignored", {"ignored", "reject"}),
]
Outcomes = dict[int, tuple[str, str]]  # line: (outcome, why)


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases, drawn; the manifest's path."""
    return dirty_cases.draw(tmp_path_factory.mktemp("dirty"))


@pytest.fixture
def real(real_folder: Path) -> Path:
    """The manifest of the real folder; skips where it is absent."""
    path = real_folder / "data/dirty/manifest_dirty.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    return path


@pytest.fixture(params=["drawn", "real"])
def manifest(request: pytest.FixtureRequest) -> Path:
    """The drawn cases, and the real folder where there is one."""
    return request.getfixturevalue(request.param)


def checked(paths, root: Path, workers: int) -> pd.DataFrame:
    checks = Checks(VERIFY, root, list(paths))
    checks.fill(workers, "dirty")
    return checks.table()


def named(messages: list[str]) -> dict[int, str]:
    """{line: all that is said of it} from messages `file:line: what`."""
    found: dict[int, str] = {}
    for message in messages:
        match = re.match(r".*?\.csv:(\d+): (.*)", message)
        if match:
            found[int(match[1])] = f"{found.get(int(match[1]), '')}{match[2]}. "
    return found


def outcomes(manifest: Path, work: Path, caplog: pytest.LogCaptureFixture) -> Outcomes:
    """What becomes of every line: of the manifest's checks, its notes, and the images' decoding."""
    with pytest.raises(UserError) as caught:
        load_manifest(manifest)
    faults = named(str(caught.value).splitlines())
    text = manifest.read_bytes().decode().split("\n")[:-1]
    # Without the faulty lines the rest must load, each row still known by its line.
    mended = work / "mended.csv"
    kept = ["" if number in faults else line for number, line in enumerate(text, start=1)]
    mended.write_bytes("\n".join([*kept, ""]).encode())
    with caplog.at_level(logging.WARNING):
        table = load_manifest(mended, manifest.parent).table
    notes = named(caplog.messages)
    verdicts = checked(table["image_path"], manifest.parent, workers=1)
    bad = verdicts.loc[verdicts["reason"] != "", "reason"].to_dict()

    found: Outcomes = {n: ("reject", what) for n, what in faults.items()}
    for number, line in enumerate(kept[1:], start=2):
        path = next(csv.reader([line]))[:1]
        if path and path[0] in bad:
            found[number] = ("reject", bad[path[0]])
        elif number not in found:
            said = notes.get(number)
            found[number] = ("note", said) if said else ("ok" if line else "ignored", "")
    return found


def test_every_line_comes_out_as_decided(manifest, tmp_path, caplog):
    found = outcomes(manifest, tmp_path, caplog)
    decided = {n: case for n, case in enumerate(dirty_cases.lines(), start=2)}
    assert found.keys() == decided.keys()
    for number, (line, outcome, reason) in decided.items():
        assert found[number][0] == outcome, (number, line, found[number])
        assert reason in found[number][1], (number, line, found[number])
    if (list_of := manifest.with_name("expected.csv")).is_file():  # of the real folder
        expected = pd.read_csv(list_of).dropna(subset="line_no")
        right = [found[int(row.line_no)][0] in allowed(row.expect) for row in expected.itertuples()]
        print(f"\n{sum(right)} of {len(right)} rows as expected")
        assert all(right), expected[~np.array(right)]


def allowed(expect: str) -> set[str]:
    return next(found for start, found in ALLOWED if re.match(start, expect))


# ---------------------------------------------------------------- what a person sees


def seen(manifest: Path, name: str) -> np.ndarray:
    return np.asarray(open_as_seen(manifest.parent / "images/bad" / name)).astype(float)


def test_eight_orientations_show_one_picture(manifest):
    pictures = [seen(manifest, f"exif_{n}.jpg") for n in range(1, 9)]
    assert all(picture.shape == (95, 200, 3) for picture in pictures)
    assert max(np.abs(picture - pictures[0]).mean() for picture in pictures) < 1.2


# ---------------------------------------------------------------- manifests as other programs save


CLEAN = f"""{dirty_cases.HEADER}
a/0.jpg,cars/é,cars,train,train
a/1.jpg,cars/é,cars,train,train
a/2.jpg,cars/b,cars,test,both
a/3.jpg,cars/b,cars,test,both
"""
REORDERED = "\n".join(",".join(reversed(line.split(","))) for line in CLEAN.splitlines())
# name -> (bytes, a part of the refusal; "" where it loads like CLEAN)
SAVED = {
    "clean": (CLEAN.encode(), ""),
    "bom_crlf": (b"\xef\xbb\xbf" + CLEAN.replace("\n", "\r\n").encode(), ""),
    "reordered_columns": (REORDERED.encode(), ""),
    "blank_lines": (CLEAN.replace("\n", "\n\n").encode(), ""),
    "semicolon": (CLEAN.replace(",", ";").encode(), "found 'image_path;label;domain;split;role'; save it as"),
    "tab": (CLEAN.replace(",", "\t").encode(), "with commas between the columns"),
    "no_header": (CLEAN.partition("\n")[2].encode(), "found 'a/0.jpg, cars/é, cars, train, train'"),
    "header_only": (dirty_cases.HEADER.encode() + b"\n", "a header but no rows"),
    "zero_byte": (b"", "is empty"),
    "utf16": (CLEAN.encode("utf-16"), "is not text in UTF-8; save it as"),
    "utf16_without_bom": (CLEAN.encode("utf-16-le"), "is not text in UTF-8; save it as"),
    "latin1": (CLEAN.encode("latin-1"), "2: not UTF-8 (byte 0xe9, Latin-1 perhaps); save it"),
    "workbook": (b"PK\x03\x04\x14\0\x06\0", "is not text in UTF-8; save it as"),
    "csv_of_parquet_bytes": (b"PAR1\x15\x04", "missing columns"),
    "text_in_a_parquet": (b"PAR?", "cannot be read as a table"),
    "blank": (b"\n \n", "it is empty"),
    "absent": (None, "no such manifest"),
    "two_labels": (CLEAN.replace("role", "label", 1).encode(), "missing columns role"),
    "twice": (CLEAN.replace("role", "role,role", 1).encode(), "column 'role' occurs twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_manifests_as_other_programs_save_them(name, tmp_path):
    content, fault = SAVED[name]
    path = tmp_path / f"{name}.{'parquet' if name.endswith('parquet') else 'csv'}"
    if content is not None:
        path.write_bytes(content)
    if not fault:
        columns = dirty_cases.HEADER.split(",")
        rows = [line.split(",") for line in CLEAN.splitlines()[1:]]
        assert load_manifest(path).table[columns].to_numpy().tolist() == rows
        return
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(str(path)) and fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_column_alone_does_not_blame_the_commas(tmp_path):
    (tmp_path / "m.csv").write_text(CLEAN.replace("role", "rolle", 1))
    with pytest.raises(UserError, match="found 'image_path, label, domain, split, rolle'$"):
        load_manifest(tmp_path / "m.csv")


# ---------------------------------------------------------------- a whole folder of it


def test_links_that_leave_the_folder_and_pipes_are_not_read(drawn, tmp_path):
    """A data set may be linked into the root, but not one file of it."""
    root = tmp_path / "set"
    shutil.copytree(drawn.parent / "images/ok", root / "a")
    (root / "a/again.jpg").symlink_to("extra_00.jpg")
    reasons = {
        "a/again.jpg": "",
        "a/dangling.jpg": "a link that points nowhere",
        "a/out.jpg": "a link that leaves the source's folder",
        "a/pipe.jpg": "not a regular file",
        "a/loop": "not a regular file",
    }
    (root / "a/dangling.jpg").symlink_to("nowhere.jpg")
    (root / "a/out.jpg").symlink_to(drawn.parent / "images/bad/UPPER.JPG")
    os.mkfifo(root / "a/pipe.jpg")
    (root / "a/loop").symlink_to("../a")
    table, skipped = read_folder(root, "d", "train")
    assert len(table) == 33
    assert skipped == {
        "link to a folder or to nowhere": 2,
        "link that leaves the folder": 1,
        "not a regular file": 1,
    }
    (tmp_path / "root/deep").mkdir(parents=True)
    (tmp_path / "root/deep/set").symlink_to(root)
    for folder, prefix in ((root, ""), (tmp_path / "root", "deep/set/")):
        found = checked([prefix + path for path in reasons], folder, workers=1)["reason"]
        assert found.tolist() == list(reasons.values())


def test_curation_of_the_whole_folder_drops_what_is_bad_and_nothing_else(drawn):
    root = drawn.parent / "images"
    table, skipped = read_folder(root, "d", "train")
    assert skipped == {f"hidden or system file ({n})": 1 for n in ("._*", "Thumbs.db")}
    looked = checked(table["image_path"].unique(), root, workers=2)
    kept, files = drop_unusable(table, root, looked, "dirty")
    dropped = {Path(entry["file"]).name for entry in files}
    assert dropped == {*dirty_cases.REJECTED, *dirty_cases.REFUSED_ODD}
    assert len(kept) == len(table) - len(dropped)
    size = kept.set_index("image_path").loc["bad/exif_6.jpg", ["width", "height"]]
    assert size.tolist() == [200, 95]
