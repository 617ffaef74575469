"""E.parquet in vector databases: the README's lines load it, and their neighbours are ours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("lancedb", reason="make judges has it")
pytest.importorskip("qdrant_client", reason="make judges has it")

from clustered import clustered
from guie.evaluation.files import write_parquet
from guie.evaluation.knn import ExactIndex

README = Path(__file__).parents[2] / "src/guie/search/README.md"


@pytest.fixture(params=[np.float32, np.float16])
def given(request, tmp_path, monkeypatch) -> tuple[np.ndarray, pd.DataFrame]:
    """Unit vectors and their table, as E.parquet in the working folder, in several row groups."""
    emb_TD, table = clustered(1.0)
    emb_TD = (emb_TD / np.linalg.norm(emb_TD, axis=1, keepdims=True)).astype(request.param)
    table = table.assign(domain=np.where(np.arange(len(table)) % 3, "b", "a"))
    monkeypatch.chdir(tmp_path)
    write_parquet(Path("E.parquet"), table, [emb_TD[:100], emb_TD[100:]])
    return emb_TD, table


@pytest.mark.parametrize("database", ["lancedb", "qdrant_client"])
def test_the_readmes_lines_find_our_neighbours(database, given) -> None:
    emb_TD, table = given
    (lines,) = (
        block
        for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        if database in block
    )
    domain = table["domain"].iloc[0]
    names = {"query_D": emb_TD[0].astype(np.float32), "domain": domain}
    exec(lines, names)  # noqa: S102 - our own lines
    among = np.flatnonzero(table["domain"] == domain)
    units_ND = emb_TD[among].astype(np.float32)
    rows_1K, _ = ExactIndex(units_ND).search(units_ND[:1], 5)
    assert names["found"] == table["image_path"].iloc[among[rows_1K[0]]].tolist()
