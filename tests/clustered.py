"""Embeddings that other libraries score too, and our scores."""

import numpy as np
import pandas as pd

from guie.evaluation.protocols.base import Part
from guie.evaluation.protocols.evaluating import score_part

EXACT = {"rel": 0, "abs": 1e-6}


def clustered(noise: float, apart: bool = False, seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Unit vectors around the centres of 16 classes of 2 to 32 images, and their table: no ties.

    `apart`: two of five images are queries and no part of the index; else each is both.
    """
    rng = np.random.default_rng(seed)
    label_T = rng.permutation(np.repeat(np.arange(16), np.arange(2, 33, 2)))
    centre_CD = rng.normal(size=(16, 12))
    emb_TD = centre_CD[label_T] + noise * rng.normal(size=(len(label_T), 12))
    emb_TD /= np.linalg.norm(emb_TD, axis=1, keepdims=True)
    roles = rng.choice(["query", "index"], len(label_T), p=[0.4, 0.6]) if apart else "both"
    names = [f"{n}.jpg" for n in range(len(label_T))]
    table = pd.DataFrame({"image_path": names, "label": [f"a/{c}" for c in label_T]})
    return emb_TD.astype(np.float32), table.assign(role=roles, domain="a")


def ours(
    emb_TD: np.ndarray, table: pd.DataFrame, *keys: str
) -> tuple[dict[str, float], pd.DataFrame]:
    """The means over queries of these metrics, and what each query scores."""
    report, scores = score_part(Part("all", "merged", keys), emb_TD, table)
    return report["pooled"], scores.values


def positives(table: pd.DataFrame) -> np.ndarray:
    """How many the index has of each query, itself not counted."""
    index = table[table["role"] != "query"]["label"].value_counts()
    queries = table[table["role"] != "index"]
    counted = index.reindex(queries["label"]).fillna(0).to_numpy()
    return counted - (queries["role"] == "both").to_numpy()
