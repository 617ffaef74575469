"""Pictures, a mix of them, and reports that are written of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mix_report import MERGES, ODD, SELECTION, finding, summary
from PIL import Image

from guie.report.pages import class_sizes, left_after, write_report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for i in range(20):
        image = Image.new("RGB", (300, 40 + i), (12 * i, 200, 90))
        image.save(tmp_path / f"{i}.jpg", comment=b"a secret of the camera")
    return tmp_path


@pytest.fixture
def table() -> pd.DataFrame:
    """A class of four images for each odd name, each in a domain of that name."""
    names = np.repeat(ODD, 4)
    return pd.DataFrame(
        {
            "image_path": [f"{i}.jpg" for i in range(20)],
            "label": [f"{name}/class of {name}" for name in names],
            "domain": names,
            "split": np.where(names == ODD[-1], "test", "train"),
        }
    )


@pytest.fixture
def written(root, table):
    """Write a report and return its text."""

    def write(**more) -> str:
        message = more.pop("summary", summary(table))
        path = root / "report.html"
        stages = {"read": table, "unusable": table}
        write_report(
            path, message, table, root, left=left_after(stages), before=class_sizes(table), **more
        )
        return path.read_text(encoding="utf-8")

    return write


@pytest.fixture
def full(written, table) -> str:
    """With every section."""
    files = [{"file": "x/<i>.jpg", "split": "train", "reason": "broken & <bad>"}]
    pairs = pd.DataFrame([finding("leak", 0.98), finding("conflict", 0.97, "both dropped")])
    message = summary(table, dropped_files=files, notes=["<b>: no val split"])
    return written(summary=message, findings=pairs, merges=MERGES, gains=SELECTION)
