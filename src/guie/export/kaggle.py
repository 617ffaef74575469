"""Prepare a submission folder for Kaggle's official client, and keep a log of scores."""

import re
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError, why_unreadable
from guie.base.files import quoted, read_json, replacing, write_json, write_text
from guie.data.manifest.reading import read_csv_rows
from guie.export.card import file_facts, refuse_unmarked
from guie.report.figures import local_against_leaderboard

COMPETITION = "google-universal-image-embedding"
DATASET, KERNEL, NOTEBOOK = "dataset-metadata.json", "kernel-metadata.json", "submit.ipynb"
ZIP = "submission.zip"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
LIMITS = (6, 50 - len(" submit"))  # characters of a data set's name; the notebook's is longer
SCORES = {"local": "pooled", "local_public": "public", "local_private": "private"}  # in score.json
NUMBERS = [*SCORES, "leaderboard_public", "leaderboard_private"]
LOG_COLUMNS = ("date", "name", "sha256", "config", *NUMBERS)


def prepare_upload(folder: Path, user: str, slug: str | None) -> None:
    """Check the submission, write the files for Kaggle's client, and print its commands.

    The client (`pip install kaggle`) needs its token. It uploads every file but both metadata files. `slug`
    is the data set's; the notebook's ends with `-submit`.

    Raises UserError for a name that Kaggle does not accept, or if submission.zip is missing or is not the
    file that export.py wrote.
    """
    slug = slug or f"guie-{folder.resolve().name.lower().replace('_', '-')}"
    for word in (user, slug):
        if not SLUG.fullmatch(word):
            allowed = "a Kaggle name has only a-z, 0-9 and single hyphens"
            raise UserError(f"{word!r}: {allowed}; change --user or --slug")
    least, most = LIMITS
    if not least <= len(slug) <= most:
        raise UserError(f"--slug {slug}: must have {least} to {most} characters, not {len(slug)}")
    if why := why_unreadable(folder / ZIP):
        raise UserError(f"{why}; export.py makes it")
    made = read_json(folder / "export.json", "export.py makes it")
    if made.get("file") != file_facts(folder / ZIP):
        raise UserError(f"{folder / ZIP}: is not the file in export.json; export it again")
    refuse_unmarked([folder / DATASET, folder / NOTEBOOK], folder / KERNEL)
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
    write_json(folder / KERNEL, kernel)
    write_json(folder / DATASET, dataset)
    # It accepts the archive or the unpacked file, as Kaggle may unpack archives in data sets
    notebook = files("guie.export").joinpath("templates", NOTEBOOK)
    write_text(folder / NOTEBOOK, notebook.read_text(encoding="utf-8"))
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        if file.name not in (DATASET, KERNEL):
            print(f"to upload: {file.name}, {file.stat().st_size:,} bytes")
    print("dry run: the folder is valid. To upload it:")
    print(f"kaggle datasets create -p {quoted(folder)}")
    print(f"kaggle kernels push -p {quoted(folder)}")
    submit = f"kaggle competitions submit {COMPETITION} -k {user}/{slug}-submit -v 1 -f {ZIP}"
    print(f"{submit} -m {quoted(folder.resolve().name)}")


def read_log(path: Path) -> list[dict[str, str]]:
    """Return the rows of the log; none if there is no file. Raises UserError for a wrong column or score."""
    if not path.exists():
        return []
    rows = read_csv_rows(path)
    if tuple(rows.table.columns) != LOG_COLUMNS:
        raise UserError(f"{path}: its first line must be {','.join(LOG_COLUMNS)}")
    for name in NUMBERS:
        text = rows.table[name]
        wrong = np.flatnonzero((text != "") & pd.to_numeric(text, errors="coerce").isna())
        if len(wrong):
            line, score = rows.places[wrong[0]], text[wrong[0]]
            raise UserError(f"{path}:{line}: {name} {score!r} is not a number, such as 0.612")
    return [dict(zip(LOG_COLUMNS, row, strict=True)) for row in rows.table.to_numpy()]


def log_row(folder: Path, leaderboard: list[float] | None = None) -> dict[str, str]:
    """Return the log row of a submission's folder: its hash, its config, and score.py's score if any.

    `leaderboard` has the public score, and optionally the private one. Raises UserError if score.json belongs
    to another file, or a leaderboard score is not in 0 to 1.
    """
    row = dict.fromkeys(LOG_COLUMNS, "")
    row["date"], row["name"] = datetime.now(UTC).date().isoformat(), folder.resolve().name
    row["sha256"] = file_facts(folder / ZIP)["sha256"]
    file, script = folder / "export.json", "export.py"
    try:
        made = read_json(file, "export.py makes it")
        configs = [member["run"]["name"] for member in made["models"] if member["run"]]
        row["config"] = " + ".join(configs) or made["source"]
        file, script = folder / "score.json", "score.py"
        if file.is_file():
            score = read_json(file, "score.py makes it")
            if score["submission"]["sha256"] != row["sha256"]:
                raise UserError(f"{file}: belongs to another submission.zip; run score.py again")
            values = {n: score.get(place, {}).get("mmp_at_5") for n, place in SCORES.items()}
            row |= {name: f"{value:.4f}" for name, value in values.items() if value is not None}
    except (KeyError, TypeError):
        raise UserError(f"{file}: not in the format of {script}; run it again") from None
    for name, shown in zip(LOG_COLUMNS[-2:], leaderboard or (), strict=False):
        if not 0 <= shown <= 1:
            raise UserError(f"--leaderboard {shown:g}: must be between 0 and 1")
        row[name] = f"{shown:g}"
    return row


def enter_log(folder: Path, log: Path, leaderboard: list[float] | None) -> None:
    """Add the submission to the log, or update its row, and plot local scores against the leaderboard's."""
    plot = log.with_suffix(".png")
    row, rows = log_row(folder, leaderboard), read_log(log)
    if known := next((old for old in rows if old["sha256"] == row["sha256"]), None):
        known |= {key: value for key, value in row.items() if value and key != "date"}
    else:
        rows.append(row)
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
