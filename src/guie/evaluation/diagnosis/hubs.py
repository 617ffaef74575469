"""Hubs: images that are a neighbour of very many queries (Radovanovic et al., JMLR 11, 2010).

Shape legend: T rows of the table, Q queries, K ranks, I index images.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis.nearest import Nearest


def occurrences(near: Nearest) -> np.ndarray:
    """N_k of each image of the index: of how many queries it is among the first k, [I]."""
    found = near.found_QK[near.found_QK >= 0]
    return np.bincount(found, minlength=near.index_I[-1] + 1)[near.index_I]


def skewness(count_I: np.ndarray) -> float:
    """The third standardised moment of N_k: 0 where all are found alike, high where hubs are.

    NaN where every image is found equally often.
    """
    away_I = count_I - count_I.mean()
    deviation = np.sqrt((away_I**2).mean())
    return float((away_I**3).mean() / deviation**3) if deviation > 0 else float("nan")


def hubness(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """How evenly the images of each domain are found, and of all together, in the row `all`'s stead "".

    Returns, by domain, `images` of the index, `skew` of N_k, `never`: the share that is in nobody's
    first k, `most`: the largest N_k, `held`: the share of all finds that the most found hundredth
    of the images takes.
    """
    count_I, domain_I = occurrences(near), table["domain"].to_numpy()[near.index_I]
    rows = {"": _spread(count_I)}
    rows |= {str(name): _spread(count_I[domain_I == name]) for name in sorted(set(domain_I))}
    return pd.DataFrame.from_dict(rows, orient="index")


def wrong_firsts(near: Nearest) -> pd.DataFrame:
    """Images by how many queries they are the first answer of, and a wrong one; most first.

    Returns columns `row` (of the table), `wrong` (queries), `found` (N_k); of equals the lower row
    comes first.
    """
    wrong = near.found_QK[~near.right_Q, 0]
    row, count = np.unique(wrong[wrong >= 0], return_counts=True)
    everywhere = np.zeros(near.index_I[-1] + 1, np.int64)
    everywhere[near.index_I] = occurrences(near)
    table = pd.DataFrame({"row": row, "wrong": count, "found": everywhere[row]})
    return table.sort_values("wrong", ascending=False, kind="stable", ignore_index=True)


def _spread(count_I: np.ndarray) -> dict[str, float]:
    finds, first = count_I.sum(), max(1, len(count_I) // 100)
    return {
        "images": len(count_I),
        "skew": skewness(count_I),
        "never": float((count_I == 0).mean()),
        "most": int(count_I.max()),
        "held": float(np.sort(count_I)[-first:].sum() / finds) if finds else float("nan"),
    }
