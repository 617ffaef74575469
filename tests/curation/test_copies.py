"""Hashes, the search for near ones, and what links mean: leaks, conflicts, duplicates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageOps
from stand_ins import ALIKE, evidence

from guie.base.errors import UserError
from guie.config.data import CleaningConfig, NearConfig
from guie.curation.cleaning import clean
from guie.curation.duplicates import pairs
from guie.curation.duplicates.findings import COLUMNS, SHOWN, dropped, findings, refuse
from guie.curation.duplicates.limits import Grade
from guie.curation.duplicates.links import NEAR, Links, find_links
from guie.curation.duplicates.pairs import NEAREST, close_pairs
from guie.curation.duplicates.rules import find_conflicts, find_duplicates, find_leaks
from guie.rows.checks import FINGERPRINTS, VERIFY, Checks
from guie.rows.comparison import content
from guie.rows.hashes import hash_bytes, perceptual_hashes

SURE = {"distance": 3, "similarity": 0.9, "difference": 0.1, "sure_limit": 0.3, "copy_limit": 0.3}
SURE |= {"grade": Grade.SURE, "confirmed": False}


def picture(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A smooth random picture, like no other."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def rows(*specs: str) -> pd.DataFrame:
    """`path label split pixels` each; hashes are empty: only equal pixels link."""
    table = pd.DataFrame(
        [spec.split() for spec in specs], columns=["image_path", "label", "split", "pixels"]
    )
    return table.assign(domain="d", **dict.fromkeys(["whole", "content", "centre", "mirrored"], ""))


def no_features(paths, view):
    raise AssertionError("features are asked for where there is nothing to confirm")


def linked(table: pd.DataFrame) -> tuple[pd.DataFrame, Links]:
    return table, find_links(table, NearConfig(), no_features, ALIKE)


def shown(found: pd.DataFrame) -> list[str]:
    columns = zip(found["image_path"], found["other_path"], found["action"], strict=True)
    return sorted(f"{path} {other} {action}" for path, other, action in columns)


def test_hash_of_a_mirror_image_is_the_mirrored_hash():
    image = picture(0)
    assert perceptual_hashes(ImageOps.mirror(image)).mirrored == perceptual_hashes(image).content
    assert perceptual_hashes(image).mirrored != perceptual_hashes(image).content


@pytest.mark.parametrize("colour", ["white", "black", (90, 120, 60)])
def test_a_border_is_taken_off_and_so_is_the_margin_within(colour):
    image = picture(1)
    framed = ImageOps.expand(ImageOps.expand(image, 9, "white"), 7, colour)
    box = np.subtract(content(framed).size, image.size)
    assert (np.abs(box) <= 2).all()
    distance = hash_bytes(
        [perceptual_hashes(framed).content, perceptual_hashes(content(image)).whole]
    )
    assert np.unpackbits(distance[0] ^ distance[1]).sum() <= 6


def test_a_picture_without_structure_has_no_hash():
    assert set(perceptual_hashes(Image.new("RGB", (50, 40), "red"))) == {""}
    speck = Image.new("RGB", (300, 300), "white")
    speck.putpixel((150, 150), (0, 0, 0))
    assert content(speck).size == (300, 300)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (2, 2), (31, 7)])
def test_odd_sizes_are_hashed(size):
    image = Image.effect_noise(size, 80).convert("RGB")
    assert all(len(value) in (0, 16) for value in perceptual_hashes(image))


def close_pairs_slowly(prints: pd.DataFrame, radius: int, mirrored: bool, nearest: int) -> dict:
    found, rows = {}, prints.to_dict("records")
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            for a in ("whole", "content", *(["mirrored"] if mirrored else [])):
                for b in ("whole", "content", "centre"):
                    if i == j or not one[a] or not other[b]:
                        continue
                    bits = (int(one[a], 16) ^ int(other[b], 16)).bit_count()
                    if bits <= radius:
                        key = (min(i, j), max(i, j))
                        found[key] = min(bits, found.get(key, 64))
    proposed = {}
    for i in range(len(rows)):
        own = sorted((bits, sum(key) - i, key) for key, bits in found.items() if i in key)
        proposed |= {key: bits for bits, _, key in own[:nearest]}
    return proposed


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("radius", [0, 5, 10])
@pytest.mark.parametrize("nearest", [2, 29])
@pytest.mark.parametrize("lookup", [0, pairs.LOOKUP], ids=["by words", "by comparing"])
def test_close_pairs_agree_with_their_definition(lookup, nearest, radius, mirrored, monkeypatch):
    sizes = {"BLOCK": 7, "MANY": 20, "LOOKUP": lookup, "NEAREST": nearest}
    for name, size in sizes.items():
        monkeypatch.setattr(pairs, name, size)
    rng = np.random.default_rng(radius)
    centres = rng.integers(0, 2**63, 6)

    def near() -> str:
        value = int(rng.choice(centres))
        for bit in rng.integers(0, 64, rng.integers(0, 9)):
            value ^= 1 << int(bit)
        return "" if rng.random() < 0.1 else f"{value:016x}"

    names = ["whole", "content", "centre", "mirrored"]
    prints = pd.DataFrame([[near() for _ in names] for _ in range(30)], columns=names)
    found = close_pairs(prints, radius, mirrored)
    ends = zip(found["first"], found["second"], strict=True)
    expected = close_pairs_slowly(prints, radius, mirrored, nearest)
    assert dict(zip(ends, found["distance"], strict=True)) == expected
    parts = pd.concat([close_pairs(prints, radius, mirrored, (n, 4)) for n in range(4)])
    parts = parts.drop_duplicates().sort_values(["first", "second"], ignore_index=True)
    pd.testing.assert_frame_equal(parts, found)


def test_many_images_of_one_hash_make_few_pairs_and_link_all():
    columns = ["whole", "content", "centre", "mirrored"]
    prints = pd.DataFrame("f0f0f0f0f0f0f0f0", index=range(500), columns=columns)
    found = close_pairs(prints, 10, False)
    assert len(found) < 500 * NEAREST
    assert set(found.loc[found["first"] == 0, "second"]) == set(range(1, 500))


def test_no_hash_at_all_is_no_pair():
    assert close_pairs(rows("a x train 1", "b x train 2"), 10, True).empty


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


def test_an_image_in_train_and_index_is_no_leak_but_a_copy_of_it_is():
    """What index_is_train declares is the path, not the picture."""
    met = ["m x train 1", "m x test 1"]
    assert find_leaks(*linked(rows(*met)), "stop").empty
    assert shown(find_leaks(*linked(rows(*met, "n x train 1")), "stop")) == ["n m stop"]


def test_conflicts_are_of_one_side_and_labels_that_share_nothing():
    table = rows("a x train 1", "b y train 1", "c x|z train 2", "d z train 2", "e y test 1")
    found = linked(table)
    assert shown(find_conflicts(*found, "drop_all")) == ["a b both dropped", "b a both dropped"]
    assert shown(find_conflicts(*found, "keep_first")) == ["b a dropped"]
    assert shown(find_conflicts(*found, "stop")) == ["a b stop", "b a stop"]
    held = linked(rows("a x test 1", "b y test 1"))
    for policy in ("drop_all", "keep_first", "stop"):
        assert shown(find_conflicts(*held, policy)) == ["a b reported", "b a reported"], (
            "evaluation is not touched"
        )


def test_a_rule_may_leave_nothing():
    table = rows("a x train 1", "b y train 1")
    assert clean(table, CleaningConfig(), evidence(no_features)).table.empty


def test_of_equal_images_the_first_by_path_stays():
    table = rows("c x train 1", "b x train 1", "a x train 1", "d x test 2", "e x val 2")
    found = find_duplicates(*linked(table), {"exact": "drop", "near": "drop"})
    assert shown(found) == ["b a dropped", "c a dropped", "e d reported"]
    assert dropped(found) == {"b", "c"}
    found = find_duplicates(*linked(table), {"exact": "report", "near": "drop"})
    assert set(found["action"]) == {"reported"}


def test_a_chain_loses_only_what_is_linked_to_something_that_stays():
    """a ~ b ~ c ~ d, but a and c are no copies: b goes for a, d for c."""
    table = rows("a x train 1", "b x train 2", "c x train 3", "d x train 4")
    near = pd.DataFrame({"picture": [0, 1, 1, 2, 2, 3], "other": [1, 0, 2, 1, 3, 2]})
    near = near.assign(**SURE).astype(NEAR)
    chain = Links(pd.Series(range(4), list("abcd")), near, pd.DataFrame())
    found = find_duplicates(table, chain, {"exact": "drop", "near": "drop"})
    assert shown(found) == ["b a dropped", "d c dropped"]


def test_the_first_of_several_near_copies_is_named():
    table = rows("a x train 1", "b x train 2", "c x train 3")
    near = pd.DataFrame({"picture": [0, 1, 2, 2], "other": [2, 2, 1, 0]})
    near = near.assign(**SURE).astype(NEAR)
    links = Links(pd.Series(range(3), list("abc")), near, pd.DataFrame())
    found = find_duplicates(table, links, {"exact": "drop", "near": "report"})
    assert shown(found) == ["c a reported"]


def test_equal_images_are_all_linked_to_each_kind_of_row():
    """Ten copies in train and one in test: every one of them is a leak."""
    table = rows(*(f"t{n} x train 1" for n in range(10)), "z y test 1")
    assert len(find_leaks(*linked(table), "drop_train")) == 10
    left, found, *_ = clean(table, CleaningConfig(leaks="drop_train"), evidence(no_features))
    assert left["image_path"].tolist() == ["z"] and set(found["kind"]) == {"leak"}
    assert found.columns.tolist() == COLUMNS


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


@pytest.mark.parametrize(("of_copies", "linked"), [(0.8, True), (0.99, False)])
def test_without_a_threshold_the_models_own_is_taken(of_copies, linked):
    table, features = near_table(0.9)

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


def test_near_off_looks_at_pixels_alone():
    table, _ = near_table(1.0)
    links = find_links(pd.concat([table, table.tail(1)]), None, no_features, ALIKE)
    assert links.near.empty and links.pictures.to_dict() == {"a": 0, "b": 1, "c": 2}


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


def test_what_needs_features_needs_a_model():
    for block in ({"cap": "diverse"}, {"suggest_merges": 0.9}):
        with pytest.raises(ValueError, match="needs (model|features; set model)"):
            CleaningConfig.model_validate(block)
        CleaningConfig.model_validate({**block, "model": "runs/demo"})
