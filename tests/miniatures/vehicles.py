"""Cars-196 in each of its releases, VehicleID and FGVC-Aircraft in small."""

from pathlib import Path

from scipy.io import savemat

from miniatures.files import cells, struct, touch, write

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
