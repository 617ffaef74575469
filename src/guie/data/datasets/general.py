"""Readers of data sets of several domains: ImageNet-1k, GPR1200, ILIAS, UnED, M4D-35k."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.base import (
    SHARED_CLASSES,
    Dataset,
    Expected,
    Listing,
    by_folder,
    images,
    listing,
    pictures,
)
from guie.data.datasets.reading import (
    first_present,
    prefixed,
    read_columns,
    read_lines,
    read_mat,
    read_records,
    read_words,
)
from guie.data.manifest import DomainDeclaration

KAGGLE = "Data/CLS-LOC/"
SOLUTIONS = ("LOC_val_solution.csv", "../LOC_val_solution.csv")
DEVKITS = ("", "ILSVRC2012_devkit_t12/", "devkit/", "../ILSVRC2012_devkit_t12/")


def read_imagenet(folder: Path, files: frozenset[str]) -> Listing:
    """Return images on disk by path; the class is the wnid, `n01440764`.

    1,281,167 images train, the 50,000 of val test, the same 1,000 classes. `train/<wnid>/*.JPEG`; val
    either sorted into class folders too, or flat with the labels of `LOC_val_solution.csv` (Kaggle) or of
    the devkit. The devkit numbers the classes in its own order, which `data/meta.mat` maps to wnids.
    Russakovsky et al., IJCV 2015; test on val as in the unification paper.
    """
    root = KAGGLE if (folder / KAGGLE).is_dir() else ""
    train, val = (
        [file for file in pictures(files, f"{root}{part}/") if file.endswith(".JPEG")]
        for part in ("train", "val")
    )
    test = by_folder(val, f"{root}val", "test")
    if test.empty and val:
        path = pd.Series(val, dtype=str)
        number = path.str.rpartition("/")[2].str.removesuffix(".JPEG")
        test = listing(path, number.map(_val_labels(folder)), "test")
        if test["label"].isna().any():
            raise UserError(
                f"{folder / test.loc[test['label'].isna(), 'image_path'].iloc[0]}: no label"
            )
    rows = [by_folder(train, f"{root}train", "train"), test]
    return Listing(pd.concat(rows, ignore_index=True))


def _val_labels(folder: Path) -> pd.Series:
    """Return the wnid by name of a val image, `ILSVRC2012_val_00000001`."""
    solution = first_present(folder, SOLUTIONS)
    if solution.is_file():
        rows = read_columns(solution, ("ImageId", "PredictionString"))
        return rows.set_index("ImageId")["PredictionString"].str.partition(" ")[0]
    names = [f"{devkit}data/ILSVRC2012_validation_ground_truth.txt" for devkit in DEVKITS]
    truth = first_present(folder, names)
    if not truth.is_file():
        raise UserError(
            f"{folder}/val: neither sorted into class folders, nor {SOLUTIONS[0]}, nor the devkit's"
            f" {names[0]}; download one of them"
        )
    synsets = read_mat(truth.parent / "meta.mat", "synsets", ("WNID", "ILSVRC2012_ID"))
    wnid = pd.Series(synsets["WNID"].astype(str), synsets["ILSVRC2012_ID"].astype(int))
    ids = read_words(truth, ["class_id"])["class_id"].astype(int)
    name = pd.Series(ids.index + 1).map("ILSVRC2012_val_{:08d}".format)
    return pd.Series(ids.map(wnid).to_numpy(), index=name)


IMAGENET = Dataset(
    name="imagenet",
    title="ImageNet-1k",
    domain="objects",
    folders=(
        "imagenet",
        "imagenet-1k",
        "ILSVRC2012",
        "ILSVRC",
        "imagenet-object-localization-challenge",
    ),
    markers=("Data/CLS-LOC/train", "train/n01440764"),
    homepage="https://www.image-net.org/download.php",
    read=read_imagenet,
    expected=(images("train", 1_281_167), images("test", 50_000)),
    declares={"objects": SHARED_CLASSES},
)
BLOCKS = ("landmarks", "inat", "sketch", "instre", "sop", "faces")


def read_gpr1200(folder: Path, files: frozenset[str], blocks: list[str]) -> Listing:
    """Return images on disk by category; the class is `<block>/<category>`.

    1,200 categories of ten images, to test general-purpose retrieval: `images/<category>_<name>.jpg`,
    categories 0 to 1199 in six blocks of 200. It overlaps with GLDv2, iNaturalist and SOP: do not train on
    one and test on the other. The winners trained on it, some without a block. Schall et al., MMM 2022.
    """
    path = pd.Series(sorted(files), dtype=str)
    category = path.str.extract(r"(?:^|/)(\d+)_[^/]+\.(?:jpe?g|JPE?G|png)$")[0]
    path, number = path[category.notna()], category.dropna().astype(int)
    block = number.floordiv(200).map(dict(enumerate(BLOCKS)))
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
    read=read_gpr1200,
    expected=(
        images("test", 12_000, where=("blocks", [])),
        images("test", 10_000, where=("blocks", [b for b in BLOCKS if b != "inat"])),
    ),
    options={"blocks": []},
)
CORE = "ilias_core/"


def read_ilias(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return image queries, then the index: positives, and the distractors that are kept.

    1,000 objects, 1,232 image queries and a text for each object, 4,715 positives.
    `image_ids/{image_query_ids,positive_ids,text_query_ids}.txt`: one id per line, text after a comma is
    ignored; `ilias_core/<id>`: `<object>/query/Q000_00.jpg`, `<object>/pos/P000_00.jpg` and, as
    text, `<object>/query/T000.txt`. The class is the object, the first folder of the id, for queries and
    positives. The companion `texts` contains the text queries.

    The 100 million distractors are tars of 100,000 images, `yfcc100m/<shard>.tar`, to be unpacked to
    `yfcc100m/<shard>/<key>.jpg`. The option keeps all that exist, or those of mini-ILIAS (5 million keys
    in `image_ids/mini_ilias_yfcc100m_ids.txt`).
    Kordopatis-Zilos et al., CVPR 2025; https://github.com/ilias-vrg/ilias.
    """
    query, positive = (_ids(folder, f"{which}_ids.txt") for which in ("image_query", "positive"))
    parts = [
        listing(CORE + query, _object(query), "test", "query"),
        listing(CORE + positive, _object(positive), "test", "index"),
    ]
    if distractors != "leave_out":
        path = pd.Series(sorted(f for f in files if f.startswith("yfcc100m/")), dtype=str)
        key = path.str.extract(r"^[^/]+/[^/]+/(.+)\.(?:jpe?g|JPE?G|png)$")[0]
        if distractors == "mini":
            key = key.where(key.isin(set(_ids(folder, "mini_ilias_yfcc100m_ids.txt"))))
        path = path[key.notna()]
        parts.append(listing(path, pd.Series("no-object", path.index), "test", "index"))
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
    read=read_ilias,
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
SUBSETS = ("food2k", "cars", "sop", "inshop", "inat", "met", "gldv2", "rp2k")
INDEXES = {"test": "index.json", "val": "small_index.json"}


def read_uned(folder: Path, files: frozenset[str], subsets: list[str]) -> Listing:
    """Return rows of the named subsets, each a domain; [] selects all of them.

    `info_files/<dataset>/<split>.json`: a list of objects with `path`, relative to `images/`, and
    `class_id`, a number or a list of them. Test of inshop, met and gldv2 has its index in `index.json`,
    val of met in `small_index.json`; elsewhere an image is query and index. Splits may reuse numbers, so
    class names include the split (`train-7`), except in Met, where the index is the training set. RP2K's
    Chinese names may be escaped as by unzip (`#U4e2d`). Ypsilantis et al., ICCV 2023, tables 2 and 3.
    """
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
    read=read_uned,
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
LIST = "m4d-35k_train.csv"
DOMAINS = {
    "products-10k": "products",
    "google_landmark_recognition_2021": "landmarks",
    "deepfashion": "clothing",
    "stanford_cars": "cars",
}


def read_m4d35k(folder: Path, files: frozenset[str]) -> Listing:
    """Return rows of UniFEx's training list, 35 thousand classes of four of the winners' sets.

    `m4d-35k_train.csv` (img_path, label), whose paths start at the folder with the four sets:
    `products-10k/`, `google_landmark_recognition_2021/`, `deepfashion/`, `stanford_cars/`, each a domain
    here. Put it next to them. https://github.com/morrisfl/UniFEx (src/datasets/DATASET.md); the list was
    chosen by its score on the challenge's own test.
    """
    rows = read_columns(folder / LIST, ("img_path", "label"))
    top = rows["img_path"].str.partition("/")[0]
    domain = top.map(DOMAINS)
    if domain.isna().any():
        line = int(domain.isna().to_numpy().argmax()) + 2
        raise UserError(
            f"{folder / LIST}:{line}: {rows['img_path'][line - 2]!r} starts with none of"
            f" {', '.join(DOMAINS)}"
        )
    return Listing(listing(rows["img_path"], rows["label"], "train").assign(domain=domain))


M4D35K = Dataset(
    name="m4d35k",
    title="M4D-35k",
    domain="several",
    folders=("m4d-35k", "m4d35k"),
    markers=(LIST,),
    homepage="https://github.com/morrisfl/UniFEx",
    read=read_m4d35k,
    expected=(images("train", 328_000, 329_000, source="the sum of UniFEx's rounded counts"),),
)
