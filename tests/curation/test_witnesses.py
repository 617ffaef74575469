"""One witness an image: what all pairs would drop, in time and memory linear in the images."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import pytest
from stand_ins import ALIKE, Differences, evidence

from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import Evidence, clean
from guie.curation.duplicates.findings import dropped
from guie.curation.duplicates.links import find_links

HASHES = ["whole", "content", "centre", "mirrored"]
BITS, COSINE = 3, 0.9


def random_table(rng: np.random.Generator, images: int, labels: list[str]) -> pd.DataFrame:
    """Few pictures, some of them near each other; a few images are in train and in the index."""
    pictures = np.array(["0000", "0001", "0003", "0007", "00ff", "01ff", "f0f0"])
    table = pd.DataFrame(
        {
            "image_path": [f"{n:05d}" for n in rng.permutation(images)],
            "label": rng.choice(labels, images),
            "split": rng.choice(["train", "val", "test"], images, p=[0.7, 0.15, 0.15]),
            "pixels": rng.choice(pictures, images),
            "domain": "d",
        }
    )
    doubles = table[table["split"] == "train"].sample(frac=0.1, random_state=0)
    table = pd.concat([table, doubles.assign(split="test")], ignore_index=True)
    return table.assign(**dict.fromkeys(HASHES, table["pixels"].str.zfill(16)))


def random_features(rng: np.random.Generator, table: pd.DataFrame) -> dict[str, np.ndarray]:
    """By image_path, the same for equal pixels: some hashes that are near are not confirmed."""
    angle = {pixels: rng.uniform(0, 0.7) for pixels in table["pixels"].unique()}
    features = {pixels: np.array([np.cos(a), np.sin(a)]) for pixels, a in angle.items()}
    return dict(zip(table["image_path"], table["pixels"].map(features), strict=True))


class AllPairs:
    """The rules by their definition: every pair of images is compared."""

    def __init__(self, table: pd.DataFrame, features: dict, config: CleaningConfig):
        self.rows = list(table[["image_path", "label", "split", "pixels"]].itertuples(index=False))
        self.features, self.config = features, config

    def copy(self, one: tuple, other: tuple) -> str:
        if one.image_path == other.image_path:
            return ""
        if one.pixels == other.pixels:
            return "exact"
        bits = (int(one.pixels, 16) ^ int(other.pixels, 16)).bit_count()
        cosine = self.features[one.image_path] @ self.features[other.image_path]
        return "near" if self.config.near and bits <= BITS and cosine >= COSINE else ""

    def pairs(self, one_side: bool, alike: bool) -> Iterator[tuple[tuple, tuple, str]]:
        for one, other in itertools.permutations(self.rows, 2):
            same = (one.split == "train") == (other.split == "train")
            shared = not set(one.label.split("|")).isdisjoint(other.label.split("|"))
            if same == one_side and (shared == alike or not one_side):
                if copy := self.copy(one, other):
                    yield one, other, copy

    def drop(self, gone: Iterable[str]) -> None:
        gone = set(gone)
        self.rows = [r for r in self.rows if r.split != "train" or r.image_path not in gone]

    def clean(self) -> dict[str, set[str]]:
        """Cleans `rows`; the images that are leaks and in conflict, where no order matters."""
        leaks = {a.image_path for a, _, _ in self.pairs(False, True) if a.split == "train"}
        if self.config.leaks == "drop_train":
            self.drop(leaks)
        pairs = list(self.pairs(True, False))
        conflicts = {a.image_path for a, _, _ in pairs}
        trained = [pair for pair in pairs if pair[0].split == "train"]
        if self.config.conflicts == "drop_all":
            self.drop(a.image_path for a, _, _ in trained)
        if self.config.conflicts == "keep_first":
            self.drop(later_of(trained))
        policies = {"exact": self.config.exact}
        policies["near"] = self.config.near.action if self.config.near else ""
        pairs = self.pairs(True, True)
        self.drop(later_of(p for p in pairs if policies[p[2]] == "drop" and p[0].split == "train"))
        return {"leak": leaks, "conflict": conflicts}


def later_of(pairs: Iterable[tuple]) -> set[str]:
    """Each image that is in a pair with an earlier one that stays."""
    gone = set()
    for later, earlier in sorted((a.image_path, b.image_path) for a, b, _ in pairs):
        if earlier < later and earlier not in gone:
            gone.add(later)
    return gone


LABELS = {"single": list("abc"), "several": ["a", "b", "a|b", "b|c", "c|d", "a|d|e", "e"]}
NEAR = {action: NearConfig(action=action, distance_max=BITS, similarity_min=COSINE)
        for action in ("drop", "report")} | {"none": None}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("near", ["drop", "report", "none"])
@pytest.mark.parametrize("labels", LABELS)
def test_the_images_dropped_are_those_that_all_pairs_would_drop(labels, near):
    policies = itertools.product(("stop", "drop_train"), ("drop_all", "keep_first", "report"))
    for seed, (leaks, conflicts) in enumerate(policies):
        exact = ("drop", "report")[seed % 2]  # every two policies meet in one of the six
        config = CleaningConfig(
            near=NEAR[near], leaks=leaks, conflicts=conflicts, exact=exact, labels_max=99
        )
        rng = np.random.default_rng(seed)
        table = random_table(rng, 30, LABELS[labels])
        features = random_features(rng, table)
        embed = lambda paths, view, f=features: np.stack([f[path] for path in paths])  # noqa: E731
        left, found, *_ = clean(table, config, evidence(embed))
        pairs = AllPairs(table, features, config)
        expected = pairs.clean()
        rows = [(row.image_path, row.split) for row in pairs.rows]
        assert list(zip(left["image_path"], left["split"], strict=True)) == rows
        trained = table.loc[table["split"] == "train", "image_path"]
        assert dropped(found) == set(trained) - {path for path, side in rows if side == "train"}
        assert set(found.loc[found["kind"] == "leak", "image_path"]) == expected["leak"]
        if conflicts != "keep_first":
            assert set(found.loc[found["kind"] == "conflict", "image_path"]) == expected["conflict"]
        check_witnesses(found, AllPairs(table, features, config))


def check_witnesses(found: pd.DataFrame, pairs: AllPairs) -> None:
    """One finding an image, side and rule, whose witness is a copy of the image."""
    rule = found["kind"].str.split().str[-1]
    side = found["split"] == "train"
    assert not pd.DataFrame({"r": rule, "i": found["image_path"], "s": side}).duplicated().any()
    row_of = {row.image_path: row for row in pairs.rows}
    for pair in found.itertuples():
        copy = pairs.copy(row_of[pair.image_path], row_of[pair.other_path])
        assert copy and pair.kind in ("leak", "conflict", f"{copy} duplicate")
        shared = set(pair.label.split("|")) & set(pair.other_label.split("|"))
        assert pair.kind == "leak" or bool(shared) == pair.kind.endswith("duplicate")
        assert ((pair.split == "train") == (pair.other_split == "train")) == (pair.kind != "leak")
        if pair.kind.endswith("duplicate"):
            assert pair.other_path < pair.image_path
            assert pair.action == "reported" or pair.other_path not in dropped(found)


def test_the_witness_of_a_leak_is_the_one_that_differs_least():
    rows = [("a", "train", "0000"), ("b", "test", "0001"), ("c", "test", "0003"),
            ("d", "train", "0003"), ("c", "train", "0003"), ("e", "train", "00ff")]  # fmt: skip
    table = pd.DataFrame(rows, columns=["image_path", "split", "pixels"])
    hashes = dict.fromkeys(HASHES, table["pixels"].str.zfill(16))
    table = table.assign(label="x", domain="d", **hashes)
    angle = {"a": 0.0, "b": 0.3, "c": 0.1, "e": 0.0}
    embed = lambda paths, view: np.array([[np.cos(angle[p]), np.sin(angle[p])] for p in paths])  # noqa: E731
    differences = Differences(lambda one, other: abs(angle[one] - angle[other]) / 100)
    found = clean(table, CleaningConfig(near=NEAR["drop"]), Evidence(embed, differences)).findings
    leaks = found[found["kind"] == "leak"].set_index("image_path")
    assert leaks["other_path"].to_dict() == {"a": "c", "c": "b", "d": "c"}
    assert leaks["distance"].to_dict() == {"a": 2, "c": 1, "d": 0}
    cosines = {"a": np.cos(0.1), "c": np.cos(0.2), "d": 1.0}
    assert leaks["similarity"].to_dict() == pytest.approx(cosines)
    assert leaks["difference"].to_dict() == pytest.approx({"a": 0.001, "c": 0.002, "d": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize(("conflicts", "labels"), [("report", "{}"), ("keep_first", "all|{}")])
def test_placeholders_cost_what_their_images_cost(conflicts, labels):
    """1,500 files of seven pictures: all pairs would be millions, and four times those of half."""
    near = NearConfig(distance_max=BITS, similarity_min=-1)
    config = CleaningConfig(leaks="declared", conflicts=conflicts, near=near, labels_max=9_999)

    def peak(images: int) -> int:
        classes = [labels.format(n) for n in range(images // 3)]
        table = random_table(np.random.default_rng(0), images, classes)
        tracemalloc.start()
        embed = evidence(lambda paths, view: np.ones((len(paths), 1)))
        _, found, links, *_ = clean(table, config, embed)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(links.near) <= 7 * 6
        for _, of_kind in found.groupby("kind"):
            assert len(of_kind) <= len(table)
        return peak

    whole = peak(1_500)
    assert whole < 1_500 * 4_000
    assert whole < 2.4 * peak(750)


def test_only_images_with_near_hashes_need_features():
    table = random_table(np.random.default_rng(0), 2_000, ["a"])
    embedded: list[str] = []

    def embed(paths, view):
        embedded.extend(paths)
        return np.ones((len(paths), 1))

    find_links(table, NEAR["drop"], embed, ALIKE)
    pixels = table.drop_duplicates("image_path").set_index("image_path")["pixels"]
    assert sorted(pixels[embedded]) == ["0000", "0001", "0003", "0007", "00ff", "01ff"]
