"""Prepare a submission folder for Kaggle's official client, and keep a log of scores."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.base.files import quoted, read_json, replacing, write_json, write_text
from guie.data.manifest.reading import read_csv_rows
from guie.export.card import file_facts
from guie.report.figures import local_against_leaderboard

COMPETITION = "google-universal-image-embedding"
DATASET, KERNEL, NOTEBOOK = "dataset-metadata.json", "kernel-metadata.json", "submit.ipynb"
ZIP = "submission.zip"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
LIMITS = (6, 50)  # characters of a data set's name and title

# Kaggle may unpack archives in data sets: the notebook accepts the archive or the unpacked file.
CODE = """\
import os
import shutil
import zipfile
from pathlib import Path

INPUT = Path(os.environ.get("KAGGLE_INPUT", "/kaggle/input"))
WORKING = Path(os.environ.get("KAGGLE_WORKING", "/kaggle/working"))

source = [*INPUT.rglob("submission.zip"), *INPUT.rglob("saved_model.pt")][0]
if source.suffix == ".zip":
    shutil.copyfile(source, WORKING / "submission.zip")
else:
    with zipfile.ZipFile(WORKING / "submission.zip", "w") as archive:
        archive.write(source, "saved_model.pt")
print(source, (WORKING / "submission.zip").stat().st_size)
"""


def write_kaggle_folder(folder: Path, user: str, slug: str) -> None:
    """Write both metadata files and the notebook into the folder of submission.zip.

    Args:
        user: the account's name.
        slug: of the data set; the notebook's ends with `-submit`.

    Raises UserError for a name that Kaggle does not accept.
    """
    for word in (user, slug):
        if not SLUG.fullmatch(word):
            raise UserError(
                f"{word!r}: a Kaggle name has only a-z, 0-9 and single hyphens; change --user"
                " or --slug"
            )
    if not LIMITS[0] <= len(slug) <= LIMITS[1] - len(" submit"):
        raise UserError(
            f"--slug {slug}: must have {LIMITS[0]} to {LIMITS[1] - 7} characters, not {len(slug)}"
        )
    title = slug.replace("-", " ")
    dataset = {"title": title, "id": f"{user}/{slug}", "licenses": [{"name": "other"}]}
    kernel = {
        "id": f"{user}/{slug}-submit",
        "title": f"{title} submit",
        "code_file": NOTEBOOK,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": "true",
        "enable_gpu": "false",
        "enable_internet": "false",
        "dataset_sources": [f"{user}/{slug}"],
        "competition_sources": [COMPETITION],
        "kernel_sources": [],
    }
    standing = [folder / name for name in (DATASET, KERNEL, NOTEBOOK) if (folder / name).exists()]
    card = folder / KERNEL
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    if standing and f'"code_file": "{NOTEBOOK}"' not in text:
        raise UserError(f"{standing[0]}: export.py did not write it; move it, or remove it")
    write_json(folder / DATASET, dataset)
    write_json(folder / KERNEL, kernel)
    message = "Copies the submission from the attached data set. It trains and computes nothing."
    code = {"execution_count": None, "outputs": [], "source": CODE.splitlines(keepends=True)}
    notebook = {
        "cells": [
            {"cell_type": "markdown", "id": "what", "metadata": {}, "source": [message]},
            {"cell_type": "code", "id": "copy", "metadata": {}, **code},
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    write_text(folder / NOTEBOOK, json.dumps(notebook, indent=1) + "\n")


def prepare_upload(folder: Path, user: str, slug: str | None) -> None:
    """Check the submission, write the files for Kaggle's client, and print its commands.

    The client (`pip install kaggle`) needs its token. It uploads every file but both metadata files.

    Raises UserError for a name that Kaggle does not accept, or if submission.zip is missing or is not the
    file that export.py wrote.
    """
    slug = slug or f"guie-{folder.resolve().name.lower().replace('_', '-')}"
    if why := why_unreadable(folder / ZIP):
        raise UserError(f"{why}; export.py makes it")
    if read_json(folder / "export.json", "export.py makes it").get("file") != file_facts(
        folder / ZIP
    ):
        raise UserError(f"{folder / ZIP}: is not the file in export.json; export it again")
    write_kaggle_folder(folder, user, slug)
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        if file.name not in (DATASET, KERNEL):
            print(f"to upload: {file.name}, {file.stat().st_size:,} bytes")
    print("dry run: the folder is valid. To upload it:")
    print(f"kaggle datasets create -p {quoted(folder)}")
    print(f"kaggle kernels push -p {quoted(folder)}")
    print(
        f"kaggle competitions submit {COMPETITION} -k {user}/{slug}-submit -v 1 -f {ZIP}"
        f" -m {quoted(folder.resolve().name)}"
    )


METRIC = "mmp_at_5"
LOG_COLUMNS = (
    *("date", "name", "sha256", "config", "local", "local_public", "local_private"),
    *("leaderboard_public", "leaderboard_private"),
)


def read_log(path: Path) -> list[dict[str, str]]:
    """Return the rows of the log; none if there is no file. Raises UserError for a wrong column or score."""
    if not path.exists():
        return []
    rows = read_csv_rows(path)
    if tuple(rows.table.columns) != LOG_COLUMNS:
        raise UserError(f"{path}: its first line must be {','.join(LOG_COLUMNS)}")
    for name in LOG_COLUMNS[LOG_COLUMNS.index("local") :]:
        text = rows.table[name]
        wrong = np.flatnonzero((text != "") & pd.to_numeric(text, errors="coerce").isna())
        if len(wrong):
            line, score = rows.places[wrong[0]], text[wrong[0]]
            raise UserError(f"{path}:{line}: {name} {score!r} is not a number, such as 0.612")
    return [dict(zip(LOG_COLUMNS, row, strict=True)) for row in rows.table.to_numpy()]


def log_row(folder: Path, leaderboard: list[float] | None = None) -> dict[str, str]:
    """Return the log row of a submission's folder: its hash, its config, and score.py's score if any.

    Args:
        leaderboard: the public score, and optionally the private one.

    Raises UserError if score.json belongs to another file, or a leaderboard score is not in 0 to 1.
    """
    described = read_json(folder / "export.json", "export.py makes it")
    digest = file_facts(folder / "submission.zip")["sha256"]
    try:
        configs = [member["run"]["name"] for member in described["models"] if member["run"]]
        config = " + ".join(configs) or described["source"]
    except (KeyError, TypeError):
        raise UserError(
            f"{folder / 'export.json'}: not in export.py's format; export again"
        ) from None
    row = dict.fromkeys(LOG_COLUMNS, "")
    row |= {
        "date": datetime.now(UTC).date().isoformat(),
        "name": folder.resolve().name,
        "sha256": digest,
        "config": config,
    }
    row |= _local(folder / "score.json", digest)
    names = ("leaderboard_public", "leaderboard_private")
    for name, score in zip(names, leaderboard or (), strict=False):
        if not 0 <= score <= 1:
            raise UserError(f"--leaderboard {score:g}: must be between 0 and 1")
        row[name] = f"{score:g}"
    return row


def enter_log(folder: Path, log: Path, leaderboard: list[float] | None) -> None:
    """Add the submission to the log, or update its row, and plot local scores against the leaderboard's.

    Raises UserError if the plot would replace a file of another program.
    """
    plot = log.with_suffix(".png")
    if plot.exists() and not log.exists():
        raise UserError(f"{plot}: would be replaced; give another --log")
    row, rows = log_row(folder, leaderboard), read_log(log)
    known = next((old for old in rows if old["sha256"] == row["sha256"]), None)
    if known is None:
        rows.append(row)
    else:
        known |= {key: value for key, value in row.items() if value and key != "date"}
    table = pd.DataFrame(rows, columns=LOG_COLUMNS)
    write_text(log, table.to_csv(index=False, lineterminator="\n"))
    print(f"{log}: {len(rows)} submissions")
    points = [
        (row["name"], float(row["local"]), float(row["leaderboard_public"]))
        for row in rows
        if row["local"] and row["leaderboard_public"]
    ]
    if points:
        with replacing(plot) as temporary:
            local_against_leaderboard(points).savefig(temporary, dpi=100)
        print(f"{plot}: local against leaderboard, {len(points)} submissions")


def _local(path: Path, digest: str) -> dict[str, str]:
    if not path.is_file():
        return {}
    score = read_json(path, "score.py makes it")
    places = {"local": "pooled", "local_public": "public", "local_private": "private"}
    try:
        scored = score["submission"]["sha256"]
        values = {name: score.get(place, {}).get(METRIC) for name, place in places.items()}
        row = {name: f"{value:.4f}" for name, value in values.items() if value is not None}
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError(f"{path}: not in score.py's format; run score.py again") from None
    if scored != digest:
        raise UserError(f"{path}: belongs to another submission.zip; run score.py again")
    return row
