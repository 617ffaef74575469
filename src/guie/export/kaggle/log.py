"""submissions/log.csv: every submission once, what it scored here, and what the leaderboard said."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.export.facts import file_facts

METRIC = "mmp_at_5"
LOG_COLUMNS = (
    *("date", "name", "sha256", "config", "local", "local_public", "local_private"),
    *("leaderboard_public", "leaderboard_private"),
)


def read_log(path: Path) -> list[dict[str, str]]:
    """Its rows; none where there is no file. Raises UserError for other columns."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != LOG_COLUMNS:
            raise UserError(f"{path}: its first line must be {','.join(LOG_COLUMNS)}")
        return list(reader)


def log_row(folder: Path, leaderboard: list[float] | None = None) -> dict[str, str]:
    """The line of a submission's folder: its hash, its config, its own score where score.py left one.

    Args:
        leaderboard: the public score, and perhaps the private one.

    Raises UserError where score.json is of another file, or the leaderboard's is no score.
    """
    described = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    digest = file_facts(folder / "submission.zip")["sha256"]
    configs = [member["run"]["name"] for member in described["models"] if member["run"]]
    row = dict.fromkeys(LOG_COLUMNS, "")
    row |= {
        "date": datetime.now(UTC).date().isoformat(),
        "name": folder.name,
        "sha256": digest,
        "config": " + ".join(configs) or described["source"],
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
    score: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if score["submission"]["sha256"] != digest:
        raise UserError(f"{path}: is of another submission.zip; run score.py again")
    places = {"local": "pooled", "local_public": "public", "local_private": "private"}
    values = {name: score.get(place, {}).get(METRIC) for name, place in places.items()}
    return {name: f"{value:.4f}" for name, value in values.items() if value is not None}
