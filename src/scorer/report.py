"""The output of a scoring: score.json, score.neighbours.csv and a printed table."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scorer.budget import CHALLENGE_IMAGES, LIMIT_HOURS
from scorer.embedding import Embedded
from scorer.retrieval import METRICS


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def summarise(judged: pd.DataFrame) -> dict[str, Any]:
    """Average the queries of `retrieval.judge`: mean over domains, pooled, each domain, 30/70.

    `queries` counts all queries, `queries_without_positive` those that metrics exclude. A group
    without other queries has None for each metric; such a domain is not in the mean.
    """
    domains = judged.groupby("domain")[METRICS].mean()
    return {
        "mean": _plain(domains.mean()),
        "pooled": _plain(judged[METRICS].mean()),
        "domains": {str(name): _group(rows) for name, rows in judged.groupby("domain")},
        "index": "merged",
        "public": _group(judged[judged["is_public"]]),
        "private": _group(judged[~judged["is_public"]]),
    }


def _group(rows: pd.DataFrame) -> dict[str, Any]:
    counts = {
        "queries": len(rows),
        "queries_without_positive": int((rows["positives"] == 0).sum()),
    }
    return _plain(rows[METRICS].mean()) | counts


def _plain(metrics: pd.Series) -> dict[str, float | None]:
    return {name: None if np.isnan(value) else float(value) for name, value in metrics.items()}


def costs(embedded: Embedded, peak_bytes: int) -> dict[str, Any]:
    """Report time and memory, and project the time to the challenge's number of images.

    Args:
        peak_bytes: of the GPU if there is one, else of the model's process.
    """
    count, dimension = embedded.emb_ND.shape
    decode, model = embedded.decode_seconds / count, embedded.model_seconds / count
    return {
        "dimension": dimension,
        "seconds_per_image": {"decode": decode, "model": model, "total": decode + model},
        "projected_hours": (decode + model) * CHALLENGE_IMAGES / 3600,
        "limit_hours": LIMIT_HOURS,
        "peak_memory_mb": peak_bytes / 2**20,
        "images": count,
        "images_with_exif_rotation": embedded.rotated,
        "images_resumed": embedded.resumed,
        "fast_difference": embedded.fast_difference,
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
    return pd.DataFrame(
        {
            "query": judged["image_path"].to_numpy()[query],
            "rank": place + 1,
            "image_path": index["image_path"].to_numpy()[rows_QK[query, place]],
            "distance": distances_QK[query, place],
            "relevant": relevant_QK[query, place].astype(int),
            "counted": (place < judged["positives"].to_numpy()[query]).astype(int),
        }
    )


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write indented JSON. Raises ValueError for NaN, which JSON lacks."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def format_table(score: dict[str, Any]) -> str:
    """Format a score for the terminal."""
    names = {**score["domains"], "public": score["public"], "private": score["private"]}
    width = max(len(name) for name in [*names, "private"])
    lines = [f"{'':{width}}   mMP@5     R@1  queries  without positive"]
    lines += [_line(name, group, width) for name, group in score["domains"].items()]
    lines += [_line(name, score[name], width) for name in ("mean", "pooled", "public", "private")]
    seconds = score["seconds_per_image"]
    lines += [
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
        _budget_line(score["budget"]),
    ]
    if not score["limits"]["memory"]["held"]:
        lines.append("the limit of memory does not hold here")
    return "\n".join(lines)


def _budget_line(budget: dict[str, Any]) -> str:
    if "fault" in budget:
        return f"{budget['card']}: not measured ({budget['fault']})"
    memory = budget["memory_gb"]
    return (
        f"{budget['card']}, estimated: {budget['gflop_per_image']:,.1f} GFLOP per image, "
        f"{budget['hours']['least']:.2f} to {budget['hours']['expected']:.2f} h of {LIMIT_HOURS} h, "
        f"{sum(memory.values()) - memory['limit']:.1f} GB of {memory['limit']:.0f} GB; "
        f"fits: {budget['fits']}"
    )


def _line(name: str, group: dict[str, Any], width: int) -> str:
    values = "  ".join("     -" if group[m] is None else f"{group[m]:6.4f}" for m in METRICS)
    counts = ""
    if "queries" in group:
        counts = f"  {group['queries']:7,}  {group['queries_without_positive']:16,}"
    return f"{name:{width}}  {values}{counts}"
