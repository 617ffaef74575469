"""A submission's folder for Kaggle's client, and the log of scores: nothing is sent anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

import export
from guie.base.errors import UserError
from guie.base.files import write_json
from guie.export.card import file_facts
from guie.export.kaggle import LOG_COLUMNS, read_log
from guie.report.figures import local_against_leaderboard

HEADER = ",".join(LOG_COLUMNS) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as export.py and score.py leave it; the model is some bytes."""
    return made(tmp_path / "submissions" / "demo", b"a model")


def made(folder: Path, model: bytes, score: float = 0.5) -> Path:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "submission.zip", "w") as archive:
        archive.writestr("saved_model.pt", model)
    facts = file_facts(folder / "submission.zip")
    models = [{"run": {"name": "demo"}}, {"run": {"name": "other"}}]
    write_json(folder / "export.json", {"file": facts, "models": models, "source": "runs/demo"})
    scores = {
        "pooled": {"mmp_at_5": score},
        "public": {"mmp_at_5": 0.4},
        "private": {"mmp_at_5": None},
    }
    write_json(folder / "score.json", {"submission": facts, **scores})
    return folder


def call(folder: Path, *words: str) -> None:
    export.main(["--kaggle", str(folder), *words])


def test_the_folder_is_ready_and_the_dry_run_says_so(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    call(folder, "--user", "me")
    printed = capsys.readouterr().out
    for words in (
        "to upload: submission.zip",
        "kaggle datasets create -p",
        "-k me/guie-demo-submit",
    ):
        assert words in printed
    assert "to upload: kernel-metadata.json" not in printed  # which the client keeps back
    kernel = json.loads((folder / "kernel-metadata.json").read_text())
    assert kernel["dataset_sources"] == ["me/guie-demo"] and kernel["enable_internet"] == "false"
    nbformat.validate(nbformat.read(folder / "submit.ipynb", as_version=4))
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_the_metadata_agree_as_the_client_demands(folder: Path) -> None:
    call(folder, "--user", "me")
    dataset, kernel = (
        json.loads((folder / f"{kind}-metadata.json").read_text()) for kind in ("dataset", "kernel")
    )
    assert dataset["title"] and dataset["licenses"]
    assert kernel["dataset_sources"] == [dataset["id"]]
    assert kernel["id"] == f"me/{kernel['title'].replace(' ', '-')}"
    assert (folder / kernel["code_file"]).is_file()


@pytest.mark.parametrize("name", ["submission.zip", "saved_model.pt"])
def test_the_notebook_copies_the_submission_packed_or_not(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """Kaggle may unpack archives in data sets."""
    call(folder, "--user", "me")
    source, working = tmp_path / "input/a-data-set", tmp_path / "working"
    source.mkdir(parents=True)
    working.mkdir()
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        model = archive.read("saved_model.pt")
    if name == "saved_model.pt":
        (source / name).write_bytes(model)
    else:
        shutil.copy(folder / name, source)
    cells = nbformat.read(folder / "submit.ipynb", as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    places = {"KAGGLE_INPUT": str(source.parent), "KAGGLE_WORKING": str(working)}
    subprocess.run([sys.executable, "-c", code], env=os.environ | places, check=True)
    with zipfile.ZipFile(working / "submission.zip") as archive:
        assert archive.namelist() == ["saved_model.pt"]
        assert archive.read("saved_model.pt") == model


def test_another_archive_than_the_exported_one_is_refused(folder: Path) -> None:
    with (folder / "submission.zip").open("ab") as file:
        file.write(b" ")
    with pytest.raises(UserError, match="not the file in export.json"):
        call(folder, "--user", "me")
    (folder / "submission.zip").unlink()
    with pytest.raises(UserError, match="submission.zip: no such file; export.py makes it"):
        call(folder, "--user", "me")


@pytest.mark.parametrize(
    "words",
    [("--user", "Me!"), ("--user", ""), ("--user", "me", "--slug", "x"), ("--leaderboard", "61.2")],
)
def test_names_and_scores_that_cannot_be_are_refused(words: tuple[str, ...], folder: Path) -> None:
    with pytest.raises(UserError):
        call(folder, *words)
    assert not (folder.parent / "log.csv").exists()


def test_the_log_has_each_file_once_and_is_drawn(folder: Path) -> None:
    log = folder.parent / "log.csv"
    call(folder)
    assert not log.with_suffix(".png").exists()
    call(folder, "--leaderboard", "0.612", "0.618")
    call(made(folder.parent / "next", b"another", score=0.6), "--leaderboard", "0.7")
    call(folder)  # what was entered stays
    first, second = read_log(log)
    assert (first["name"], first["config"], first["local"]) == ("demo", "demo + other", "0.5000")
    assert (first["leaderboard_public"], first["leaderboard_private"]) == ("0.612", "0.618")
    assert (first["local_public"], first["local_private"]) == ("0.4000", "")
    assert (second["leaderboard_public"], second["leaderboard_private"]) == ("0.7", "")
    assert log.with_suffix(".png").stat().st_size > 1000


def test_a_name_of_a_folder_cannot_run_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Its commands are meant to be pasted."""
    parent = tmp_path / "$(touch PWN)"
    for name in ("sub x'; touch PWN; '", "a\ntouch PWN\n"):
        folder = made(parent / name, name.encode())
        call(folder, "--user", "me", "--slug", "guie-demo")
        printed = capsys.readouterr().out.partition("To upload it:\n")[2]
        *commands, _ = printed.removesuffix("\n").split("\n")
        assert len(commands) == 3
        script = "kaggle() { printf '%s\\0' \"$@\"; }\n" + "\n".join(commands)
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        words = done.stdout.split("\0")
        assert words.count(str(folder)) == 2 and words[-2] == name
    assert not list(tmp_path.rglob("PWN")) and not done.stderr
    with pytest.raises(UserError, match="no export.json; `export.py --out '.*touch PWN.*'` makes"):
        call(parent)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("export.json", "{}", "export.json: not in the format of export.py; run it again"),
        ("export.json", "[]", "export.json: not a JSON object; export.py makes it"),
        ("export.json", "{", "export.json: not JSON: .*; export.py makes it"),
        ("score.json", "{}", "score.json: not in the format of score.py; run it again"),
        ("../log.csv", "", "log.csv: cannot be read"),
        ("../log.csv", "date,name\n", "log.csv: its first line must be date,name,sha256"),
        ("../log.csv", HEADER + ",,,,,,,,,\n", "log.csv:2: 10 columns where the header has 9"),
        ("../log.csv", HEADER + 'd,n,s,c,"0,61",,,,\n', "log.csv:2: local '0,61' is not a number"),
    ],
)
def test_files_that_somebody_has_changed_are_refused_in_one_line(
    file: str, text: str, words: str, folder: Path
) -> None:
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=words) as refused:
        call(folder)
    assert "\n" not in str(refused.value) and (folder / file).read_text() == text


def test_a_submission_is_a_file(folder: Path) -> None:
    (folder / "submission.zip").unlink()
    os.mkfifo(folder / "submission.zip")
    with pytest.raises(UserError, match="submission.zip: not a regular file"):
        call(folder)


def test_a_score_of_another_file_is_refused(folder: Path) -> None:
    score = json.loads((folder / "score.json").read_text())
    write_json(folder / "score.json", score | {"submission": {"sha256": "0"}})
    with pytest.raises(UserError, match="another submission.zip; run score.py again"):
        call(folder)


def test_the_drawing_has_each_submission_by_name() -> None:
    figure = local_against_leaderboard([("a", 0.5, 0.6), ("b $x$", 0.7, 0.65)])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["a", r"b \$x\$"]
    assert [tuple(dot.get_offsets()[0]) for dot in axes.collections] == [(0.5, 0.6), (0.7, 0.65)]
