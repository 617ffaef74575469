"""GPR1200: 1,200 categories of ten images, to test general-purpose retrieval.

`images/<category>_<name>.jpg`, categories 0 to 1199 in six blocks of 200: landmarks, iNaturalist,
sketches, INSTRE, SOP, faces. It overlaps with GLDv2, iNaturalist and SOP: do not train on one and test
on the other. The winners trained on it, some without a block. Schall et al., MMM 2022.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.data.datasets.base import Dataset, Listing, images, listing

BLOCKS = ("landmarks", "inat", "sketch", "instre", "sop", "faces")
BLOCK_SIZE = 200


def read(folder: Path, files: frozenset[str], blocks: list[str]) -> Listing:
    """Return images on disk by category; the class is `<block>/<category>`."""
    path = pd.Series(sorted(files), dtype=str)
    category = path.str.extract(r"(?:^|/)(\d+)_[^/]+\.(?:jpe?g|JPE?G|png)$")[0]
    path, number = path[category.notna()], category.dropna().astype(int)
    block = number.floordiv(BLOCK_SIZE).map(dict(enumerate(BLOCKS)))
    rows = listing(path, block + "/" + number.map("{:04d}".format), "test")
    in_blocks = block.isin(blocks or BLOCKS).to_numpy()
    return Listing(rows[in_blocks].sort_values("label", kind="stable", ignore_index=True))


GPR1200 = Dataset(
    name="gpr1200",
    title="GPR1200",
    domain="general",
    folders=("gpr1200", "GPR1200_dataset"),
    markers=("images",),
    homepage="https://github.com/Visual-Computing/GPR1200",
    licence="of the six sets it is taken from; research",
    read=read,
    expected=(
        images("test", 12_000, where=("blocks", [])),
        images("test", 10_000, where=("blocks", [b for b in BLOCKS if b != "inat"])),
    ),
    options={"blocks": []},
)
