"""UnED: eight datasets with the splits of its authors. Ypsilantis et al., ICCV 2023, tables 2 and 3.

`info_files/<dataset>/<split>.json`: a list of objects with `path`, relative to `images/`, and
`class_id`, a number or a list of them. Test of inshop, met and gldv2 has its index in `index.json`,
val of met in `small_index.json`; elsewhere an image is query and index. Splits may reuse numbers, so
class names include the split (`train-7`), except in Met, where the index is the training set. RP2K's
Chinese names may be escaped as by unzip (`#U4e2d`).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import SHARED_CLASSES, Dataset, Expected, Listing, images, listing
from guie.data.datasets.reading import prefixed, read_records
from guie.data.manifest import DomainDeclaration

SUBSETS = ("food2k", "cars", "sop", "inshop", "inat", "met", "gldv2", "rp2k")
INDEXES = {"test": "index.json", "val": "small_index.json"}


def read(folder: Path, files: frozenset[str], subsets: list[str]) -> Listing:
    """Return rows of the named subsets, each a domain; [] selects all of them."""
    unknown = sorted(set(subsets) - set(SUBSETS))
    if unknown:
        raise UserError(f"uned: no subset {', '.join(unknown)}; it has: {', '.join(SUBSETS)}")
    lists = folder / "info_files" if (folder / "info_files").is_dir() else folder
    parts = [_subset(lists / name, name, files) for name in subsets or SUBSETS]
    return Listing(pd.concat(parts, ignore_index=True))


def _subset(lists: Path, name: str, files: frozenset[str]) -> pd.DataFrame:
    parts = []
    for split in ("train", "val", "test"):
        index = lists / INDEXES.get(split, "none")
        role = "train" if split == "train" else "query" if index.is_file() else "both"
        parts.append(_rows(lists / f"{split}.json", name, split, role, files))
        if role == "query":
            parts.append(_rows(index, name, split, "index", files))
    return pd.concat(parts, ignore_index=True).assign(domain=name)


def _rows(path: Path, name: str, split: str, role: str, files: frozenset[str]) -> pd.DataFrame:
    records = read_records(path, ["path", "class_id"])
    faulty = records.isna().any(axis=1)
    if faulty.any():
        raise UserError(f"{path}: object {int(faulty.argmax()) + 1} has no path or no class_id")
    prefix = "" if name == "met" else f"{split}-"
    ids = records["class_id"].map(lambda one: one if isinstance(one, list) else [one])
    label = ids.map(lambda several: "|".join(f"{prefix}{one}" for one in several))
    return listing(prefixed(records["path"], files, ("images/", "")), label, split, role)


def _counts(domain: str, train: int, val: int, test: int, index: int = 0) -> list[Expected]:
    query = ("query",) if index else None
    counts = [
        images("train", train, domain=domain),
        images("test", test, domain=domain, roles=query),
    ]
    if domain == "inshop":  # the code has 4,982, the paper 4,985
        counts.append(images("val", val, 4985, domain=domain, source="code 4,982, paper 4,985"))
    else:
        roles = query if domain == "met" else None
        counts.append(images("val", val, domain=domain, roles=roles))
    if index:
        counts.append(images("test", index, domain=domain, roles=("index",)))
    return counts


UNED = Dataset(
    name="uned",
    title="UnED",
    domain="several",
    folders=("uned",),
    markers=("info_files", "met/small_index.json"),
    homepage="https://cmp.felk.cvut.cz/univ_emb/",
    licence="of the eight sets it is taken from; non-commercial research",
    read=read,
    expected=(
        *_counts("food2k", 472_349, 49_323, 9_979),
        *_counts("cars", 6_346, 1_708, 8_131),
        *_counts("sop", 48_942, 10_609, 60_502),
        *_counts("inshop", 20_897, 4_982, 14_218, index=12_612),
        *_counts("inat", 273_929, 51_917, 136_093),
        *_counts("met", 397_121, 129, 1_003, index=397_121),
        *_counts("gldv2", 1_422_914, 157_556, 1_129, index=761_757),
        *_counts("rp2k", 188_724, 17_185, 10_931),
    ),
    options={"subsets": []},
    declares={"met": DomainDeclaration(index_is_train=True), "gldv2": SHARED_CLASSES},
)
