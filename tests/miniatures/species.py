"""Birds, dogs, flowers, iNaturalist and dishes in small."""

from pathlib import Path

import numpy as np
from scipy.io import savemat

from miniatures.files import cells, touch, write


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


def food2k(root: Path) -> None:
    folder = root / "Food2k_complete"
    touch(folder, (f"{one}/{n}.jpg" for one in (0, 1, 2, 1999) for n in range(3)))
    write(folder / "food2k_label2name_en.txt", "0--Sauerkraut", "1--Braised pork")


def food101(root: Path) -> None:
    folder = root / "food-101"
    lists = {"train": ["apple_pie/1005649", "waffles/9"], "test": ["apple_pie/1011328"]}
    for split, names in lists.items():
        write(folder / f"meta/{split}.txt", *names)
        touch(folder / "images", (f"{name}.jpg" for name in names))
