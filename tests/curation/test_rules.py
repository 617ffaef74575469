"""What links mean: leaks, conflicts, duplicates, placeholders; against a twin that compares all pairs."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import pytest
from tables import ALIKE, Differences

from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import clean
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import NEAR, Links, find_links
from guie.curation.duplicates.rules import disjoint, find_conflicts, find_duplicates, find_leaks
from guie.curation.findings import COLUMNS, SHOWN, dropped, findings, stops, too_many
from guie.rows.fingerprints import Hashes

BOTH = {"exact": "drop", "near": "drop"}


def rows(*specs: str) -> pd.DataFrame:
    """`path label split pixels` each; hashes are empty: only equal pixels link."""
    table = pd.DataFrame(
        [spec.split() for spec in specs], columns=["image_path", "label", "split", "pixels"]
    )
    return table.assign(domain="d", **dict.fromkeys(Hashes._fields, ""))


def no_features(paths, view):
    raise AssertionError("features are computed where there is nothing to confirm")


def linked(table: pd.DataFrame) -> tuple[pd.DataFrame, Links]:
    return table, find_links(table, NearConfig(), no_features, ALIKE)


def chained(*pairs: tuple[int, int], images: str, grade: Grade = Grade.SURE) -> Links:
    """Links between pictures 0, 1, ... of these images, of equal strength in the order given."""
    both = [end for one, other in pairs for end in ((one, other), (other, one))]
    near = pd.DataFrame(both, columns=["picture", "other"]).reindex(columns=[*NEAR], fill_value=0)
    near = near.assign(sure_limit=0.2, copy_limit=0.3, grade=grade).astype(NEAR)
    return Links(pd.Series(range(len(images)), list(images)), near, pd.DataFrame())


def shown(found: pd.DataFrame) -> list[str]:
    columns = zip(found["image_path"], found["other_path"], found["action"], strict=True)
    return sorted(f"{path} {other} {action}" for path, other, action in columns)


LEAKS = ["a x train 1", "b y test 1", "c y val 2", "d x train 2", "e x train 3"]
CONFLICTS = [
    *("a x train 1", "b y train 1", "c x|z train 2", "d z train 2", "e y test 1"),
    *("p x test 4", "q y test 4"),
]
HELD = ["p q reported", "q p reported"]  # whatever the policy
MET = ["m x train 1", "m x test 1"]  # an image in train and in the index is no copy of itself
EQUAL = ["c x train 1", "b x train 1", "a x train 1", "d x test 2", "e x val 2"]


@pytest.mark.parametrize(
    ("find", "policy", "specs", "found"),
    [
        (find_leaks, "drop_train", LEAKS, ["a b dropped", "d c dropped"]),
        (find_leaks, "stop", LEAKS, ["a b stop", "d c stop"]),
        (find_leaks, "declared", LEAKS, ["a b declared", "d c declared"]),
        (find_leaks, "stop", MET, []),
        (find_leaks, "stop", [*MET, "n x train 1"], ["n m stop"]),
        (find_leaks, "stop", [*MET, "n x test 1"], ["m n stop"]),
        (find_conflicts, "drop_all", CONFLICTS, ["a b both dropped", "b a both dropped", *HELD]),
        (find_conflicts, "keep_first", CONFLICTS, ["b a dropped", *HELD]),
        (find_conflicts, "report", CONFLICTS, ["a b reported", "b a reported", *HELD]),
        (find_conflicts, "stop", CONFLICTS, ["a b stop", "b a stop", *HELD]),
        (find_duplicates, BOTH, EQUAL, ["b a dropped", "c a dropped", "e d reported"]),
        (
            find_duplicates,
            {"exact": "report", "near": "drop"},
            EQUAL,
            ["b a reported", "c a reported", "e d reported"],
        ),
        (  # what is only reported stays, with its other labels
            find_duplicates,
            {"exact": "report", "near": "drop"},
            ["a x train 1", "b x|y train 1", "c y train 1"],
            ["b a reported", "c b reported"],
        ),
    ],
)
def test_what_each_policy_does(find, policy, specs, found):
    assert shown(find(*linked(rows(*specs)), policy)) == found


def test_a_chain_loses_only_copies_of_an_image_that_stays():
    """a ~ b ~ c ~ d, but a and c are no copies: b goes for a, d for c."""
    table = rows("a x train 1", "b x train 2", "c x train 3", "d x train 4")
    found = find_duplicates(table, chained((0, 1), (1, 2), (2, 3), images="abcd"), BOTH)
    assert shown(found) == ["b a dropped", "d c dropped"]
    assert found["limit"].tolist() == [0.3, 0.3] and set(found["kind"]) == {"near duplicate"}
    star, policies = chained((2, 1), (2, 0), images="abc"), {"exact": "report", "near": "drop"}
    found = find_duplicates(table.head(3), star, {"exact": "drop", "near": "report"})
    assert shown(found) == ["c a reported"], "the first of several copies is named"
    several = rows("b x train 1", "bb y train 2", "c x|y train 1")
    links = Links(pd.Series([0, 1, 0], several["image_path"]), star.near.head(0), pd.DataFrame())
    assert shown(find_duplicates(several, links, policies)) == ["c b reported"]
    links = Links(links.pictures, chained((0, 1), images="ab").near, pd.DataFrame())
    found = find_duplicates(several, links, policies)
    assert shown(found) == ["c bb dropped"], "a copy that is dropped comes before one that is not"


def test_doubtful_copies_are_reported_for_images_that_stay():
    table = rows("a x train 1", "b y train 2", "c x train 3", "c2 x test 3", "d x train 4")
    doubtful = chained((0, 1), (0, 2), images="abcd", grade=Grade.COPY)
    doubtful = Links(pd.Series([0, 1, 2, 2, 3], table["image_path"]), doubtful.near, pd.DataFrame())
    leaks = find_leaks(table, doubtful, "drop_train").set_index("image_path")
    assert leaks["sure"].to_dict() == {"a": False, "c": True}
    assert leaks["limit"].to_dict() == {"a": 0.2, "c": 0.0}, "equal pictures have no difference"
    assert leaks["action"].to_dict() == {"a": "reported", "c": "dropped"}
    conflicts = find_conflicts(table, doubtful, "keep_first")
    assert shown(conflicts) == ["a b reported", "b a reported"] and not conflicts["sure"].any()
    assert shown(find_duplicates(table, doubtful, BOTH)) == ["c a dropped"]


def test_a_placeholder_is_named_and_dropped_from_all_its_labels():
    """One picture under five labels, train and test; another under three."""
    under = [f"p{n} c{n} {'test' if n == 4 else 'train'} 1" for n in range(5)]
    more = ["q0 c0 train 2", "q1 c1 train 2", "q2 c2|c1 train 2", "r c0 train 3"]
    cleaned = clean(rows(*under, *more), CleaningConfig(leaks="drop_train"), no_features, ALIKE)
    found = cleaned.findings[cleaned.findings["kind"] == "placeholder"]
    others = [f"p{n} p0 dropped" for n in (1, 2, 3)]
    assert shown(found) == ["p0 p1 dropped", *others, "p4 p0 reported"]
    assert (found["labels"] == 5).all() and found["other_label"].tolist() == ["c1", *["c0"] * 4]
    assert set(found["copy"]) == {"exact"} and set(found["other_split"]) == {"train"}
    assert not (cleaned.findings["kind"] == "leak").any(), "it is not a leak too"
    assert set(cleaned.table["image_path"]) == {"p4", "r"}, "three labels are a conflict"
    assert cleaned.emptied["conflicts"] == ["c1", "c2"]
    assert disjoint(["a", "b", "a|b", "b|c", "d|e"]) == 3 and disjoint([]) == 0


@pytest.mark.parametrize(("labels_max", "kind"), [(5, "placeholder"), (6, "conflict")])
def test_a_placeholder_that_was_saved_again_is_the_same_picture(labels_max, kind):
    table = rows(*(f"p{n} c{n} train {n // 2}" for n in range(6)))
    table["whole"] = ["0" * 15 + str(n // 2) for n in range(6)]
    config = CleaningConfig(labels_max=labels_max, conflicts="report")
    found = clean(table, config, lambda paths, view: np.ones((len(paths), 1)), ALIKE).findings
    assert set(found["kind"]) == {kind} and len(found) == 6


def test_refusals_show_some_pairs_and_count_the_rest():
    table = rows(
        *(f"{side[0]}{n:02d} x {side} {n}" for side in ("train", "val") for n in range(14))
    )
    lines = stops(findings([find_leaks(*linked(table), "stop")])).splitlines()
    assert lines[0].startswith("14 training images are copies of val or test images")
    assert lines[1].startswith("t00 (train, x) and v00 (val, x): equal pixels")
    assert len(lines) == 1 + SHOWN + 1 and lines[-1] == "and 4 more"
    assert stops(findings([])) == ""


def test_a_domain_loses_at_most_its_share_and_always_one():
    trained = rows(*(f"{n:02d} x train {n}" for n in range(20)))
    found = pd.DataFrame({"kind": "conflict", "image_path": trained["image_path"]})
    assert too_many(found, trained, trained.head(1), 0.0) == []
    assert too_many(found, trained, trained.head(2), 0.1) == []
    (line,) = too_many(found, trained, trained.head(3), 0.1)
    assert line == "3 of 20 training images of d (15.0%)"
    assert too_many(found.assign(kind="exact duplicate"), trained, trained, 0.1) == []


BITS, COSINE = 3, 0.9
HASHES = ["0000", "0001", "0003", "0007", "00ff", "01ff", "f0f0"]


def random_table(rng: np.random.Generator, images: int, labels: list[str]) -> pd.DataFrame:
    """Few pictures, some of them near each other; a few images are in train and in the index."""
    table = pd.DataFrame(
        {
            "image_path": [f"{n:05d}" for n in rng.permutation(images)],
            "label": rng.choice(labels, images),
            "split": rng.choice(["train", "val", "test"], images, p=[0.7, 0.15, 0.15]),
            "pixels": rng.choice(HASHES, images),
            "domain": "d",
        }
    )
    doubles = table[table["split"] == "train"].sample(frac=0.1, random_state=0)
    table = pd.concat([table, doubles.assign(split="test")], ignore_index=True)
    return table.assign(**dict.fromkeys(Hashes._fields, table["pixels"].str.zfill(16)))


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
        """Clean `rows`; return the images that are leaks and in conflict, where no order matters."""
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


@pytest.mark.slow
@pytest.mark.parametrize("near", ["drop", "report", None])
@pytest.mark.parametrize("labels", ["a b c", "a b a|b b|c c|d a|d|e e"])
def test_the_images_dropped_are_those_that_all_pairs_would_drop(labels, near):
    settings = {"distance_max": BITS, "similarity_min": COSINE}
    policies = itertools.product(("stop", "drop_train"), ("drop_all", "keep_first", "report"))
    for seed, (leaks, conflicts) in enumerate(policies):
        config = CleaningConfig(
            near=near and NearConfig(action=near, **settings),
            leaks=leaks,
            conflicts=conflicts,
            exact=("drop", "report")[seed % 2],  # every two policies meet in one of the six
            labels_max=99,
        )
        rng = np.random.default_rng(seed)
        table = random_table(rng, 30, labels.split())
        # The same for equal pixels: some hashes that are near are not confirmed
        angle = {pixels: rng.uniform(0, 0.7) for pixels in HASHES}
        unit = {pixels: np.array([np.cos(a), np.sin(a)]) for pixels, a in angle.items()}
        features = dict(zip(table["image_path"], table["pixels"].map(unit), strict=True))
        embed = lambda paths, view, f=features: np.stack([f[path] for path in paths])  # noqa: E731
        left, found, *_ = clean(table, config, embed, ALIKE)
        pairs = AllPairs(table, features, config)
        expected = pairs.clean()
        kept = [(row.image_path, row.split) for row in pairs.rows]
        assert list(zip(left["image_path"], left["split"], strict=True)) == kept
        trained = table.loc[table["split"] == "train", "image_path"]
        assert dropped(found) == set(trained) - {path for path, side in kept if side == "train"}
        assert set(found.loc[found["kind"] == "leak", "image_path"]) == expected["leak"]
        if conflicts != "keep_first":
            assert set(found.loc[found["kind"] == "conflict", "image_path"]) == expected["conflict"]
        assert found.columns.tolist() == COLUMNS


def test_the_witness_of_a_leak_is_the_one_that_differs_least():
    table = rows(*"a x train 0000,b x test 0001,c x test 0003,d x train 0003".split(","))
    table = pd.concat([table, rows("c x train 0003", "e x train 00ff")], ignore_index=True)
    table = table.assign(**dict.fromkeys(Hashes._fields, table["pixels"].str.zfill(16)))
    angle = {"a": 0.0, "b": 0.3, "c": 0.1, "e": 0.0}
    embed = lambda paths, view: np.array([[np.cos(angle[p]), np.sin(angle[p])] for p in paths])  # noqa: E731
    differences = Differences(lambda one, other: abs(angle[one] - angle[other]) / 100)
    near = NearConfig(distance_max=BITS, similarity_min=COSINE)
    found = clean(table, CleaningConfig(near=near), embed, differences).findings
    leaks = found[found["kind"] == "leak"].set_index("image_path")
    assert leaks["other_path"].to_dict() == {"a": "c", "c": "b", "d": "c"}
    assert leaks["distance"].to_dict() == {"a": 2, "c": 1, "d": 0}
    cosines = {"a": np.cos(0.1), "c": np.cos(0.2), "d": 1.0}
    assert leaks["similarity"].to_dict() == pytest.approx(cosines)
    assert leaks["difference"].to_dict() == pytest.approx({"a": 0.001, "c": 0.002, "d": 0.0})
