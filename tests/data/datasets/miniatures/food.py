"""Food in small."""

from __future__ import annotations

from pathlib import Path

from miniatures.files import touch, write


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
