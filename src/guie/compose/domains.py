"""A linear classifier of domains on an embedding, by which views are chosen (the 5th place).

Shapes: F images to fit on, I of them fitted on, D dimensions, N domains.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor

from guie.base.errors import UserError

HELD_OUT = 0.2  # of the images, by which its accuracy is told
REACH = 100.0  # inverse strength of the penalty: coordinates of unit vectors differ by little


def fit_domains(
    emb_FD: np.ndarray, domain_F: np.ndarray, wanted: set[str]
) -> tuple[list[str], dict[str, Tensor], dict[str, Any]]:
    """The domains in order, weights of `guie.model.composition.Domains`, and how well it tells.

    Args:
        emb_FD: of unit length.
        domain_F: of each image.
        wanted: domains that views ask for.

    Raises UserError where one of those is not there, or there is nothing to tell apart.
    """
    names, counts = np.unique(domain_F, return_counts=True)
    missing = sorted(wanted - set(names))
    if missing:
        raise UserError(
            f"views: no image of domain {missing[0]!r} is there to tell it by; there are"
            f" {', '.join(names)}"
        )
    if len(names) < 2 or counts.min() * HELD_OUT < 1:
        raise UserError(
            f"classifier: {counts.min()} images of {names[counts.argmin()]} and {len(names)} domains; it"
            f" takes two domains, and {round(1 / HELD_OUT)} images of each: name fewer `domains`"
        )
    emb_ID, held_ID, domain_I, held_I = train_test_split(
        emb_FD, domain_F, test_size=HELD_OUT, random_state=0, stratify=domain_F
    )
    fitted = LogisticRegression(C=REACH, max_iter=1000).fit(emb_ID, domain_I)
    weight_DN, bias_N = fitted.coef_.T, fitted.intercept_
    if len(names) == 2:  # of two, sklearn keeps the second's alone
        weight_DN, bias_N = np.hstack([-weight_DN, weight_DN]), np.hstack([-bias_N, bias_N])
    weights = {"classifier.weight_DN": weight_DN, "classifier.bias_N": bias_N}
    state = {name: torch.tensor(value, dtype=torch.float32) for name, value in weights.items()}
    return names.tolist(), state, {"accuracy_held_out": float(fitted.score(held_ID, held_I))}
