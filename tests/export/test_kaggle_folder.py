"""A submission's folder for Kaggle's client, and the log of scores; nothing is uploaded."""

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
    values = {"pooled": score, "public": 0.4, "private": None}
    scores = {name: {"mmp_at_5": value} for name, value in values.items()}
    write_json(folder / "score.json", {"submission": facts, **scores})
    return folder


def call(folder: Path, *words: str) -> None:
    export.main(["--kaggle", str(folder), *words])


def test_the_folder_is_ready_for_the_client(folder: Path, capsys: pytest.CaptureFixture) -> None:
    call(folder, "--user", "me")
    printed = capsys.readouterr().out
    assert "to upload: submission.zip" in printed and "kaggle datasets create -p" in printed
    assert "-k me/guie-demo-submit" in printed
    assert "to upload: kernel-metadata.json" not in printed  # which the client does not upload
    dataset, kernel = (
        json.loads((folder / f"{kind}-metadata.json").read_text()) for kind in ("dataset", "kernel")
    )
    assert dataset["title"] and dataset["licenses"] and dataset["id"] == "me/guie-demo"
    assert kernel["dataset_sources"] == [dataset["id"]] and kernel["enable_internet"] == "false"
    assert kernel["id"] == f"me/{kernel['title'].replace(' ', '-')}"
    nbformat.validate(nbformat.read(folder / kernel["code_file"], as_version=4))
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["submission.zip", "saved_model.pt"])
def test_the_notebook_copies_the_submission_packed_or_not(
    name: str, folder: Path, tmp_path: Path
) -> None:
    """Kaggle may unpack archives in data sets."""
    call(folder, "--user", "me")
    source, working = tmp_path / "input/a-data-set", tmp_path / "working"
    source.mkdir(parents=True)
    working.mkdir()
    if name == "saved_model.pt":
        (source / name).write_bytes(b"a model")
    else:
        shutil.copy(folder / name, source)
    cells = nbformat.read(folder / "submit.ipynb", as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    places = {"KAGGLE_INPUT": str(source.parent), "KAGGLE_WORKING": str(working)}
    subprocess.run([sys.executable, "-c", code], env=os.environ | places, check=True)
    with zipfile.ZipFile(working / "submission.zip") as archive:
        assert archive.namelist() == ["saved_model.pt"]
        assert archive.read("saved_model.pt") == b"a model"


def test_the_log_has_each_file_once_and_is_drawn(folder: Path) -> None:
    log = folder.parent / "log.csv"
    call(folder)
    assert not log.with_suffix(".png").exists()
    call(folder, "--leaderboard", "0.612", "0.618")
    call(made(folder.parent / "next", b"another", score=0.6), "--leaderboard", "0.7")
    call(folder)  # the scores that were entered stay
    first, second = read_log(log)
    assert (first["name"], first["config"], first["local"]) == ("demo", "demo + other", "0.5000")
    assert (first["leaderboard_public"], first["leaderboard_private"]) == ("0.612", "0.618")
    assert (first["local_public"], first["local_private"]) == ("0.4000", "")
    assert (second["leaderboard_public"], second["leaderboard_private"]) == ("0.7", "")
    assert log.with_suffix(".png").stat().st_size > 1000


def test_printed_commands_can_be_pasted(folder: Path, capsys: pytest.CaptureFixture) -> None:
    name = "sub x'; touch PWN; '$(touch PWN)"
    folder = folder.rename(folder.with_name(name))
    call(folder, "--user", "me", "--slug", "guie-demo")
    commands = capsys.readouterr().out.partition("To upload it:\n")[2].splitlines()[:-1]
    script = "kaggle() { printf '%s\\0' \"$@\"; }\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True)
    words = done.stdout.split("\0")
    assert len(commands) == 3 and words.count(str(folder)) == 2 and words[-2] == name
    assert not (folder / "PWN").exists() and not done.stderr


@pytest.mark.parametrize(
    ("file", "text", "words", "says"),
    [
        ("export.json", None, "", "no export.json; `export.py --out .*` makes a submission"),
        ("export.json", "{}", "", "export.json: not in the format of export.py; run it again"),
        ("score.json", "{}", "", "score.json: not in the format of score.py; run it again"),
        ("score.json", '{"submission": {"sha256": "0"}}', "", "another submission.zip; run score"),
        ("../log.csv", "date,name\n", "", "log.csv: its first line must be date,name,sha256"),
        ("../log.csv", HEADER + 'd,n,s,c,"0,61",,,,\n', "", "log.csv:2: local '0,61' is not a num"),
        ("submission.zip", "other", "--user me", "submission.zip: is not the file in export.json"),
        ("submission.zip", None, "--user me", "no such file; export.py makes it"),
        ("", "", "--user Me!", "'Me!': a Kaggle name has only a-z, 0-9"),
        ("", "", "--user me --slug x", "--slug x: must have 6 to 43 characters, not 1"),
        ("", "", "--leaderboard 61.2", "--leaderboard 61.2: must be between 0 and 1"),
    ],
)
def test_a_folder_or_a_log_with_a_fault_is_refused(
    file: str, text: str | None, words: str, says: str, folder: Path
) -> None:
    if text is None:
        (folder / file).unlink()
    elif file:
        (folder / file).write_text(text)
    with pytest.raises(UserError, match=says) as refused:
        call(folder, *words.split())
    assert "\n" not in str(refused.value)
    assert file == "../log.csv" or not (folder.parent / "log.csv").exists()


def test_the_drawing_has_each_submission_by_name() -> None:
    figure = local_against_leaderboard([("a", 0.5, 0.6), ("b $x$", 0.7, 0.65)])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["a", r"b \$x\$"]
    assert [tuple(dot.get_offsets()[0]) for dot in axes.collections] == [(0.5, 0.6), (0.7, 0.65)]
