"""Test classes thinned out: how many images remain, which are near-duplicates, and that seeds decide."""

from __future__ import annotations

import os
import signal

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from guie.base.errors import UserError
from guie.curation import thinning
from guie.curation.thinning import distinct, keep_classes, thin_test

SAME = [f"same{n}.jpg" for n in range(5)] + ["same5.png"]
OTHER = [f"other{n}.jpg" for n in range(5)]


def picture(seed: int) -> np.ndarray:
    """A smooth random picture, as photographs are: 48 x 64, uint8 RGB."""
    cells = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(cells).resize((64, 48), Image.Resampling.BICUBIC))


@pytest.fixture
def folder(tmp_path):
    """One picture six times (noise, quality, size), and five others."""
    base, draw = picture(1).astype(int), np.random.default_rng(0)
    for n in range(4):
        noisy = np.clip(base + draw.integers(-4, 5, base.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / SAME[n], quality=95 - 15 * n)
    Image.fromarray(picture(1)).resize((200, 150)).save(tmp_path / SAME[4])
    Image.fromarray(picture(1)).save(tmp_path / SAME[5])
    for n, name in enumerate(OTHER):
        Image.fromarray(picture(10 + n)).save(tmp_path / name)
    return tmp_path


def table(**classes: list[str]) -> pd.DataFrame:
    rows = [(path, f"d/{name}") for name, paths in classes.items() for path in paths]
    found = pd.DataFrame(rows, columns=["image_path", "label"])
    return found.assign(domain="d", split="test", role="both")


def thinned(rows, folder, most=None, bits=None, seed=0, workers=1) -> list[str]:
    how = {"max_images": most, "near_duplicate_bits": bits, "seed": seed, "workers": workers}
    return thin_test(rows, folder, **how)["image_path"].tolist()


def test_near_duplicates_go_within_a_class_and_the_order_remains(folder):
    kept = thinned(table(a=SAME + OTHER[:3], b=OTHER[3:]), folder, bits=6)
    assert len([name for name in kept if name in SAME]) == 1
    assert [name for name in kept if name in OTHER] == OTHER
    assert thinned(table(a=SAME[:1], b=SAME[1:2]), folder, bits=6) == SAME[:2]


def test_pictures_without_structure_or_readable_bytes_are_kept(folder):
    for n, level in enumerate((0, 255)):
        Image.new("RGB", (40, 30), (level,) * 3).save(folder / f"plain{n}.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    odd = ["plain0.png", "plain1.png", "broken.jpg"]
    kept = thinned(table(a=[*odd, *SAME]), folder, bits=6)
    assert kept[:3] == odd and len(kept) == 4


@pytest.mark.parametrize("bits", [None, 6])
def test_a_class_keeps_at_most_so_many_distinct_images(bits, folder):
    kept = thinned(table(a=OTHER[:4], b=OTHER[4:]), folder, most=2, bits=bits)
    assert len(kept) == 3 and "other4.jpg" in kept
    copies = thinned(table(a=SAME + OTHER), folder, most=3, bits=bits)
    assert len(copies) == 3 and (bits is None or len(set(copies) & set(SAME)) <= 1)


def test_no_more_images_are_opened_than_needed(folder):
    opened = []

    class Folder(type(folder)):
        def __truediv__(self, name):
            opened.append(name)
            return super().__truediv__(name)

    assert distinct(Folder(folder), 2, 6, OTHER) == OTHER[:2]
    assert opened == OTHER[:2]


@pytest.mark.parametrize(("bits", "kept"), [(2, ["a", "b"]), (3, ["a"]), (0, ["a", "b"])])
def test_the_limit_of_bits_counts_as_a_near_duplicate(bits, kept, tmp_path, monkeypatch):
    codes = {tmp_path / "a": 0b1000, tmp_path / "b": 0b1111}
    monkeypatch.setattr(thinning, "_hash", codes.get)
    assert distinct(tmp_path, 9, bits, ["a", "b"]) == kept


def test_a_killed_worker_is_reported_in_a_line(folder, monkeypatch):
    monkeypatch.setattr(thinning, "_hash", lambda path: os.kill(os.getpid(), signal.SIGKILL))
    classes = {f"class{n}": [name] for n, name in enumerate(OTHER)}  # more than one worker takes
    with pytest.raises(UserError, match="was killed.* use fewer than 2 workers"):
        thinned(table(**classes), folder, bits=6, workers=2)


def test_choice_depends_on_the_seed_alone(folder):
    rows = table(a=OTHER)
    chosen = {tuple(thinned(rows, folder, most=2, seed=seed)) for seed in range(12)}
    assert len(chosen) > 3
    shuffled = rows.sample(frac=1, random_state=1).reset_index(drop=True)
    assert set(thinned(shuffled, folder, most=2)) == set(thinned(rows, folder, most=2))
    both = table(a=SAME + OTHER)
    assert thinned(both, folder, 3, 6, workers=2) == thinned(both, folder, 3, 6)


@pytest.mark.parametrize(
    ("split", "role"), [("train", "train"), ("val", "both"), ("test", "index")]
)
def test_other_rows_are_not_touched(split, role, folder):
    rows = table(a=SAME).assign(split=split, role=role)
    assert thinned(rows, folder, most=1, bits=6) == SAME


def trained(**sizes: int) -> pd.DataFrame:
    rows = table(**{name: [f"{name}{n}.jpg" for n in range(size)] for name, size in sizes.items()})
    return rows.assign(split="train", role="train")


def test_the_largest_classes_of_each_domain_remain_equal_ones_by_name():
    rows = trained(a=2, b=5, c=3, d=3)
    assert keep_classes(rows, 2, "largest", 0)["label"].unique().tolist() == ["d/b", "d/c"]
    assert len(keep_classes(rows, 9, "largest", 0)) == 13
    rows = pd.concat([trained(a=3, b=1), trained(x=1, y=2).assign(domain="e"), table(b=["t.jpg"])])
    kept = keep_classes(rows.reset_index(drop=True), 1, "largest", 0)
    assert kept.groupby(["domain", "split"])["label"].agg(set).to_dict() == {
        ("d", "train"): {"d/a"},
        ("d", "test"): {"d/b"},
        ("e", "train"): {"d/y"},
    }


def test_random_classes_depend_on_the_seed_and_no_other_class():
    few, more = trained(a=1, b=1, c=1, d=1), trained(a=1, b=1, c=1, d=1, e=1)
    chosen = {seed: set(keep_classes(few, 2, "random", seed)["label"]) for seed in range(10)}
    assert all(len(labels) == 2 for labels in chosen.values())
    assert len({frozenset(labels) for labels in chosen.values()}) > 2
    for seed, labels in chosen.items():
        assert len(labels & set(keep_classes(more, 2, "random", seed)["label"])) >= 1
