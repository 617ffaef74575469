"""Readers of the data sets whose lists no layout describes.

Each returns rows in the order of the lists. It raises UserError if a list is absent or invalid.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.data.datasets.readers import (
    Listing,
    first_present,
    listing,
    pictures,
    prefixed,
    read_columns,
    read_lines,
    read_mat,
    read_records,
    read_words,
    whole_numbers,
)

CARS = {
    "original": "cars_annos.mat",
    "devkit": "devkit/cars_train_annos.mat",
    "kaggle": "anno_train.csv",
}
TEST_SETS = {800: "small", 1600: "medium", 2400: "large"}  # of VehicleID, by their vehicles
GRADES = ("easy", "hard", "junk")  # of Revisited Oxford and Paris
PROTOCOLS = {"medium": ("easy", "hard"), "easy": ("easy",), "hard": ("hard",)}
BLOCKS = ("landmarks", "inat", "sketch", "instre", "sop", "faces")  # of GPR1200
SUBSETS = ("food2k", "cars", "sop", "inshop", "inat", "met", "gldv2", "rp2k")  # of UnED
INDEXES = {"test": "index.json", "val": "small_index.json"}


def cars196(folder: Path, files: frozenset[str], release: str) -> Listing:
    """Return rows; the class is the model's number, `001` to `196`, the same in all releases.

    Three releases name the images differently; never mix annotations and images of two:
    * original: `cars_annos.mat` and `car_ims/000001.jpg`;
    * devkit: `devkit/cars_train_annos.mat`, `cars_test_annos_withlabels.mat` (there or above) and
      `cars_train/00001.jpg`, `cars_test/00001.jpg`;
    * kaggle: `anno_train.csv`, `anno_test.csv` without a header (file, x1, y1, x2, y2, class) and
      `names.csv`; images in `car_data/car_data/{train,test}/<name, / replaced by ->/`.
    Releases as read by PUMA, torchvision and pytorch-metric-learning.
    """
    known = [name for name in CARS if release in ("auto", name)]
    found = [name for name in known if (folder / CARS[name]).is_file()]
    if not found:
        markers = " or ".join(CARS[name] for name in known)
        raise UserError(f"{folder}: no {markers}; is this Cars-196?")
    chosen = found[0]
    if len(found) > 1:
        fault = f"has the releases {' and '.join(found)}"
        raise UserError(f"{folder}: {fault}; select one: release: {chosen}")
    if chosen == "original":
        parts = [_annotated_cars(folder / CARS["original"], "relative_im_path")]
    elif chosen == "kaggle":
        parts = _kaggle_cars(folder, files)
    else:
        labelled = "cars_test_annos_withlabels.mat"  # the devkit's own test list has no classes
        train = _annotated_cars(folder / CARS["devkit"], "fname")
        test = _annotated_cars(first_present(folder, (labelled, f"devkit/{labelled}")), "fname")
        parts = [
            # kagglehub's copy has each folder twice: cars_train/cars_train
            part.assign(path=prefixed(part["path"], files, (f"{name}/", f"{name}/{name}/")))
            for name, part in {"cars_train": train, "cars_test": test}.items()
        ]
    rows = pd.concat(parts, ignore_index=True)
    split = (rows["class_id"] <= 98).map({True: "train", False: "test"})
    return Listing(listing(rows["path"], rows["class_id"].map("{:03d}".format), split))


def _annotated_cars(path: Path, file: str) -> pd.DataFrame:
    """Return path and class number of each image."""
    annotations = read_mat(path, "annotations", (file, "class"))
    table = pd.DataFrame({"path": annotations[file], "class_id": annotations["class"]})
    return table.astype({"path": str, "class_id": int})


def _kaggle_cars(folder: Path, files: frozenset[str]) -> list[pd.DataFrame]:
    names = read_lines(folder / "names.csv")
    folders = dict(enumerate((name.strip('"').replace("/", "-") for name in names), start=1))
    parts = []
    for split in ("train", "test"):
        table = folder / f"anno_{split}.csv"
        cells = pd.Series([line.split(",") for line in read_lines(table) if line], dtype=object)
        class_id = whole_numbers(cells.str[-1].rename("class_id"), table)
        file = f"{split}/" + class_id.map(folders) + "/" + cells.str[0]
        path = prefixed(file, files, ("car_data/car_data/", "car_data/", ""))
        parts.append(pd.DataFrame({"path": path, "class_id": class_id}))
    return parts


def vehicleid(folder: Path, files: frozenset[str], test_vehicles: int) -> Listing:
    """Return train and one of three test sets of surveillance cameras; the class is the vehicle's number.

    `train_test_split/{train_list,test_list_800,test_list_1600,test_list_2400}.txt`: image number and
    vehicle number, both with leading zeros in some copies; images `image/0000001.jpg`. The smaller test
    sets are parts of the larger ones. The companion `subsets` lists their images, so one manifest serves
    all test sets up to its own size. Every test image is query and index, as in the unification paper;
    `validate.py --protocol vehicleid` can also draw one gallery image per vehicle.
    """

    def vehicles(path: Path, split: str) -> pd.DataFrame:
        rows = read_words(path, ["image", "vehicle"])
        image = "image/" + rows["image"].str.zfill(7) + ".jpg"
        return listing(image, rows["vehicle"].str.lstrip("0"), split)

    lists = folder / "train_test_split"
    train = vehicles(lists / "train_list.txt", "train")
    test = vehicles(lists / f"test_list_{test_vehicles}.txt", "test")
    parts, warnings = [], []
    for size, subset in TEST_SETS.items():
        path = lists / f"test_list_{size}.txt"
        if size > test_vehicles or not path.is_file():
            continue
        images = vehicles(path, "test")["image_path"]
        if beyond := int((~images.isin(test["image_path"])).sum()):
            fault = f"{beyond:,} images of {path.name} are not in the list of {test_vehicles:,} vehicles"
            warnings.append(f"VehicleID: {fault}, so {subset} is not one of its subsets")
        else:
            parts.append(pd.DataFrame({"subset": subset, "image_path": images}))
    rows, subsets = (pd.concat(some, ignore_index=True) for some in ([train, test], parts))
    return Listing(rows, tuple(warnings), {"subsets": subsets})


def gldv2(folder: Path, files: frozenset[str], train_list: str) -> Listing:
    """Return train and, if the index was downloaded, queries and index of test.

    `train_clean.csv` (landmark_id, images: ids joined by spaces) or all of `train.csv` (id, url,
    landmark_id; much noise), `index_image_to_landmark.csv` (id, landmark_id),
    `retrieval_solution_v2.1.csv` (id, images of the index joined by spaces or "None", Usage), next to the
    images or in `metadata/`; images at `<part>/a/b/c/<id>.jpg`. The index has other landmark ids than train,
    though many landmarks are the same. So classes are named `train-<id>` and `index-<id>`, and the sidecar
    declares shared classes.
    """

    def list_file(name: str) -> Path:
        return first_present(folder, (name, f"metadata/{name}", f"train/{name}", f"index/{name}"))

    def rows(
        part: str, image: pd.Series, label: pd.Series, split: str, role: str | None = None
    ) -> pd.DataFrame:
        a, b, c = (image.str[place] for place in range(3))
        path = f"{part}/" + a + "/" + b + "/" + c + "/" + image + ".jpg"
        return listing(path, label, split, role)

    if train_list == "clean":
        train = read_columns(list_file("train_clean.csv"), ("landmark_id", "images"))
        train = train.assign(id=train["images"].str.split(" ")).explode("id", ignore_index=True)
    else:
        train = read_columns(list_file("train.csv"), ("id", "landmark_id"))
    parts = [rows("train", train["id"], "train-" + train["landmark_id"], "train")]
    index_list = list_file("index_image_to_landmark.csv")
    if not index_list.is_file():
        warning = "Google Landmarks v2: no list of the index, so it has only a train split"
        return Listing(parts[0], (warning,))
    index = read_columns(index_list, ("id", "landmark_id"))
    index["landmark_id"] = "index-" + index["landmark_id"]
    queries, warnings = _gldv2_queries(list_file("retrieval_solution_v2.1.csv"), index)
    parts += [
        rows("test", queries["id"], queries["landmark_id"], "test", "query"),
        rows("index", index["id"], index["landmark_id"], "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def _gldv2_queries(path: Path, index: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return queries labelled with the landmarks of their solution images: `index-3|index-7`.

    Warns if these landmarks have more images in the index than the solution lists.
    """
    solution = read_columns(path, ("id", "images"))
    solution = solution[solution["images"] != "None"]  # the challenge's rules ignore them
    listed = solution.assign(image=solution["images"].str.split(" ")).explode("image")
    listed["landmark_id"] = listed["image"].map(index.set_index("id")["landmark_id"])
    if (unknown := listed["landmark_id"].isna()).any():
        first = listed[unknown].iloc[0]
        raise UserError(f"{path}: query {first['id']}: image {first['image']} is not in the index")
    pairs = listed.drop_duplicates(["id", "landmark_id"])
    sizes = pairs["landmark_id"].map(index["landmark_id"].value_counts())
    positives = sizes.groupby(pairs["id"]).sum()
    differ = int((listed.groupby("id")["image"].nunique() != positives).sum())
    queries = pairs.groupby("id", sort=False)["landmark_id"].agg("|".join).reset_index()
    what = "queries list fewer images than their landmarks have in the index"
    return queries, (f"{path.name}: {differ:,} {what}",) if differ else ()


def revisited(folder: Path, files: frozenset[str], protocol: str, name: str) -> Listing:
    """Return the 70 queries, then the whole index, distractors included.

    `gnd_roxford5k.mat` or `gnd_rparis6k.mat` (imlist, qimlist, and gnd: easy, hard and junk count from
    1 into imlist, bbx is the query's box) in the folder of `jpg/<name>.jpg` or above. The `.pkl` with the
    same content is not read: a pickle can run code. Format as read by
    https://github.com/tensorflow/models (research/delf, datasets/revisited_op).

    A manifest distinguishes only relevant from irrelevant. So each query is a class of its own, and an
    index image has the classes of all queries that it answers under the protocol in the option. The three
    official protocols use the grades of the companion `relevance`, regardless of that option, and queries
    that embed.py crops to their `boxes`.
    """
    truth = first_present(folder, (f"gnd_{name}.mat", f"../gnd_{name}.mat"))
    if not truth.is_file() and (pickled := folder / f"gnd_{name}.pkl").is_file():
        remedy = f"download {truth.name} from the same page"
        raise UserError(f"{pickled}: a pickle can run code and is not read; {remedy}")
    index, queries = (pd.Series(read_mat(truth, key).astype(str)) for key in ("imlist", "qimlist"))
    gnd = read_mat(truth, "gnd", ("bbx", *GRADES))
    path = partial(prefixed, files=files, prefixes=("jpg/", "", "../jpg/"))
    query_path, index_path = path(queries + ".jpg"), path(index + ".jpg")
    parts = []
    for query, entry in enumerate(gnd):
        for grade in GRADES:
            row = np.atleast_1d(entry[grade]).astype(int) - 1
            parts.append(pd.DataFrame({"query": query, "image": row, "grade": grade}))
    grades = pd.concat(parts, ignore_index=True)
    relevant = grades[grades["grade"].isin(PROTOCOLS[protocol])]
    classes = relevant["query"].map(queries).groupby(relevant["image"]).agg("|".join)
    label = pd.Series(index.index).map(classes).fillna("no-query")  # index images that answer none
    rows = [
        listing(query_path, queries, "test", "query"),
        listing(index_path, label, "test", "index"),
    ]
    sides = ["x1_px", "y1_px", "x2_px", "y2_px"]
    boxes = pd.DataFrame(np.stack(gnd["bbx"]).astype(float), columns=sides)
    grades["query"] = grades["query"].map(query_path)
    grades["image"] = grades["image"].map(index_path)
    companions = {"relevance": grades, "boxes": boxes.assign(image_path=query_path)}
    return Listing(pd.concat(rows, ignore_index=True), companions=companions)


def met(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return train, queries of val and test, and their indexes; the class is the exhibit's id.

    `ground_truth/MET_database.json` (id, path of the catalogue: both train set and test index, which the
    sidecar declares), `mini_MET_database.json` (the index of val), `testset.json` and `valset.json` (path;
    MET_id if the photograph shows an exhibit). Photographs without MET_id have no positive. They are
    distractors for recognition, which GAP needs. They are left out, as in UnED, or kept as queries of a
    class without exhibit.
    """

    def records(name: str, exhibit: str) -> pd.DataFrame:
        path = first_present(folder, (f"ground_truth/{name}", name))
        table = read_records(path, ["path", exhibit]).rename(columns={exhibit: "id"})
        if exhibit == "MET_id" and distractors != "keep":
            table = table.dropna(subset="id")
        return table.assign(path=prefixed(table["path"], files, ("", "images/")))

    def rows(table: pd.DataFrame, split: str, role: str) -> pd.DataFrame:
        label = table["id"].dropna().astype(int).astype(str)
        label = label.reindex(table.index, fill_value="no-exhibit")
        return listing(table["path"], label, split, role)

    catalogue = val_index = records("MET_database.json", "id")
    small = "mini_MET_database.json"
    warnings: tuple[str, ...] = ()
    if first_present(folder, (f"ground_truth/{small}", small)).is_file():
        val_index = catalogue[catalogue["path"].isin(records(small, "id")["path"])]
    else:
        warnings = (f"Met: no {small}, so the index of val is the whole catalogue",)
    parts = [
        rows(catalogue, "train", "train"),
        rows(records("valset.json", "MET_id"), "val", "query"),
        rows(val_index, "val", "index"),
        rows(records("testset.json", "MET_id"), "test", "query"),
        rows(catalogue, "test", "index"),
    ]
    return Listing(pd.concat(parts, ignore_index=True), warnings)


def imagenet(folder: Path, files: frozenset[str]) -> Listing:
    """Return images on disk by path; the class is the wnid, `n01440764`.

    `train/<wnid>/*.JPEG`, below `Data/CLS-LOC/` on Kaggle; val either sorted into class folders too, or
    flat with the labels of `LOC_val_solution.csv` (Kaggle) or of the devkit. The devkit numbers the classes
    in its own order, which `data/meta.mat` maps to wnids.
    """
    root = "Data/CLS-LOC/" if (folder / "Data/CLS-LOC").is_dir() else ""
    parts = []
    for part, split in (("train", "train"), ("val", "test")):
        found = [file for file in pictures(files, f"{root}{part}/") if file.endswith(".JPEG")]
        path = pd.Series(found, dtype=str)
        label = path.str.removeprefix(f"{root}{part}/").str.extract(r"^(.+)/[^/]+$")[0]
        if part == "val" and found and label.isna().all():
            number = path.str.rpartition("/")[2].str.removesuffix(".JPEG")
            label = number.map(_imagenet_val_labels(folder))
            if label.isna().any():
                raise UserError(f"{folder / path[label.isna()].iloc[0]}: no label")
        parts.append(listing(path, label, split).dropna(subset="label"))
    return Listing(pd.concat(parts, ignore_index=True))


def _imagenet_val_labels(folder: Path) -> pd.Series:
    """Return the wnid by name of a val image, `ILSVRC2012_val_00000001`."""
    solution = first_present(folder, ("LOC_val_solution.csv", "../LOC_val_solution.csv"))
    if solution.is_file():
        rows = read_columns(solution, ("ImageId", "PredictionString"))
        return rows.set_index("ImageId")["PredictionString"].str.partition(" ")[0]
    devkits = ("", "ILSVRC2012_devkit_t12/", "devkit/", "../ILSVRC2012_devkit_t12/")
    names = [f"{devkit}data/ILSVRC2012_validation_ground_truth.txt" for devkit in devkits]
    truth = first_present(folder, names)
    if not truth.is_file():
        absent = f"nor LOC_val_solution.csv, nor the devkit's {names[0]}; download one of them"
        raise UserError(f"{folder}/val: neither sorted into class folders, {absent}")
    synsets = read_mat(truth.parent / "meta.mat", "synsets", ("WNID", "ILSVRC2012_ID"))
    wnid = pd.Series(synsets["WNID"].astype(str), synsets["ILSVRC2012_ID"].astype(int))
    ids = whole_numbers(read_words(truth, ["class_id"])["class_id"], truth)
    name = pd.Series(ids.index + 1).map("ILSVRC2012_val_{:08d}".format)
    return pd.Series(ids.map(wnid).to_numpy(), index=name)


def gpr1200(folder: Path, files: frozenset[str], blocks: list[str]) -> Listing:
    """Return images on disk by category; the class is `<block>/<category>`.

    1,200 categories of ten images: `images/<category>_<name>.jpg`, in six blocks of 200.
    """
    path = pd.Series(sorted(files), dtype=str)
    category = path.str.extract(r"(?:^|/)(\d+)_[^/]+\.(?:jpe?g|JPE?G|png)$")[0]
    path, number = path[category.notna()], category.dropna().astype(int)
    block = number.floordiv(200).map(dict(enumerate(BLOCKS)))
    rows = listing(path, block + "/" + number.map("{:04d}".format), "test")
    in_blocks = block.isin(blocks or BLOCKS).to_numpy()
    return Listing(rows[in_blocks].sort_values("label", kind="stable", ignore_index=True))


def ilias(folder: Path, files: frozenset[str], distractors: str) -> Listing:
    """Return image queries, then the index: positives, and the distractors that are kept.

    `image_ids/{image_query_ids,positive_ids,text_query_ids}.txt`: one id per line, text after a comma is
    ignored; `ilias_core/<id>`: `<object>/query/Q000_00.jpg`, `<object>/pos/P000_00.jpg` and, as
    text, `<object>/query/T000.txt`. The class is the object, the first folder of the id, for queries and
    positives. The companion `texts` contains the text queries.

    The 100 million distractors are tars of 100,000 images, `yfcc100m/<shard>.tar`, to be unpacked to
    `yfcc100m/<shard>/<key>.jpg`. The option keeps all that exist, or those of mini-ILIAS (5 million keys
    in `image_ids/mini_ilias_yfcc100m_ids.txt`).
    """

    def ids(name: str) -> pd.Series:
        lines = pd.Series(read_lines(folder / "image_ids" / f"{name}_ids.txt"), dtype=str)
        ids = lines.str.partition(",")[0].str.strip()
        return ids[ids != ""].reset_index(drop=True)

    core, parts = "ilias_core/", []
    for found, role in ((ids("image_query"), "query"), (ids("positive"), "index")):
        parts.append(listing(core + found, found.str.partition("/")[0], "test", role))
    if distractors != "leave_out":
        path = pd.Series(sorted(f for f in files if f.startswith("yfcc100m/")), dtype=str)
        key = path.str.extract(r"^[^/]+/[^/]+/(.+)\.(?:jpe?g|JPE?G|png)$")[0]
        if distractors == "mini":
            key = key.where(key.isin(set(ids("mini_ilias_yfcc100m"))))
        parts.append(listing(path[key.notna()], "no-object", "test", "index"))
    text = ids("text_query")
    file = (core + text).where(text.str.endswith(".txt"), core + text + ".txt")
    there = file.isin(files)
    words = [" ".join(" ".join(read_lines(folder / one)).split()) for one in file[there]]
    texts = pd.DataFrame({"image_path": core + text, "label": text.str.partition("/")[0]})[there]
    warning = f"ILIAS: {len(words):,} of {len(text):,} text queries found"
    warnings = () if there.all() else (warning,)
    companions = {"texts": texts.assign(text=words)}
    return Listing(pd.concat(parts, ignore_index=True), warnings, companions)


def uned(folder: Path, files: frozenset[str], subsets: list[str]) -> Listing:
    """Return rows of the named subsets, each a domain; [] selects all of them.

    `info_files/<dataset>/<split>.json`: a list of objects with `path`, relative to `images/`, and
    `class_id`, a number or a list of them. Test of inshop, met and gldv2 has its index in `index.json`,
    val of met in `small_index.json`; elsewhere an image is query and index. Splits may reuse numbers, so
    class names include the split (`train-7`), except in Met, where the index is the training set. RP2K's
    Chinese names may be escaped as by unzip (`#U4e2d`).
    """

    def rows(path: Path, split: str, role: str) -> pd.DataFrame:
        records = read_records(path, ["path", "class_id"])
        if (faulty := records.isna().any(axis=1)).any():
            row = int(faulty.to_numpy().argmax()) + 1
            raise UserError(f"{path}: object {row} has no path or no class_id")
        name = path.parent.name
        prefix = "" if name == "met" else f"{split}-"
        ids = records["class_id"].map(lambda one: one if isinstance(one, list) else [one])
        label = ids.map(lambda several: "|".join(f"{prefix}{one}" for one in several))
        file = prefixed(records["path"], files, ("images/", ""))
        return listing(file, label, split, role).assign(domain=name)

    if unknown := sorted(set(subsets) - set(SUBSETS)):
        raise UserError(f"uned: no subset {', '.join(unknown)}; it has: {', '.join(SUBSETS)}")
    lists = folder / "info_files" if (folder / "info_files").is_dir() else folder
    parts = []
    for name in subsets or SUBSETS:
        for split in ("train", "val", "test"):
            index = lists / name / INDEXES.get(split, "none")
            role = "train" if split == "train" else "query" if index.is_file() else "both"
            parts.append(rows(lists / name / f"{split}.json", split, role))
            if role == "query":
                parts.append(rows(index, split, "index"))
    return Listing(pd.concat(parts, ignore_index=True))


READERS = (cars196, vehicleid, gldv2, revisited, met, imagenet, gpr1200, ilias, uned)
SPECIAL = {reader.__name__: reader for reader in READERS}
