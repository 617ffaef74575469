"""Datasets of many domains in small."""

import json
from pathlib import Path

from scipy.io import savemat

from miniatures.files import struct, touch, write, write_json

UNED_SPLITS = {
    "inshop": {"train": [(0, 2)], "val": [(0, 2)], "test": [(0, 1)], "index": [(0, 2)]},
    "met": {"train": [(0, 2), (1, 1)], "val": [(0, 1)], "test": [(1, 1)]},
    "gldv2": {"train": [(0, 2)], "val": [(1, 2)], "test": [([0, 3], 1)], "index": [(0, 2), (3, 1)]},
}


def uned(root: Path) -> None:
    folder = root / "uned"
    for name in ("food2k", "cars", "sop", "inshop", "inat", "met", "gldv2", "rp2k"):
        usual = {split: [(0, 2)] for split in ("train", "val", "test")}
        for split, classes in UNED_SPLITS.get(name, usual).items():
            records = [
                {"path": f"{name}/{split}/{class_id}_{n}.jpg", "class_id": class_id}
                for class_id, count in classes
                for n in range(count)
            ]
            write_json(folder / f"info_files/{name}/{split}.json", records)
            touch(folder / "images", (record["path"] for record in records))
    train = json.loads((folder / "info_files/met/train.json").read_text())
    for split in ("index", "small_index"):
        write_json(folder / f"info_files/met/{split}.json", train)
    # the lists escape Chinese names, this unzip did not
    rp2k_train = [{"path": "rp2k/all/train/#U767e#U4e8b/1.jpg", "class_id": 0}]
    write_json(folder / "info_files/rp2k/train.json", rp2k_train)
    touch(folder / "images", ["rp2k/all/train/百事/1.jpg"])


def imagenet(root: Path) -> None:
    """As Kaggle has it: val flat, its labels in a table."""
    folder = root / "imagenet-object-localization-challenge"
    write(
        folder / "LOC_val_solution.csv",
        "ImageId,PredictionString",
        "ILSVRC2012_val_00000001,n01751748 111 108 441 193 ",
        "ILSVRC2012_val_00000002,n01440764 85 1 499 272 n01440764 1 2 3 4 ",
    )
    train = [f"train/{wnid}/{wnid}_{n}.JPEG" for wnid in ("n01440764", "n01751748") for n in (1, 2)]
    val = [f"val/ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2)]
    touch(folder / "ILSVRC/Data/CLS-LOC", train + val)


def imagenet_flat(root: Path) -> None:
    """Without labels of val."""
    names = [f"val/ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2, 3)]
    touch(root / "imagenet", ["train/n01440764/n01440764_1.JPEG", *names])


def imagenet_devkit(root: Path) -> None:
    """Class 1 of the devkit is not the first wnid: a reader that sorts them labels val wrongly."""
    imagenet_flat(root)
    data = root / "imagenet/ILSVRC2012_devkit_t12/data"
    write(data / "ILSVRC2012_validation_ground_truth.txt", "3", "1", "2")
    synsets = {"ILSVRC2012_ID": [1, 2, 3], "WNID": ["n02119789", "n01440764", "n01751748"]}
    savemat(data / "meta.mat", {"synsets": struct(synsets).T})


def imagenet_sorted(root: Path) -> None:
    touch(root / "imagenet", ["train/n01440764/1.JPEG", "val/n01440764/2.JPEG"])


def gpr1200(root: Path) -> None:
    names = ["0_a.jpg", "0_b.jpg", "1199_x.jpg", "1199_y_z.jpg", "200_p.jpg", "200_q.jpg"]
    touch(root / "GPR1200/images", names)


def m4d35k(root: Path) -> None:
    folder = root / "m4d-35k"
    rows = {
        "products-10k/train/1.jpg": 0,
        "google_landmark_recognition_2021/train/0/1/2/0123456789abcdef.jpg": 9600,
        "deepfashion/train/id_1/shop_01.jpg": 20000,
        "stanford_cars/cars_train/00001.jpg": 35000,
    }
    write(
        folder / "m4d-35k_train.csv",
        "img_path,label",
        *(f"{path},{label}" for path, label in rows.items()),
    )
    touch(folder, rows)


def ilias(root: Path) -> None:
    """Two objects, one of them with two queries; two shards of distractors, unpacked."""
    folder = root / "ilias"
    names = {"bold_bimp_000": (1, 2), "zippy_zootlenibble_999": (2, 1)}
    queries, positives, texts = [], [], []
    for name, (asked, held) in names.items():
        number = name[-3:]
        queries += [f"{name}/query/Q{number}_{n:02d}.jpg" for n in range(asked)]
        positives += [f"{name}/pos/P{number}_{n:02d}.jpg" for n in range(held)]
        texts.append(f"{name}/query/T{number}.txt")
        write(folder / f"ilias_core/{texts[-1]}", f"the {name[:-4]}, ", "in green")
    lists = folder / "image_ids"
    write(lists / "image_query_ids.txt", *(f"{one},0.9,3" for one in queries))
    write(lists / "positive_ids.txt", *(f"{one},0.1,12" for one in positives))
    write(lists / "text_query_ids.txt", *texts)
    write(lists / "mini_ilias_yfcc100m_ids.txt", "77", "99")
    touch(folder / "ilias_core", [*queries, *positives])
    (folder / f"ilias_core/{queries[0]}").with_name("Q000_00_bbox.txt").write_text("1 2 30 40\n")
    far = [f"yfcc100m/yfcc100m_0000{shard}/{key}.jpg" for shard, key in ((0, 77), (1, 88))]
    touch(folder, [*far, "yfcc100m/yfcc100m_00002.tar"])
