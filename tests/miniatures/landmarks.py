"""Landmarks and artworks in small, with queries and an index of their own."""

from pathlib import Path

from scipy.io import savemat

from miniatures.files import cells, struct, touch, write, write_json


def met(root: Path) -> None:
    folder = root / "met"
    catalogue = [{"id": n // 2, "path": f"MET/{n // 2}/{n % 2}.jpg"} for n in range(8)]
    photographs = [{"path": f"test_met/{n}.jpg", "MET_id": n} for n in range(3)]
    others = [{"path": f"test_{kind}/{n}.jpg"} for n in (8, 9) for kind in ("other", "noart")]
    write_json(folder / "ground_truth/MET_database.json", catalogue)
    write_json(folder / "ground_truth/mini_MET_database.json", catalogue[:4])
    write_json(folder / "ground_truth/valset.json", [photographs[0], *others[:2]])
    write_json(folder / "ground_truth/testset.json", [*others[2:], *photographs[1:]])
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
