"""Hold the strings of a large table in Arrow memory, which loader processes share.

A forked process shares memory until somebody writes to it, and Python writes to a string whenever it is
used: it counts references. A million strings so cost each worker about 100 MB, in Arrow memory nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class StringColumn:
    """An immutable sequence of strings; each is created when it is read."""

    def __init__(self, values: Iterable[str]):
        if isinstance(values, np.ndarray):
            values = values.astype(object)  # Arrow 17 cannot read numpy's strings
        known = pa.array(values, pa.large_string())
        self.arrow = known.combine_chunks() if isinstance(known, pa.ChunkedArray) else known

    def __len__(self) -> int:
        return len(self.arrow)

    def __iter__(self) -> Iterator[str]:
        return (value.as_py() for value in self.arrow)

    def __getitem__(self, row: int | np.integer) -> str:
        return self.arrow[int(row)].as_py()

    def take(self, rows: np.ndarray) -> list[str]:
        """Return the strings of an array of rows."""
        return self.arrow.take(pa.array(rows)).to_pylist()

    def encoded(self) -> tuple[np.ndarray, list[str]]:
        """Return the position of each string among the distinct ones, and these in order of first rows."""
        found = self.arrow.dictionary_encode()
        return found.indices.to_numpy(), found.dictionary.to_pylist()

    def positions_in(self, values: Sequence[str]) -> np.ndarray:
        """Return the position of each string in `values`, which has all of them: int32."""
        found = pc.index_in(self.arrow, pa.array(values, pa.large_string()))
        return found.to_numpy()
