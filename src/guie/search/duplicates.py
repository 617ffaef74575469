"""Find copies and look-alikes in an index, with the method of `guie.curation.duplicates`.

Hashes propose pairs, thumbnails confirm them, and pixels decide. Groups are the connected components of the
pairs.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.errors import UserError
from guie.config.data import NearConfig
from guie.curation.duplicates.comparing import Pixels
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import Links, find_links
from guie.rows.checks import FINGERPRINTS, Checks, thumbnails
from guie.search.index import Index

KINDS = {"equal": "equal pixels", "copy": "a copy", "alike": "may be a copy, or only look like one"}


def find_duplicates(index: Index, workers: int, mirrored: bool = False) -> pd.DataFrame:
    """Return groups of images that are copies, or look like copies.

    Columns: group (from 1, the largest first), image_path, kind (of `KINDS`, by the image's strongest
    link), difference (of pixels, 0 for equal ones), domain, label. A group has at least two images.
    """
    root = Path(index.facts.root)
    files = index.files
    checks = Checks(FINGERPRINTS, root, files["image_path"])
    checks.fill(workers, "copies")
    table = (
        checks.table()
        .reset_index(names="image_path")
        .assign(
            domain=files["domain"].replace("", "pictures"),
            label=files["label"].replace("", "unknown"),
        )
    )
    bad = table[table["reason"] != ""]
    if len(bad):
        raise UserError(
            f"{root / bad['image_path'].iloc[0]}: {bad['reason'].iloc[0]} ({len(bad)} such images);"
            " update the index first: run the same `search.py index` again"
        )
    embed = partial(thumbnails, root=root, workers=workers)
    differences = Pixels(
        root, workers, dict(zip(table["image_path"], table["pixels"], strict=True))
    )
    links = find_links(table, NearConfig(mirrored=mirrored), embed, differences)
    return _grouped(index.files, links)


def _grouped(files: pd.DataFrame, links: Links) -> pd.DataFrame:
    picture = files["image_path"].map(links.pictures)
    near = links.near
    size = int(links.pictures.max()) + 1 if len(links.pictures) else 0
    ones = np.ones(len(near), bool)
    graph = coo_matrix((ones, (near["picture"], near["other"])), shape=(size, size))
    _, group_of = connected_components(graph, directed=False)
    rows = files.assign(picture=picture, group=group_of[picture])
    rows = rows[rows.groupby("group")["image_path"].transform("size") > 1]
    best = near.sort_values(["grade", "difference"], ascending=[False, True])
    best = best.drop_duplicates("picture").set_index("picture")
    equal = rows.groupby("picture")["image_path"].transform("size") > 1
    grade, difference = (rows["picture"].map(best[key]) for key in ("grade", "difference"))
    kinds = np.where(equal, "equal", np.where(grade >= Grade.COPY, "copy", "alike"))
    rows = rows.assign(kind=kinds, difference=difference.where(~equal, 0.0))
    return _numbered(rows)


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """Number groups from 1, the largest first; groups of equal size by their first path."""
    first = rows.groupby("group")["image_path"].agg(["size", "min"])
    order = first.sort_values(["size", "min"], ascending=[False, True]).index
    number = pd.Series(np.arange(1, len(order) + 1), order)
    rows = rows.assign(group=rows["group"].map(number)).sort_values(["group", "image_path"])
    columns = ["group", "image_path", "kind", "difference", "domain", "label"]
    return rows[columns].reset_index(drop=True)
