"""submissions/log.csv: every submission once, what it scored here, and what the leaderboard said."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.files import read_json, write_text
from guie.data.manifest.reading import read_csv_rows
from guie.export.facts import file_facts

METRIC = "mmp_at_5"
LOG_COLUMNS = (
    *("date", "name", "sha256", "config", "local", "local_public", "local_private"),
    *("leaderboard_public", "leaderboard_private"),
)


def read_log(path: Path) -> list[dict[str, str]]:
    """Its rows; none where there is no file. Raises UserError for other columns, or a score that is none."""
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
            raise UserError(f"{path}:{line}: {name} {score!r} is no number, such as 0.612")
    return [dict(zip(LOG_COLUMNS, row, strict=True)) for row in rows.table.to_numpy()]


def log_row(folder: Path, leaderboard: list[float] | None = None) -> dict[str, str]:
    """The line of a submission's folder: its hash, its config, its own score where score.py left one.

    Args:
        leaderboard: the public score, and perhaps the private one.

    Raises UserError where score.json is of another file, or the leaderboard's is no score.
    """
    described = read_json(folder / "export.json", "export.py makes it")
    digest = file_facts(folder / "submission.zip")["sha256"]
    try:
        configs = [member["run"]["name"] for member in described["models"] if member["run"]]
        config = " + ".join(configs) or described["source"]
    except (KeyError, TypeError):
        raise UserError(f"{folder / 'export.json'}: not as export.py writes it") from None
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
            raise UserError(f"--leaderboard {score:g}: a score lies between 0 and 1")
        row[name] = f"{score:g}"
    return row


def enter(path: Path, row: dict[str, str]) -> list[dict[str, str]]:
    """Write a row into the log: a new one, or what is new about the same file. All rows."""
    rows = read_log(path)
    known = next((old for old in rows if old["sha256"] == row["sha256"]), None)
    if known is None:
        rows.append(row)
    else:
        known |= {key: value for key, value in row.items() if value and key != "date"}
    text = io.StringIO()
    writer = csv.DictWriter(text, LOG_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
    return rows


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
        raise UserError(f"{path}: not as score.py writes it; run score.py again") from None
    if scored != digest:
        raise UserError(f"{path}: is of another submission.zip; run score.py again")
    return row
