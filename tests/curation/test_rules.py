"""What links mean: leaks, conflicts, duplicates, placeholders; and how pairs become links."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageOps
from stand_ins import ALIKE, evidence

from guie.base.errors import UserError
from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import clean
from guie.curation.duplicates.findings import COLUMNS, SHOWN, dropped, findings, refuse, too_many
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import MEASURES, NEAR, Links, find_links
from guie.curation.duplicates.rules import disjoint, find_conflicts, find_duplicates, find_leaks
from guie.rows.checks import FINGERPRINTS, VERIFY, Checks
from guie.rows.comparison import content
from guie.rows.hashes import Hashes, hash_bytes, perceptual_hashes

BOTH = {"exact": "drop", "near": "drop"}


def picture(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A smooth random picture, like no other."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


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
    near = pd.DataFrame(both, columns=["picture", "other"])
    measures = dict.fromkeys(MEASURES, 0) | {"sure_limit": 0.2, "copy_limit": 0.3, "grade": grade}
    near = near.assign(**measures).astype(NEAR)
    return Links(pd.Series(range(len(images)), list(images)), near, pd.DataFrame())


def shown(found: pd.DataFrame) -> list[str]:
    columns = zip(found["image_path"], found["other_path"], found["action"], strict=True)
    return sorted(f"{path} {other} {action}" for path, other, action in columns)


def test_hashes_of_borders_mirror_images_and_odd_sizes():
    image = picture(0)
    assert perceptual_hashes(ImageOps.mirror(image)).mirrored == perceptual_hashes(image).content
    assert perceptual_hashes(image).mirrored != perceptual_hashes(image).content
    for size in ((1, 1), (1, 500), (2, 2), (31, 7)):
        noise = Image.effect_noise(size, 80).convert("RGB")
        assert all(len(value) in (0, 16) for value in perceptual_hashes(noise))
    assert set(perceptual_hashes(Image.new("RGB", (50, 40), "red"))) == {""}, "no structure"
    speck = Image.new("RGB", (300, 300), "white")
    speck.putpixel((150, 150), (0, 0, 0))
    assert content(speck).size == (300, 300)
    for colour in ("white", "black", (90, 120, 60)):
        framed = ImageOps.expand(ImageOps.expand(image, 9, "white"), 7, colour)
        assert (np.abs(np.subtract(content(framed).size, image.size)) <= 2).all()
        pair = perceptual_hashes(framed).content, perceptual_hashes(content(image)).whole
        one, other = hash_bytes(pair)
        assert np.unpackbits(one ^ other).sum() <= 6


def test_fingerprints_are_of_the_decoded_picture_and_agree_with_a_plain_check(tmp_path):
    image = picture(2)
    image.save(tmp_path / "a.png")
    image.save(tmp_path / "b.bmp")
    picture(3).save(tmp_path / "c.png")
    turned = Image.Exif()
    turned[0x0112] = 3
    image.rotate(180).save(tmp_path / "d.png", exif=turned)
    (tmp_path / "e.png").write_text("none")
    names = ["a.png", "b.bmp", "c.png", "d.png", "e.png", "f.png"]
    checks = [Checks(check, tmp_path, names) for check in (FINGERPRINTS, VERIFY)]
    for check in checks:
        check.fill(1, "set")
    prints, verdicts = (check.table() for check in checks)
    pixels = prints["pixels"]
    assert pixels["a.png"] == pixels["b.bmp"] == pixels["d.png"] != pixels["c.png"]
    pd.testing.assert_frame_equal(prints[verdicts.columns.tolist()], verdicts)
    assert (prints.loc[["e.png", "f.png"], "pixels"] == "").all()


def test_a_leak_is_named_from_the_training_image_whichever_comes_first_by_path():
    table = rows("a x train 1", "b y test 1", "c y val 2", "d x train 2", "e x train 3")
    assert shown(find_leaks(*linked(table), "drop_train")) == ["a b dropped", "d c dropped"]
    assert shown(find_leaks(*linked(table), "stop")) == ["a b stop", "d c stop"]
    assert shown(find_leaks(*linked(table), "declared")) == ["a b declared", "d c declared"]


def test_an_image_in_train_and_index_is_no_leak_but_a_copy_of_it_is():
    """index_is_train declares the path, not the picture."""
    met = ["m x train 1", "m x test 1"]
    assert find_leaks(*linked(rows(*met)), "stop").empty
    assert shown(find_leaks(*linked(rows(*met, "n x train 1")), "stop")) == ["n m stop"]
    assert shown(find_leaks(*linked(rows(*met, "n x test 1")), "stop")) == ["m n stop"]


def test_equal_images_are_all_linked_to_each_kind_of_row():
    """Ten copies in train and one in test: every one of them is a leak."""
    table = rows(*(f"t{n} x train 1" for n in range(10)), "z y test 1")
    assert len(find_leaks(*linked(table), "drop_train")) == 10
    left, found, *_ = clean(table, CleaningConfig(leaks="drop_train"), evidence(no_features))
    assert left["image_path"].tolist() == ["z"] and set(found["kind"]) == {"leak"}
    assert found.columns.tolist() == COLUMNS


def test_conflicts_are_of_one_side_and_labels_that_share_nothing():
    table = rows("a x train 1", "b y train 1", "c x|z train 2", "d z train 2", "e y test 1")
    found = linked(table)
    assert shown(find_conflicts(*found, "drop_all")) == ["a b both dropped", "b a both dropped"]
    assert shown(find_conflicts(*found, "keep_first")) == ["b a dropped"]
    assert shown(find_conflicts(*found, "stop")) == ["a b stop", "b a stop"]
    held = linked(rows("a x test 1", "b y test 1"))
    for policy in ("drop_all", "keep_first", "stop"):
        assert shown(find_conflicts(*held, policy)) == ["a b reported", "b a reported"]
    both = clean(table.head(2), CleaningConfig(), evidence(no_features))
    assert both.table.empty and both.emptied == {"conflicts": ["x", "y"]}


def test_of_equal_images_the_first_by_path_stays():
    table = rows("c x train 1", "b x train 1", "a x train 1", "d x test 2", "e x val 2")
    found = find_duplicates(*linked(table), BOTH)
    assert shown(found) == ["b a dropped", "c a dropped", "e d reported"]
    assert dropped(found) == {"b", "c"}
    found = find_duplicates(*linked(table), {"exact": "report", "near": "drop"})
    assert set(found["action"]) == {"reported"}


def test_a_chain_loses_only_copies_of_an_image_that_stays():
    """a ~ b ~ c ~ d, but a and c are no copies: b goes for a, d for c."""
    table = rows("a x train 1", "b x train 2", "c x train 3", "d x train 4")
    chain = chained((0, 1), (1, 2), (2, 3), images="abcd")
    found = find_duplicates(table, chain, BOTH)
    assert shown(found) == ["b a dropped", "d c dropped"]
    assert found["limit"].tolist() == [0.3, 0.3] and set(found["kind"]) == {"near duplicate"}
    star = chained((2, 1), (2, 0), images="abc")
    found = find_duplicates(table.head(3), star, {"exact": "drop", "near": "report"})
    assert shown(found) == ["c a reported"], "the first of several copies is named"


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


def placeholders() -> pd.DataFrame:
    """One picture under five labels, train and test; another under three."""
    under = [f"p{n} c{n} {'test' if n == 4 else 'train'} 1" for n in range(5)]
    return rows(*under, "q0 c0 train 2", "q1 c1 train 2", "q2 c2|c1 train 2", "r c0 train 3")


def test_a_placeholder_is_named_and_dropped_from_all_its_labels():
    config = CleaningConfig(leaks="drop_train")
    cleaned = clean(placeholders(), config, evidence(no_features))
    found = cleaned.findings[cleaned.findings["kind"] == "placeholder"]
    assert shown(found) == [
        "p0 p1 dropped",
        *(f"p{n} p0 dropped" for n in (1, 2, 3)),
        "p4 p0 reported",
    ]
    assert (found["labels"] == 5).all() and found["other_label"].tolist() == ["c1", *["c0"] * 4]
    assert set(found["copy"]) == {"exact"} and set(found["other_split"]) == {"train"}
    assert not (cleaned.findings["kind"] == "leak").any(), "it is no leak besides"
    assert set(cleaned.table["image_path"]) == {"p4", "r"}, "three labels are a conflict"


def test_a_placeholder_that_was_saved_anew_is_the_same_picture():
    table = rows(*(f"p{n} c{n} train {n // 2}" for n in range(6)))
    table["whole"] = ["0" * 15 + str(n // 2) for n in range(6)]
    embed = lambda paths, view: np.ones((len(paths), 1))  # noqa: E731
    cleaned = clean(table, CleaningConfig(labels_max=5, leaks="stop"), evidence(embed))
    assert set(cleaned.findings["kind"]) == {"placeholder"} and cleaned.table.empty
    assert (cleaned.findings["labels"] == 6).all()
    few = clean(table, CleaningConfig(labels_max=6, conflicts="report"), evidence(embed))
    assert set(few.findings["kind"]) == {"conflict"}


def test_labels_that_share_a_class_count_once():
    assert disjoint(["a", "b", "a|b", "b|c", "d|e"]) == 3 and disjoint([]) == 0


def near_table(similarity: float) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    table = rows("a x train 1", "b x train 2", "c x train 3")
    table["whole"] = ["0" * 16, "0" * 15 + "3", "f" * 16]
    angle = np.arccos(similarity)
    features = {"a": [1.0, 0.0], "b": [np.cos(angle), np.sin(angle)], "c": [1.0, 0.0]}
    return table, {path: np.array(row, np.float32) for path, row in features.items()}


@pytest.mark.parametrize(("similarity", "linked"), [(0.95, True), (0.85, False)])
def test_near_hashes_need_near_features_too(similarity, linked):
    table, features = near_table(similarity)

    def embed(paths, view):
        assert view == "content", "a given threshold needs no calibration"
        return np.stack([features[path] for path in paths])

    near = find_links(table, NearConfig(similarity_min=0.9), embed, ALIKE).near
    assert len(near) == 2 * linked, "c has the features of a, and another hash"
    if linked:
        assert near[["picture", "other", "distance"]].to_numpy().tolist() == [[0, 1, 2], [1, 0, 2]]
        assert near["similarity"].tolist() == pytest.approx([0.95, 0.95], abs=1e-3)
        assert near["grade"].tolist() == [Grade.SURE] * 2 and not near["confirmed"].any()


@pytest.mark.parametrize(("of_copies", "linked"), [(0.8, True), (0.96, True), (0.99, False)])
def test_without_a_threshold_the_models_own_is_taken(of_copies, linked):
    """The minimum is twice as far from 1 as the cosine of copies."""
    table, features = near_table(0.94)

    def embed(paths, view):
        rows = np.stack([features[path] for path in paths])
        angle = np.arccos(of_copies) if view == "altered" else 0.0
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        return rows @ turn

    assert len(find_links(table, NearConfig(), embed, ALIKE).near) == 2 * linked


@pytest.mark.parametrize(("label", "kind"), [("x|y", "in common"), ("y", "none in common")])
def test_pairs_with_a_common_label_have_limits_of_their_own(label, kind):
    table, features = near_table(0.95)
    table["label"] = ["x|z", label, "w"]
    embed = lambda paths, view: np.stack([features[path] for path in paths])  # noqa: E731
    links = find_links(table, NearConfig(similarity_min=0.9), embed, ALIKE)
    assert links.limits["labels"].tolist() == [kind]
    pixels = find_links(pd.concat([table, table.tail(1)]), None, no_features, ALIKE)
    assert pixels.near.empty and pixels.pictures.to_dict() == {"a": 0, "b": 1, "c": 2}


def test_refusals_show_some_pairs_and_count_the_rest():
    table = rows(
        *(f"t{n:02d} x train {n}" for n in range(14)), *(f"z{n:02d} y test {n}" for n in range(14))
    )
    found = findings([find_leaks(*linked(table), "stop")])
    with pytest.raises(UserError) as caught:
        refuse(found)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("14 training images are copies of val or test images")
    assert lines[1].startswith("t00 (train, x) and z00 (test, y): equal pixels")
    assert len(lines) == 1 + SHOWN + 1 and lines[-1] == "and 4 more"
    refuse(findings([]))


def test_a_domain_loses_at_most_its_share_and_always_one():
    trained = rows(*(f"{n:02d} x train {n}" for n in range(20)))
    found = pd.DataFrame({"kind": "conflict", "image_path": trained["image_path"]})
    assert too_many(found, trained, trained.head(1), 0.0) == []
    assert too_many(found, trained, trained.head(2), 0.1) == []
    (line,) = too_many(found, trained, trained.head(3), 0.1)
    assert line == "3 of 20 training images of d (15.0%)"
    assert too_many(found.assign(kind="exact duplicate"), trained, trained, 0.1) == []


def test_features_without_a_model_are_refused():
    for block in ({"cap": "diverse"}, {"suggest_merges": 0.9}):
        with pytest.raises(ValueError, match="needs (model|features; set model)"):
            CleaningConfig.model_validate(block)
        CleaningConfig.model_validate({**block, "model": "runs/demo"})
