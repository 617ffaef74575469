"""What labels are guessed from: unit vectors, rows of a manifest, names of classes."""

from __future__ import annotations

import numpy as np
import pandas as pd

CLASSES = {"cars/sedan": ["a sedan", "a saloon car"], "cars/bus": ["a bus"]}


def units(count: int, dim: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def rows(labels, domain: str = "cars", split: str = "train") -> pd.DataFrame:
    return pd.DataFrame(
        {
            "image_path": [f"{domain}/{split}/{n}.jpg" for n in range(len(labels))],
            "label": labels,
            "domain": domain,
            "split": split,
            "role": "train" if split == "train" else "both",
        }
    )
