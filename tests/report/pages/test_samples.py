"""Galleries of samples: train first, a share of the room for each domain."""

from __future__ import annotations

import pandas as pd
import pytest
from mix_report import rows

from guie.report.pages.mix import CLASSES, IMAGES, MAX_PICTURES, galleries


def test_galleries_show_train_and_say_how_much_there_is():
    table = pd.concat([rows(("x", f"cars/{i}", "train", 9)) for i in range(20)])
    table = pd.concat([table, rows(("x", "cars/t", "test", 3), ("x", "toys/t", "test", 2))])
    table["image_path"] = [f"{i}.jpg" for i in range(len(table))]
    table = table.reset_index(drop=True)
    (cars, toys), hidden = galleries(table, seed=0)
    assert (cars["split"], cars["total"], len(cars["classes"]), hidden) == ("train", 20, CLASSES, 0)
    label_of = table.set_index("image_path")["label"]
    for shown in cars["classes"]:
        assert shown["images"] == 9 and len(set(shown["paths"])) == IMAGES
        assert set(label_of[shown["paths"]]) == {shown["label"]}
    assert (toys["split"], len(toys["classes"][0]["paths"])) == ("test", 2)
    shuffled = table.sample(frac=1, random_state=0).reset_index(drop=True)
    assert galleries(shuffled, seed=0) == ([cars, toys], 0)
    assert galleries(table, seed=1) != ([cars, toys], 0)


@pytest.mark.parametrize("domains", [60, 1000])
def test_many_domains_share_the_room(domains):
    table = rows(*(("x", f"{d}/{c}", "train", 5) for d in range(domains) for c in "abcd"))
    table["image_path"] = table.index.astype(str)
    found, hidden = galleries(table, seed=0)
    assert len(found) + hidden == domains
    pictures = sum(len(shown["paths"]) for gallery in found for shown in gallery["classes"])
    assert MAX_PICTURES / 2 < pictures <= MAX_PICTURES
