"""A small benchmark with pictures, names that are no names, and pages written of it."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import run_models
from guie.report.pages.evaluation import write_evaluation

SCRIPT = "<script>document.title='taken'</script>"
CLOSING = "</script><img src=x onerror=\"document.title='taken'\">"
DOMAINS = ("cars", "food & drink", SCRIPT)
CLASSES, IMAGES = 4, 4
MISSING, BROKEN = 5, 6  # rows whose picture cannot be shown


def scored_table(root: Path) -> pd.DataFrame:
    """Rows of a test split, a picture for each below `root` but for one; one file is no picture."""
    rows = []
    for domain in DOMAINS:
        for number in range(CLASSES):
            name = CLOSING if number == 1 else str(number)
            rows += [(f"{len(rows) + i}.png", f"{domain}/{name}", domain) for i in range(IMAGES)]
    table = pd.DataFrame(rows, columns=["image_path", "label", "domain"])
    for row, path in enumerate(table["image_path"]):
        Image.new("RGB", (40 + row, 60), (5 * row, 90, 200)).save(root / path)
    (root / table["image_path"][MISSING]).unlink()
    (root / table["image_path"][BROKEN]).write_bytes(b"no picture")
    return table.assign(role="both", split="test")


def embeddings(table: pd.DataFrame, noise: float, seed: int = 0) -> np.ndarray:
    """Classes around centres, more or less apart: [T, 8]."""
    rng = np.random.default_rng(seed)
    classes = pd.factorize(table["label"])[0]
    centres = rng.normal(size=(classes.max() + 1, 8))[classes]
    return (centres + noise * rng.normal(size=centres.shape)).astype(np.float32)


def write_scored(path: Path, root: Path, table: pd.DataFrame, **how) -> str:
    """Write a page and return its text.

    Args:
        how: `models`, embeddings by name; `protocols`, names; `pictures`, False to leave them out.
    """
    models = how.get("models") or {"runs/ours.npz": embeddings(table, 1.0)}
    protocols = [protocol_of(name).over(table) for name in how.get("protocols", ["merged"])]
    reports, _ = run_models(protocols, models, table, draws=50, draws_of_others=50)
    folder = root if how.get("pictures", True) else None
    write_evaluation(path, models, reports, protocols, table, folder, "mix.csv, test split")
    return path.read_text(encoding="utf-8")
