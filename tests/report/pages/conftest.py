"""Pictures, a mix of them, and reports that are written of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mix_report import MERGES, ODD, SELECTION, finding, summary
from PIL import Image

from guie.report.pages import class_sizes, left_after, published, write_report

PAPERS = cache(published.papers)


@pytest.fixture(scope="module", autouse=True)
def _papers_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(published, "papers", PAPERS)
        yield


def pictures(folder: Path) -> Path:
    for i in range(20):
        image = Image.new("RGB", (300, 40 + i), (12 * i, 200, 90))
        image.save(folder / f"{i}.jpg", comment=b"a secret of the camera")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return pictures(tmp_path)


@pytest.fixture(scope="session")
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


def text_of(root: Path, table: pd.DataFrame, **more: Any) -> str:
    """Write a report and return its text."""
    message = more.pop("summary", summary(table))
    path, stages = root / "report.html", {"read": table, "unusable": table}
    write_report(
        path, message, table, root, left=left_after(stages), before=class_sizes(table), **more
    )
    return path.read_text(encoding="utf-8")


@pytest.fixture
def written(root, table):
    return lambda **more: text_of(root, table, **more)


@pytest.fixture(scope="session")
def everything(table) -> dict[str, Any]:
    """What a report with every section is written of."""
    files = [{"file": "x/<i>.jpg", "split": "train", "reason": "broken & <bad>"}]
    pairs = pd.DataFrame([finding("leak", 0.98), finding("conflict", 0.97, "both dropped")])
    message = summary(table, dropped_files=files, notes=["<b>: no val split"])
    return {"summary": message, "findings": pairs, "merges": MERGES, "gains": SELECTION}


@pytest.fixture(scope="session")
def full(everything, table, tmp_path_factory) -> str:
    return text_of(pictures(tmp_path_factory.mktemp("full")), table, **everything)
