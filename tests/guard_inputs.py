"""Inputs of tests/guard.py other than the drawn images: copies, an archive, data sets in small."""

import shutil
from pathlib import Path

import pandas as pd

from miniatures import MINIATURES

DRAWN = "toy_smoke"  # of guard.yaml's `images`; the mix of that name has its rows


def prepare(folder: Path) -> None:
    """Add them to the folder of the drawn images."""
    for make in MINIATURES.values():
        make(folder)
    table = pd.read_csv(folder / DRAWN / "manifest.csv")
    tested = table[table["split"] == "test"]
    plant(folder, folder / "planted", folder / DRAWN / tested["image_path"].iloc[0])
    shutil.make_archive(str(folder / "archived"), "zip", folder / "planted")
    boxes = tested[["image_path"]].assign(x1_px=3, y1_px=5, x2_px=60, y2_px=40).iloc[::3]
    boxes["image_path"] = f"{DRAWN}/" + boxes["image_path"]
    boxes.to_csv(folder / "some.boxes.csv", index=False)
    texts = tested.drop_duplicates("label").iloc[::4][["label", "domain"]]
    texts["text"] = [f"a photo of {label.split('/')[-1]}" for label in texts["label"]]
    texts["image_path"] = [f"text {number}" for number in range(len(texts))]
    texts.to_csv(folder / "some.texts.csv", index=False)


def plant(drawn: Path, folder: Path, tested: Path) -> None:
    """Classes of images with copies: equal, nearly, of another label, of test; and half a file."""
    classes = drawn.glob("toy_pretrain_smoke/images/*/*")
    chosen = sorted(path for path in classes if len(list(path.iterdir())) > 3)[:6]
    for number, path in enumerate(chosen):
        shutil.copytree(path, folder / f"class{number}")
    first, *others = sorted((folder / "class0").iterdir())
    data = bytearray(first.read_bytes())
    data[data.index(b"\xff\xdb") + 15] += 1  # a JPEG's divisor of one frequency
    (folder / "class0/near.jpg").write_bytes(data)
    (folder / "class0/cut.jpg").write_bytes(data[: len(data) // 2])
    shutil.copy2(others[0], folder / "class0/again.jpg")
    shutil.copy2(others[1], folder / "class1/other.jpg")
    shutil.copy2(tested, folder / "class2/leak.jpg")
