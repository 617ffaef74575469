"""Groups of images of a folder that are copies of each other, or look alike, as curation finds them."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.errors import UserError
from guie.config.data import NearConfig
from guie.curation.duplicates.differences import PixelDifferences
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import find_links
from guie.rows.checks import Checks
from guie.rows.fingerprints import FINGERPRINTS, thumbnails

KINDS = {"equal": "equal pixels", "copy": "a copy", "alike": "may be a copy, or only look like one"}
COLUMNS = ["group", "image_path", "kind", "difference", "domain", "label"]


def find_groups(
    root: Path, files: pd.DataFrame, workers: int, mirrored: bool = False
) -> pd.DataFrame:
    """Return groups of images that are copies, or look like copies: the components of their links.

    COLUMNS: group (from 1, the largest first), image_path, kind (of `KINDS`, by the image's strongest
    link), difference (of pixels, 0 for equal ones), domain, label. A group has at least two images. With
    `mirrored`, a mirror image is also a copy. Domain and label of `files` may be empty.

    Raises UserError if an image cannot be read.
    """
    checks = Checks(FINGERPRINTS, root, files["image_path"])
    checks.fill(workers, "copies")
    table = checks.table().reset_index(names="image_path")
    bad = table[table["reason"] != ""]
    if len(bad):
        fault = f"{root / bad['image_path'].iloc[0]}: {bad['reason'].iloc[0]}"
        raise UserError(f"{fault} ({len(bad)} such images); update the index first")
    domain, label = files["domain"].replace("", "pictures"), files["label"].replace("", "unknown")
    table = table.assign(domain=domain, label=label)
    embed = partial(thumbnails, root=root, workers=workers)
    links = find_links(
        table, NearConfig(mirrored=mirrored), embed, PixelDifferences(root, workers, table)
    )
    near, size = links.near, links.pictures.max() + 1
    pairs = np.ones(len(near), bool), (near["picture"], near["other"])
    _, group_of = connected_components(coo_matrix(pairs, shape=(size, size)), directed=False)
    picture = files["image_path"].map(links.pictures)
    rows = files.assign(picture=picture, group=group_of[picture])
    members = rows.groupby("group")["image_path"]
    rows = rows.assign(size=members.transform("size"), first=members.transform("min"))
    rows = rows[rows["size"] > 1].sort_values(
        ["size", "first", "image_path"], ascending=[False, True, True]
    )
    best = near.sort_values(["grade", "difference"], ascending=[False, True])
    best = best.drop_duplicates("picture").set_index("picture")
    grade, difference = (rows["picture"].map(best[key]) for key in ("grade", "difference"))
    equal = rows["picture"].duplicated(keep=False)
    kinds = np.where(equal, "equal", np.where(grade >= Grade.COPY, "copy", "alike"))
    return rows.assign(
        group=pd.factorize(rows["group"])[0] + 1,
        kind=kinds,
        difference=difference.where(~equal, 0.0),
    )[COLUMNS].reset_index(drop=True)
