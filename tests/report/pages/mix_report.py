"""What a report of a mix is written from, names of all kinds among it."""

from __future__ import annotations

import pandas as pd

from guie.curation.duplicates.findings import COLUMNS as FINDING

ODD = ["<script>alert(1)</script>", "a \"quoted\" & 'odd' name", "日本語の車", "🍕 pizza", "مرحبا"]


def summary(table: pd.DataFrame, **more) -> dict:
    domains = {
        domain: {"dropped": {}, "train": {"classes": 1, "images": len(rows)}}
        for domain, rows in table.groupby("domain")
    }
    return {
        "name": "a_mix",
        "command": "python src/curate.py --config 'a <b>.yaml'",
        "rows": len(table),
        "domains": domains,
        "notes": [],
        "dropped_files": [],
        "sources": [{"kind": "folder", "path": "input/<x>", "skipped": {"no image <i>": 1234}}],
        "config": {"seed": 0, "verify": True},
    } | more


def finding(kind: str, similarity: float, action: str = "dropped", **more) -> dict:
    values = dict.fromkeys(FINDING, ODD[0])
    values |= {"image_path": "0.jpg", "other_path": "1.jpg", "split": "train", "distance": 3.0}
    values |= {"other_split": "train", "kind": kind, "similarity": similarity, "action": action}
    values |= {"copy": "near", "difference": 1 - similarity, "limit": 0.6, "labels": 0}
    values |= {"sure": True, "confirmed": False}
    return values | more


def gains(*rows: tuple) -> pd.DataFrame:
    columns = ["step", "change", "gain", "standard_error", "score", "mix"]
    types = {"step": "Int64", "gain": "float64", "standard_error": "Float64", "score": "Float64"}
    return pd.DataFrame(rows, columns=columns).astype(types)


SELECTION = gains(
    (1, "+<b>", 0.5, 0.0, 0.5, "<b>"),
    (2, "+logos", 0.1, 0.02, 0.6, "<b>+logos"),
    (pd.NA, "+toys", -0.01, pd.NA, pd.NA, ""),
)
MERGES = pd.DataFrame(
    [("a: <b>", 'c "d"', 0.97, "one", "two", 3, 1234, "0.jpg", "1.jpg")],
    columns=[
        *("label", "into", "similarity", "dataset", "into_dataset", "images", "into_images"),
        *("image_path", "into_path"),
    ],
)


def rows(*classes: tuple[str, str, str, int]) -> pd.DataFrame:
    """(dataset, label, split, images)."""
    made = [(d, label, split) for d, label, split, images in classes for _ in range(images)]
    table = pd.DataFrame(made, columns=["dataset", "label", "split"])
    return table.assign(domain=table["label"].str.partition("/")[0])
