"""ILIAS: 1,000 objects, 1,232 image queries and a text for each object, 4,715 positives, distractors.

`image_ids/{image_query_ids,positive_ids,text_query_ids}.txt`: one id per line, text after a comma is
ignored; `ilias_core/<id>`: `<object>/query/Q000_00.jpg`, `<object>/pos/P000_00.jpg` and, as
text, `<object>/query/T000.txt`. The class is the object, the first folder of the id, for queries and
positives. The companion `texts` contains the text queries.

The 100 million distractors are tars of 100,000 images, `yfcc100m/<shard>.tar`, to be unpacked to
`yfcc100m/<shard>/<key>.jpg`. The option keeps all that exist, or those of mini-ILIAS (5 million keys in
`image_ids/mini_ilias_yfcc100m_ids.txt`).
Kordopatis-Zilos et al., CVPR 2025; https://github.com/ilias-vrg/ilias.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Expected, Listing, images, listing
from guie.data.datasets.reading import read_lines

CORE = "ilias_core/"
FAR = "yfcc100m/"
NO_OBJECT = "no-object"  # class of the distractors


def read(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return image queries, then the index: positives, and the distractors that are kept."""
    query, positive = (_ids(folder, f"{which}_ids.txt") for which in ("image_query", "positive"))
    parts = [
        listing(CORE + query, _object(query), "test", "query"),
        listing(CORE + positive, _object(positive), "test", "index"),
    ]
    if distractors != "leave_out":
        path = pd.Series(sorted(f for f in files if f.startswith(FAR)), dtype=str)
        key = path.str.extract(r"^[^/]+/[^/]+/(.+)\.(?:jpe?g|JPE?G|png)$")[0]
        if distractors == "mini":
            key = key.where(key.isin(set(_ids(folder, "mini_ilias_yfcc100m_ids.txt"))))
        path = path[key.notna()]
        parts.append(listing(path, pd.Series(NO_OBJECT, path.index), "test", "index"))
    texts, warnings = _texts(folder, files)
    return Listing(pd.concat(parts, ignore_index=True), warnings, {"texts": texts})


def _texts(folder: Path, files: frozenset[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the text queries whose file exists."""
    ids = _ids(folder, "text_query_ids.txt")
    path = (CORE + ids).where(ids.str.endswith(".txt"), CORE + ids + ".txt")
    there = path.isin(files)
    words = [" ".join(" ".join(read_lines(folder / file)).split()) for file in path[there]]
    texts = pd.DataFrame({"image_path": CORE + ids[there], "label": _object(ids[there])})
    warning = f"ILIAS: {len(words):,} of {len(ids):,} text queries found"
    return texts.assign(text=words), () if there.all() else (warning,)


def _ids(folder: Path, name: str) -> pd.Series:
    lines = pd.Series(read_lines(folder / "image_ids" / name), dtype=str)
    ids = lines.str.partition(",")[0].str.strip()
    return ids[ids != ""].reset_index(drop=True)


def _object(ids: pd.Series) -> pd.Series:
    return ids.str.partition("/")[0]


ALONE = ("distractors", "leave_out")

ILIAS = Dataset(
    name="ilias",
    title="ILIAS",
    domain="instances",
    folders=("ilias",),
    markers=("image_ids/image_query_ids.txt",),
    homepage="https://github.com/ilias-vrg/ilias",
    licence="own images CC BY 4.0, the others as their sources",
    read=read,
    expected=(
        images("test", 1232, roles=("query",)),
        images("test", 4715, roles=("index",), where=ALONE),
        Expected(1000, 1000, "test", unit="classes", where=ALONE),
        images(
            "test",
            4_900_000,
            5_100_000,
            roles=("index",),
            where=("distractors", "mini"),
            source="its authors: 5M",
        ),
    ),
    options={"distractors": "leave_out"},
    choices={"distractors": ("leave_out", "mini", "keep")},
)
