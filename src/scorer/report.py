"""The output of a scoring: score.json, score.neighbours.csv and a printed table."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scorer.budget import describe
from scorer.contract import CHALLENGE_IMAGES, LIMIT_HOURS
from scorer.retrieval import METRICS


def summarise(judged: pd.DataFrame) -> dict[str, Any]:
    """Average the queries of `retrieval.judge`: mean over domains, pooled, each domain, 30/70.

    `queries` counts all queries, `queries_without_positive` those that metrics exclude. A group
    without other queries has None for each metric; such a domain is not in the mean.
    """

    def plain(metrics: pd.Series) -> dict[str, float | None]:
        return {name: None if np.isnan(value) else float(value) for name, value in metrics.items()}

    def group(rows: pd.DataFrame) -> dict[str, Any]:
        without = int((rows["positives"] == 0).sum())
        counts = {"queries": len(rows), "queries_without_positive": without}
        return plain(rows[METRICS].mean()) | counts

    by_domain = judged.groupby("domain")
    return {
        "mean": plain(by_domain[METRICS].mean().mean()),
        "pooled": plain(judged[METRICS].mean()),
        "domains": {str(name): group(rows) for name, rows in by_domain},
        "index": "merged",
        "public": group(judged[judged["is_public"]]),
        "private": group(judged[~judged["is_public"]]),
    }


def neighbour_table(
    judged: pd.DataFrame,
    index: pd.DataFrame,
    rows_QK: np.ndarray,
    distances_QK: np.ndarray,
    relevant_QK: np.ndarray,
) -> pd.DataFrame:
    """List the neighbours of each query, one row per pair, at most K per query, nearest first.

    `counted` is 1 within the first min(5, n) ranks, which mMP@5 counts.
    """
    query, place = np.nonzero(rows_QK >= 0)
    columns = {
        "query": judged["image_path"].to_numpy()[query],
        "rank": place + 1,
        "image_path": index["image_path"].to_numpy()[rows_QK[query, place]],
        "distance": distances_QK[query, place],
        "relevant": relevant_QK[query, place].astype(int),
        "counted": (place < judged["positives"].to_numpy()[query]).astype(int),
    }
    return pd.DataFrame(columns)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", newline="")
    os.replace(temporary, path)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write indented JSON. Raises ValueError for NaN, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def format_table(score: dict[str, Any]) -> str:
    """Format a score for the terminal."""
    groups = score["domains"] | {g: score[g] for g in ("mean", "pooled", "public", "private")}
    table = pd.DataFrame.from_dict(groups, orient="index", dtype=float)
    table.columns = ["mMP@5", "R@1", "queries", "without positive"]
    formats = ["{:.4f}".format, "{:.4f}".format, "{:,.0f}".format, "{:,.0f}".format]
    seconds = score["seconds_per_image"]
    lines = [
        table.to_string(na_rep="-", formatters=formats),
        "mean: over domains, each counts once; pooled: over all queries, the challenge's number;",
        "public and private: pooled over 30 % and 70 % of the queries",
        "",
        f"contract: {len(score['checks'])} checks passed; {score['dimension']} numbers per image",
        f"images: {score['images']:,}; {score['images_with_exif_rotation']:,} have an "
        "EXIF rotation that the challenge ignores",
        f"time: {seconds['total'] * 1000:.1f} ms per image (decode {seconds['decode'] * 1000:.1f}, "
        f"model {seconds['model'] * 1000:.1f}); {CHALLENGE_IMAGES:,} images would take "
        f"{score['projected_hours']:.2f} h of {LIMIT_HOURS} h on this machine "
        f"({score['device']}); peak memory {score['peak_memory_mb']:,.0f} MB",
        describe(score["budget"]),
    ]
    if not score["limits"]["memory"]["held"]:
        lines.append("the limit of memory does not hold here")
    return "\n".join(lines)
