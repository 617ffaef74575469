"""Each data set in small is read as its golden manifest: rows, companions, declarations and warnings.

`python tests/data/datasets/test_golden.py` writes `golden.txt`; review its difference like code.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from guie.data.datasets import DATASETS, Reading
from guie.data.manifest import check, load_manifest, save_manifest
from miniatures import MINIATURES, several, vehicles
from miniatures.files import removed, replaced, write
from miniatures.reading import read_small

GOLDEN = Path(__file__).with_name("golden.txt")
GLD = "gldv2/metadata"


class Case(NamedTuple):
    """A data set in small, read with options; `change` changes it, `make` builds another release of it."""

    name: str
    how: Mapping[str, Any] = {}
    change: Callable[[Path], object] = lambda root: None
    make: Callable[[Path], None] | None = None

    def read(self, root: Path) -> Reading:
        (self.make or MINIATURES[self.name])(root)
        self.change(root)
        return read_small(root, self.name, **self.how)


def full_list(root: Path) -> None:
    lines = ["0000000000000000,http://a.jpg,1", "0000000000000003,http://b.jpg,7"]
    write(root / GLD / "train.csv", "id,url,landmark_id", *lines)


def other_subset(root: Path) -> None:
    write(root / "VehicleID_V1.0/train_test_split/test_list_800.txt", "3 12", "1 9")


CASES = {name: Case(name) for name in sorted(DATASETS)} | {
    "cars196, devkit": Case("cars196", make=vehicles.cars_devkit),
    "cars196, kaggle": Case("cars196", make=vehicles.cars_kaggle),
    "imagenet, class folders": Case("imagenet", make=several.imagenet_sorted),
    "imagenet, devkit": Case("imagenet", make=several.imagenet_devkit),
    "products10k without test": Case(
        "products10k", change=removed("products-10k/test_kaggletest.csv")
    ),
    "aliproducts without val": Case("aliproducts", change=removed("AliProducts/val/05201/4.jpg")),
    "vehicleid, 800": Case("vehicleid", {"test_vehicles": 800}),
    "vehicleid, 1600": Case("vehicleid", {"test_vehicles": 1600}),
    "vehicleid, another list of 800": Case("vehicleid", change=other_subset),
    "gpr1200, faces": Case("gpr1200", {"blocks": ["faces"]}),
    "food2k, other seed": Case("food2k", {"seed": 1}),
    "rp2k, three test classes": Case("rp2k", {"test_classes": 3}),
    "uned, gldv2": Case("uned", {"subsets": ["gldv2"]}),
    "uned, several": Case("uned", {"subsets": ["sop", "rp2k"]}),
    "met, distractors": Case("met", {"distractors": "keep"}),
    "met without the small list": Case(
        "met", change=removed("met/ground_truth/mini_MET_database.json")
    ),
    "met, another domain": Case("met", {"domain": "paintings"}),
    "met, all train": Case("met", {"as_train": True}),
    "gldv2, test": Case("gldv2", {"splits": ["test"]}),
    "gldv2, full list": Case("gldv2", {"train_list": "full", "splits": ["train"]}, full_list),
    "gldv2 without index": Case("gldv2", change=removed(f"{GLD}/index_image_to_landmark.csv")),
    "gldv2, shorter solution": Case(
        "gldv2", change=replaced(f"{GLD}/retrieval_solution_v2.1.csv", "a000000000000000 ", "")
    ),
    "ilias, mini": Case("ilias", {"distractors": "mini"}),
    "ilias, all distractors": Case("ilias", {"distractors": "keep"}),
    "ilias without a text": Case(
        "ilias", change=removed("ilias/ilias_core/bold_bimp_000/query/T000.txt")
    ),
    "roxford5k, easy": Case("roxford5k", {"protocol": "easy"}),
    "roxford5k, hard": Case("roxford5k", {"protocol": "hard"}),
    "roxford5k, incomplete": Case(
        "roxford5k",
        {"partial": True},
        removed("roxford5k/jpg/all_souls_000026.jpg", "roxford5k/jpg/all_souls_000002.jpg"),
    ),
    "roxford5k, all train": Case("roxford5k", {"as_train": True}),
}


def text_of(reading: Reading) -> list[str]:
    """Return lines: rows, companions, declarations, warnings."""
    tables = {"": reading.table.drop(columns="dataset"), **reading.companions}
    lines = [
        f"{kind and f'{kind}: '}{line}"
        for kind, table in tables.items()
        for line in table.to_csv(index=False, header=False).splitlines()
    ]
    lines += [f"declares {name}: {what}" for name, what in reading.sidecar.domains.items()]
    return lines + [
        f"warning: {line.replace(str(reading.root), 'FOLDER')}" for line in reading.warnings
    ]


def golden() -> dict[str, list[str]]:
    sections = GOLDEN.read_text(encoding="utf-8").removeprefix("== ").split("\n== ")
    return {title: rows for title, *rows in (section.splitlines() for section in sections)}


@pytest.mark.parametrize("case", CASES)
def test_a_reading_is_its_golden_manifest(case: str, tmp_path: Path) -> None:
    reading = CASES[case].read(tmp_path)
    assert text_of(reading) == golden()[case]
    table = reading.table
    assert check(table, reading.sidecar) == [] and set(table["dataset"]) == {CASES[case].name}
    assert all((reading.root / path).is_file() for path in table["image_path"])
    save_manifest(table, tmp_path / "m.csv", reading.sidecar)
    loaded = load_manifest(tmp_path / "m.csv")
    assert loaded.sidecar == reading.sidecar
    assert loaded.table.sort_index(axis=1).equals(table.sort_index(axis=1))


def test_every_golden_manifest_has_a_case() -> None:
    assert set(golden()) == set(CASES)


if __name__ == "__main__":
    sections = []
    for title, one in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            sections.append("\n".join([f"== {title}", *text_of(one.read(Path(folder)))]))
    GOLDEN.write_text("\n".join(sections) + "\n", encoding="utf-8")
