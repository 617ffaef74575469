"""Every dataset in small: the real folders, header lines and quirks around empty image files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy.io import savemat


def touch(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write(path, json.dumps(value))


def cells(values: Sequence[object]) -> np.ndarray:
    """A MATLAB cell array."""
    array = np.empty((1, len(values)), dtype=object)
    array[0] = values
    return array


def struct(columns: dict[str, Sequence[object]]) -> np.ndarray:
    """A MATLAB struct array, a field a column."""
    rows = list(zip(*columns.values(), strict=True))
    array = np.empty((1, len(rows)), dtype=[(name, object) for name in columns])
    array[0] = rows
    return array


def cub(root: Path) -> None:
    folder = root / "CUB_200_2011"
    names = [
        "001.Black_footed_Albatross",
        "100.Brown_Pelican",
        "101.White_Pelican",
        "200.Yellowthroat",
    ]
    paths = [f"{name}/{name[4:]}_{n:04d}_79600{n}.jpg" for name in names for n in (1, 2)]
    write(folder / "images.txt", *(f"{n} {path}" for n, path in enumerate(paths, 1)))
    ids = [int(path[:3]) for path in paths]
    write(folder / "image_class_labels.txt", *(f"{n} {one}" for n, one in enumerate(ids, 1)))
    write(folder / "classes.txt", *(f"{int(name[:3])} {name}" for name in names))
    touch(folder / "images", [*paths, "001.Black_footed_Albatross/._Albatross_0001.jpg"])


def nabirds(root: Path) -> None:
    folder = root / "nabirds"
    classes = [295, 817, 1010]  # with gaps; as words 1010 would come first
    ids = [f"{n:08x}-f9f5-4d5c-8e1d-{n:012x}" for n in range(6)]
    paths = [f"{classes[n // 2]:04d}/{one.replace('-', '')}.jpg" for n, one in enumerate(ids)]
    rows = list(zip(ids, paths, strict=True))
    write(folder / "images.txt", *(f"{one} {path}" for one, path in rows))
    write(
        folder / "image_class_labels.txt",
        *(f"{one} {int(path[:4])}" for one, path in reversed(rows)),  # joined by id, not by place
    )
    touch(folder / "images", paths)


CAR_CLASSES = [1, 1, 98, 98, 99, 99, 196, 196]


def cars196(root: Path) -> None:
    cars_original(root)


def cars_original(root: Path) -> None:
    folder = root / "cars196"
    paths = [f"car_ims/{n:06d}.jpg" for n in range(1, 9)]
    columns = {"relative_im_path": paths, "bbox_x1": [1] * 8, "class": CAR_CLASSES, "test": [0] * 8}
    touch(folder, paths)
    savemat(
        folder / "cars_annos.mat", {"annotations": struct(columns), "class_names": cells(["AM"])}
    )


def cars_devkit(root: Path) -> None:
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    # every second image is in the other folder; both count from 1
    places = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    for offset, (split, place) in enumerate(places.items()):
        ids = CAR_CLASSES[offset::2]
        names = [f"{n:05d}.jpg" for n in range(1, len(ids) + 1)]
        touch(folder / f"cars_{split}", names)
        columns = {"bbox_x1": [1] * len(ids), "class": ids, "fname": names}
        savemat(folder / place, {"annotations": struct(columns)})


def cars_kaggle(root: Path) -> None:
    folder = root / "stanford-cars-dataset"
    names = [f"Model {n} 2012" for n in range(1, 197)]
    names[97] = "Ram C/V Cargo Van Minivan 2012"
    write(folder / "names.csv", *names)
    for offset, split in enumerate(("train", "test")):
        ids = CAR_CLASSES[offset::2]
        rows = [(f"{n:05d}.jpg", one) for n, one in enumerate(ids, 1)]
        write(folder / f"anno_{split}.csv", *(f"{file},39,116,569,375,{one}" for file, one in rows))
        folders = {one: names[one - 1].replace("/", "-") for one in ids}
        touch(
            folder / f"car_data/car_data/{split}", (f"{folders[one]}/{file}" for file, one in rows)
        )


def sop(root: Path) -> None:
    folder = root / "Stanford_Online_Products"
    header = "image_id class_id super_class_id path"
    train = [f"{n} {n // 3 + 1} 1 bicycle_final/11126556175{n}_{n}.JPG" for n in range(6)]
    test = [f"{n} {11319 + n // 2} 12 toaster_final/21126556175{n}_{n}.JPG" for n in range(4)]
    write(folder / "Ebay_train.txt", header, *train)
    write(folder / "Ebay_test.txt", header, *test)
    touch(folder, (line.split()[-1] for line in train + test))


def inshop(root: Path) -> None:
    folder = root / "inshop"
    rows = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
        ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "query"),
        ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "gallery"),
    ]
    lines = [f"{path:70}{item:14}{status}" for path, item, status in rows]
    header = "image_name item_id evaluation_status"
    write(folder / "Eval/list_eval_partition.txt", str(len(rows)), header, *lines)
    touch(folder / "Img", (row[0] for row in rows))


def deepfashion_c2s(root: Path) -> None:
    folder = root / "deepfashion_c2s"
    item = "img/CLOTHING/Blouse/id_0000000{}"
    rows = [
        (f"{item.format(one)}/comsumer_0{n}.jpg", f"{item.format(one)}/shop_01.jpg", one, status)
        for one, status in ((1, "train"), (2, "val"), (3, "test"))
        for n in (1, 2)  # one shop image in two pairs
    ]
    lines = [f"{pair[0]:60}{pair[1]:60}id_0000000{pair[2]} {pair[3]}" for pair in rows]
    header = "image_pair_name_1 image_pair_name_2 item_id evaluation_status"
    write(folder / "Eval/list_eval_partition.txt", str(len(rows)), header, *lines)
    touch(folder, (path for row in rows for path in row[:2]))


def inat2018(root: Path) -> None:
    folder = root / "inat2018"
    train = [f"train_val2018/Plantae/7477/{n}.jpg" for n in "ab"] + ["train_val2018/Aves/1/c.jpg"]
    test = [f"train_val2018/Aves/2761/{n}.jpg" for n in "cd"]
    write(folder / "Inat_dataset_splits/Inaturalist_train_set1.txt", *train)
    # the other list starts at another folder
    write(
        folder / "Inat_dataset_splits/Inaturalist_test_set1.txt",
        *(f"Inaturalist/{path}" for path in test),
    )
    touch(folder, train + test)


def met(root: Path) -> None:
    folder = root / "met"
    catalogue = [{"id": n // 2, "path": f"MET/{n // 2}/{n % 2}.jpg"} for n in range(8)]
    photographs = [{"path": f"test_met/{n}.jpg", "MET_id": n} for n in range(3)]
    others = [{"path": "test_other/9.jpg"}, {"path": "test_noart/9.jpg"}]
    write_json(folder / "ground_truth/MET_database.json", catalogue)
    write_json(folder / "ground_truth/mini_MET_database.json", catalogue[:4])
    write_json(folder / "ground_truth/valset.json", [photographs[0], *others])
    write_json(folder / "ground_truth/testset.json", [*others, *photographs[1:]])
    touch(folder, (entry["path"] for entry in catalogue + photographs + others))


def gldv2(root: Path) -> None:
    folder = root / "gldv2"
    ids = {
        part: [f"{digit}{n:015x}" for n in range(4)]
        for part, digit in zip("tiq", "0ab", strict=True)
    }
    train, index, query = ids.values()
    write(
        folder / "metadata/train_clean.csv",
        "landmark_id,images",
        f"1,{train[0]} {train[1]}",
        f"7,{train[2]} {train[3]}",
    )
    # landmark 7 of the index is another one than train's
    rows = zip(index, (7, 7, 8, 9), strict=True)
    write(
        folder / "metadata/index_image_to_landmark.csv",
        "id,landmark_id",
        *(f"{one},{landmark}" for one, landmark in rows),
    )
    write(
        folder / "metadata/retrieval_solution_v2.1.csv",
        "id,images,Usage",
        f"{query[0]},{index[0]} {index[1]} {index[2]},Private",
        f"{query[1]},{index[3]},Public",
        f"{query[2]},None,Ignored",
    )
    places = {"train": train, "index": index, "test": query}
    for part, names in places.items():
        touch(folder, (f"{part}/{one[0]}/{one[1]}/{one[2]}/{one}.jpg" for one in names))


def rp2k(root: Path) -> None:
    touch(
        root / "rp2k/all",
        (
            f"{split}/{name}/{n}.jpg"
            for name in ("可口可乐", "#U53ef#U53e3", "百事", "others")
            for split in ("train", "test")
            for n in range(2)
        ),
    )


def food2k(root: Path) -> None:
    folder = root / "Food2k_complete"
    touch(folder, (f"{one}/{n}.jpg" for one in (0, 1, 2, 1999) for n in range(3)))
    write(folder / "food2k_label2name_en.txt", "0--Sauerkraut", "1--Braised pork")


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


def dogs(root: Path) -> None:
    folder = root / "stanford_dogs"
    breeds = ["n02085620-Chihuahua", "n02116738-African_hunting_dog"]
    paths = [f"{breed}/{breed[:9]}_{n}.jpg" for breed in breeds for n in (7, 8)]
    touch(folder / "Images", paths)
    lists = {"file_list": cells(paths).T, "labels": np.array([[1], [1], [120], [120]], np.uint8)}
    savemat(folder / "file_list.mat", lists)


def flowers(root: Path) -> None:
    folder = root / "flowers-102"
    touch(folder / "jpg", (f"image_{n:05d}.jpg" for n in range(1, 7)))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[77, 77, 1, 1, 5, 5]], np.uint8)})
    savemat(folder / "setid.mat", {"trnid": [[3, 1]], "valid": [[2, 5]], "tstid": [[4, 6]]})


def aircraft(root: Path) -> None:
    folder = root / "fgvc-aircraft-2013b/data"
    write(folder / "variants.txt", "707-320", "F/A-18", "DC 10", "DC-10")
    write(
        folder / "images_variant_trainval.txt",
        "0034309 Boeing 707-320",
        "0034958 F/A-18",
        "0034959 F/A-18",
    )
    write(folder / "images_variant_test.txt", "0056978 Boeing 707-320")
    names = ("0034309", "0034958", "0034959", "0056978")
    touch(folder / "images", (f"{name}.jpg" for name in names))


def vehicleid(root: Path) -> None:
    folder = root / "VehicleID_V1.0"
    lists = folder / "train_test_split"
    write(lists / "train_list.txt", "0000001 0000009", "0000002 0000009")
    write(lists / "test_list_800.txt", "0000003 12", "0000004 12")
    write(lists / "test_list_1600.txt", "0000003 12", "0000004 12", "0000005 13")
    write(lists / "test_list_2400.txt", "3 12", "4 12", "5 13", "6 13")
    touch(folder / "image", (f"{n:07d}.jpg" for n in range(1, 7)))


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


def gpr1200(root: Path) -> None:
    names = ["0_a.jpg", "0_b.jpg", "1199_x.jpg", "1199_y_z.jpg", "200_p.jpg", "200_q.jpg"]
    touch(root / "GPR1200/images", names)


def roxford5k(root: Path) -> None:
    revisited(root, "roxford5k")


def rparis6k(root: Path) -> None:
    revisited(root, "rparis6k")


def revisited(root: Path, name: str) -> None:
    folder = root / name
    index = ["all_souls_000001", "all_souls_000002", "all_souls_000003", "worcester_000001"]
    queries = ["all_souls_000013", "all_souls_000026"]
    gnd = struct(
        {
            "bbx": [[136.5, 34.1, 648.5, 955.7], [1.0, 2.0, 3.0, 4.0]],
            "easy": [[1], []],  # count from 1; lists of one and of none lose their dimension
            "hard": [[2, 3], [2]],
            "junk": [[], [1, 3]],
        }
    )
    touch(folder / "jpg", (f"{one}.jpg" for one in index + queries))
    content = {"imlist": cells(index), "qimlist": cells(queries), "gnd": gnd}
    savemat(folder / f"gnd_{name}.mat", content)


def products10k(root: Path) -> None:
    folder = root / "products-10k"
    write(folder / "train.csv", "name,class,group", "1.jpg,0,0", "2.jpg,0,0", "10.jpg,1,0")
    write(folder / "test_kaggletest.csv", "name,class,Usage", "1.jpg,0,Public", "2.jpg,1,Private")
    touch(folder, ["train/1.jpg", "train/2.jpg", "train/10.jpg", "test/1.jpg", "test/2.jpg"])


def shopee(root: Path) -> None:
    folder = root / "shopee-product-matching"
    write(
        folder / "train.csv",
        "posting_id,image,image_phash,title,label_group",
        'train_1,aa.jpg,94974f937d4c2433,"Paper, ""Bag""",249114794',
        "train_2,aa.jpg,94974f937d4c2433,Kertas,2937985045",
        "train_3,aa.jpg,94974f937d4c2433,Kertas lagi,249114794",
        "train_4,bb.jpg,af3f9460c2838f0f,Double Tape,2937985045",
    )
    touch(folder / "train_images", ["aa.jpg", "bb.jpg"])


def aliproducts(root: Path) -> None:
    paths = ["train/05201/1.jpg", "train/05201/2.png", "train/7/3.jpg", "val/05201/4.jpg"]
    touch(root / "AliProducts", paths)


def hm(root: Path) -> None:
    folder = root / "h-and-m-personalized-fashion-recommendations"
    write(
        folder / "articles.csv",
        "article_id,product_code,prod_name",
        '0108775015,0108775,"Strap top, basic"',
        "0108775044,0108775,Strap top",
        "0110065001,0110065,OP T-shirt",
    )
    touch(folder / "images", ["010/0108775015.jpg", "010/0108775044.jpg"])


def fashion200k(root: Path) -> None:
    folder = root / "fashion200k"
    item = "women/dresses/casual_and_day_dresses/{}/{}_{}.jpeg"
    rows = {
        "dress_train": [item.format(51727804, 51727804, n) for n in (0, 1)],
        "top_train": [item.format(60000001, 60000001, 0)],
        "dress_test": [item.format(70000002, 70000002, n) for n in (0, 1)],
    }
    for name, paths in rows.items():
        lines = [f'{path}\t0.9\tblack "knee" dress, long' for path in paths]
        write(folder / f"labels/{name}_detect_all.txt", *lines)
        touch(folder, paths)


def food101(root: Path) -> None:
    folder = root / "food-101"
    lists = {"train": ["apple_pie/1005649", "waffles/9"], "test": ["apple_pie/1011328"]}
    for split, names in lists.items():
        write(folder / f"meta/{split}.txt", *names)
        touch(folder / "images", (f"{name}.jpg" for name in names))


def storefronts146(root: Path) -> None:
    paths = ["7-Eleven/google_in_london_1.jpg", "Apple Store/iTunes/google_street_view_14.jpeg"]
    touch(root / "storefront-146", [*paths, "Aldi/notes.txt"])


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


MINIATURES: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (
        *(cub, cars196, sop, inshop, inat2018, met, gldv2, rp2k, food2k, uned, nabirds, dogs),
        *(flowers, aircraft, vehicleid, imagenet, gpr1200, roxford5k, rparis6k, products10k),
        *(deepfashion_c2s, shopee, aliproducts, hm, fashion200k, food101, storefronts146, m4d35k),
    )
}
SMALL_SPLITS = {"food2k": {"test_classes": 2}, "rp2k": {"test_classes": 1}}  # of few classes
