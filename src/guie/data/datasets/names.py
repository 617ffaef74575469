"""Listed file names against those on disk, which unpackers write in different ways."""

from __future__ import annotations

import re
import unicodedata

import pandas as pd


def present(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Boolean per path: it is one of `files`."""
    # 7 times faster than isin, which first turns all names into an Arrow array (500,000 names)
    return pd.Series([path in files for path in paths], index=paths.index, dtype=bool)


def as_on_disk(paths: pd.Series, files: frozenset[str]) -> pd.Series:
    """Paths as the files are really named, where unzip wrote them in another way than the list."""
    absent = paths[~present(paths, files)]
    odd = absent[[not path.isascii() or "#U" in path for path in absent]]
    if odd.empty:
        return paths
    real = {plain_name(path): path for path in files}
    renamed = paths.copy()
    renamed[odd.index] = [real.get(plain_name(path), path) for path in odd]
    return renamed


def plain_name(path: str) -> str:
    """A path with `#U4e2d`, as some versions of unzip write it, turned into its letter, in NFC."""
    unescaped = re.sub(r"#U([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), path)
    return unicodedata.normalize("NFC", unescaped)
