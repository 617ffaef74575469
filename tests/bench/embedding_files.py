"""Embeddings as E.npz and as E.parquet: size, and time to write and to load, in one run.

python tests/bench/embedding_files.py [--rows 1000000] [--turns 3]

Drawn vectors of 64 numbers, and paths of 36 letters. Loading checks the values and aligns them with a table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, in_turn, show, wall_and_cpu

from guie.base.files import replacing, save_arrays
from guie.evaluation.files import load_embeddings, write_parquet

DIM, CLASSES = 64, 100_000


def save_npz(path: Path, table: pd.DataFrame, emb_ND: np.ndarray) -> None:
    with replacing(path) as temporary:
        save_arrays(temporary, image_path=table["image_path"].to_numpy(str), embedding=emb_ND)


def main() -> None:
    args = arguments(__doc__, rows=1_000_000, turns=3)
    rng = np.random.default_rng(0)
    number_N = rng.integers(0, CLASSES, args.rows)
    label = pd.Series(number_N).map("products/{:06d}".format)
    path = "products/images/" + pd.Series(range(args.rows)).map("{:016d}.jpg".format)
    table = pd.DataFrame({"image_path": path, "label": label, "domain": "products"})
    with tempfile.TemporaryDirectory() as name:
        rows = []
        for dtype in (np.float32, np.float16):
            emb_ND = rng.standard_normal((args.rows, DIM), dtype=np.float32).astype(dtype)
            files = {suffix: Path(name) / f"E.{suffix}" for suffix in ("npz", "parquet")}
            writing = in_turn(
                {
                    "npz": lambda to=files["npz"], emb=emb_ND: save_npz(to, table, emb),
                    "parquet": lambda to=files["parquet"], emb=emb_ND: write_parquet(
                        to, table, [emb]
                    ),
                },
                args.turns,
                wall_and_cpu,
                warm_up=False,
            )
            ways = {
                kind: lambda file=file: load_embeddings(file, table) for kind, file in files.items()
            }
            loading = in_turn(ways, args.turns, wall_and_cpu, warm_up=False)
            for kind, file in files.items():
                taken = (np.median(turns[kind], axis=0) for turns in (writing, loading))
                seconds = [value for both in taken for value in both]
                rows.append((f"{kind}, {np.dtype(dtype)}", file.stat().st_size / 1e6, *seconds))
        heads = ["", "MB", "s to write", "of CPU", "s to load", "of CPU"]
        show(heads, rows, f"{args.rows:,} rows of {DIM}, with labels and domains in Parquet")


if __name__ == "__main__":
    main()
