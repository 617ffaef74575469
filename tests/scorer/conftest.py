"""A small set of images and a toy submission, made on the spot."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scorer_toys import MeanColour, write_submission

COLOURS = {  # class -> RGB: far apart, so that the mean colour tells every class
    "toys/red": (220, 30, 30),
    "toys/green": (30, 220, 30),
    "art/blue": (30, 30, 220),
    "art/grey": (128, 128, 128),
}


@pytest.fixture(scope="session")
def submission(tmp_path_factory) -> Path:
    return write_submission(tmp_path_factory.mktemp("submission") / "submission.zip", MeanColour())


@pytest.fixture
def manifest(tmp_path) -> Path:
    """Four classes of four images, two domains, odd sizes; toys are `both`, art is split in two."""
    generator = np.random.default_rng(0)
    rows = []
    for label, colour in COLOURS.items():
        for i in range(4):
            height, width = generator.integers(5, 60, 2)
            noise = generator.integers(-20, 20, (height, width, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            image_path = f"images/{label}_{i}.{'png' if i % 2 else 'jpg'}"
            (tmp_path / image_path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / image_path)
            role = "both" if label.startswith("toys") else ("query" if i == 0 else "index")
            rows.append((image_path, label, label.split("/")[0], "test", role))
    path = tmp_path / "manifest.csv"
    columns = ["image_path", "label", "domain", "split", "role"]
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
    return path
