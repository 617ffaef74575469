"""Test classes thinned out: how many images remain, which are near-duplicates, and that seeds decide."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tables import rows, together

from guie.base.errors import UserError
from guie.curation import thinning
from guie.curation.thinning import distinct, keep_classes, thin_test

SAME = [f"same{n}.jpg" for n in range(5)] + ["same5.png"]
OTHER = [f"other{n}.jpg" for n in range(5)]
ODD = ["plain0.png", "plain1.png", "broken.jpg"]  # no structure, no picture


def picture(seed: int) -> np.ndarray:
    """A smooth random picture, as photographs are: 48 x 64, uint8 RGB."""
    cells = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(cells).resize((64, 48), Image.Resampling.BICUBIC))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One picture six times (noise, quality, size), five others, and odd ones."""
    base, draw = picture(1).astype(int), np.random.default_rng(0)
    for n in range(4):
        noisy = np.clip(base + draw.integers(-4, 5, base.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(tmp_path / SAME[n], quality=95 - 15 * n)
    Image.fromarray(picture(1)).resize((200, 150)).save(tmp_path / SAME[4])
    Image.fromarray(picture(1)).save(tmp_path / SAME[5])
    for n, name in enumerate(OTHER):
        Image.fromarray(picture(10 + n)).save(tmp_path / name)
    for n, level in enumerate((0, 255)):
        Image.new("RGB", (40, 30), (level,) * 3).save(tmp_path / ODD[n])
    (tmp_path / ODD[2]).write_bytes(b"no image")
    return tmp_path


def table(**classes: list[str]) -> pd.DataFrame:
    found = [(path, f"d/{name}") for name, paths in classes.items() for path in paths]
    found = pd.DataFrame(found, columns=["image_path", "label"])
    return found.assign(domain="d", split="test", role="both")


def thinned(rows, folder, most=None, bits=None, seed=0, workers=1) -> list[str]:
    how = {"max_images": most, "near_duplicate_bits": bits, "seed": seed, "workers": workers}
    return thin_test(rows, folder, **how)["image_path"].tolist()


def test_near_duplicates_go_within_a_class_and_the_order_remains(folder):
    kept = thinned(table(a=[*ODD, *SAME, *OTHER[:3]], b=OTHER[3:]), folder, bits=6)
    assert len([name for name in kept if name in SAME]) == 1
    assert [name for name in kept if name not in SAME] == [*ODD, *OTHER]
    assert thinned(table(a=SAME[:1], b=SAME[1:2]), folder, bits=6) == SAME[:2]


@pytest.mark.parametrize("bits", [None, 6])
def test_a_class_keeps_at_most_so_many_distinct_images(bits, folder):
    kept = thinned(table(a=OTHER[:4], b=OTHER[4:]), folder, most=2, bits=bits)
    assert len(kept) == 3 and "other4.jpg" in kept
    copies = thinned(table(a=SAME + OTHER), folder, most=3, bits=bits)
    assert len(copies) == 3 and (bits is None or len(set(copies) & set(SAME)) <= 1)
    held = table(a=SAME)
    for split, role in (("train", "train"), ("val", "both"), ("test", "index")):
        assert thinned(held.assign(split=split, role=role), folder, most=1, bits=bits) == SAME


@pytest.mark.parametrize(
    ("bits", "limit", "kept"), [(2, 9, "abc"), (3, 9, "ac"), (0, 9, "abc"), (2, 2, "ab")]
)
def test_the_limit_of_bits_counts_and_no_more_images_are_opened_than_needed(
    bits, limit, kept, monkeypatch
):
    codes, opened = {"a": 0b1000, "b": 0b1111, "c": 0xFFFF}, []
    monkeypatch.setattr(thinning, "open_as_seen", lambda path: opened.append(path) or path.name)
    hashes = {name: SimpleNamespace(content=f"{code:016x}") for name, code in codes.items()}
    monkeypatch.setattr(thinning, "perceptual_hashes", hashes.__getitem__)
    assert distinct(Path("set"), limit, bits, [*codes]) == [*kept]
    assert len(opened) == min(limit, 3)


def test_a_killed_worker_is_reported_in_a_line(folder, monkeypatch):
    monkeypatch.setattr(thinning, "open_as_seen", lambda path: os.kill(os.getpid(), signal.SIGKILL))
    classes = {f"class{n}": [name] for n, name in enumerate(OTHER)}  # more than one worker takes
    with pytest.raises(UserError, match="was killed.* use fewer than 2 workers"):
        thinned(table(**classes), folder, bits=6, workers=2)


def test_choice_depends_on_the_seed_alone(folder):
    both = table(a=SAME + OTHER)
    chosen = {tuple(thinned(both, folder, most=2, seed=seed)) for seed in range(12)}
    assert len(chosen) > 3
    shuffled = both.sample(frac=1, random_state=1).reset_index(drop=True)
    kept = thinned(both, folder, 3, 6)
    assert set(thinned(shuffled, folder, 3, 6)) == set(kept)
    assert thinned(both, folder, 3, 6, workers=2) == kept


def test_the_largest_classes_of_each_domain_remain_equal_ones_by_name():
    labels = "aabbbbbcccddd"
    kept = keep_classes(rows([*labels]), 2, "largest", 0)
    assert kept["label"].unique().tolist() == ["b", "c"]
    both = together(rows([*labels]), rows([*"xyy"], domain="e"), rows(["d"], "test"))
    kept = keep_classes(both, 1, "largest", 0).groupby(["domain", "split"])["label"].agg(set)
    expected = {("d", "train"): {"b"}, ("d", "test"): {"d"}, ("e", "train"): {"y"}}
    assert kept.to_dict() == expected


def test_random_classes_depend_on_the_seed_and_no_other_class():
    chosen = set()
    for seed in range(10):
        few, more = (
            set(keep_classes(rows([*c]), 2, "random", seed)["label"]) for c in ("abcd", "abcde")
        )
        assert len(few) == 2 and few & more
        chosen.add(frozenset(few))
    assert len(chosen) > 2
