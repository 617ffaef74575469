"""The toy domains: what is planned, that it is the same everywhere, and that it is worth training on."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from toydomains import DrawingError, dataset, draw
from toydomains.__main__ import main
from toydomains.domains import DOMAINS, generator, label, subject
from toydomains.kit.canvas import Pen, homography, projective
from toydomains.kit.outline import rect, smooth
from toydomains.kit.solid import Camera, bounds, box, paint
from toydomains.kit.subject import a, count

# 4 x 4 mean colours of view 0 of class 0 of each domain (seed 0, benchmark), a digit a channel:
# eighths of the range, from 0 to 8.
FINGERPRINTS = {
    "storefronts": "235234235234334334334334333444444433233332433433",
    "packages": "766876765655654765654444665776665444543543432322",
    "apparel": "777766766776888765655777888776777888888888888888",
    "cars": "223223333434222223223334223123123223443433433333",
    "furniture": "554653653554665665664665665665665665565564554554",
    "landmarks": "334434433434544433223434434333223434444434333434",
    "toys": "644754754754644754766765665676577666655665555655",
    "illustrations": "877666666776776444555776665643543555355444344354",
    "dishes": "543444344443332343443444444443433344654455445544",
    "artwork": "764764764665654643653764543643432653332443433443",
}


@pytest.fixture(scope="module")
def toy(toy_manifest):
    """The session's small set: 200 images of seed 1, drawn by one process."""
    return toy_manifest


def table_of(plans):
    rows = [
        {"domain": p.domain, "index": p.index, "split": p.split, "role": role}
        for p in plans
        for role in p.roles
    ]
    return pd.DataFrame(rows)


def test_the_default_benchmark_is_as_large_and_as_uneven_as_promised():
    table = table_of(dataset.plan(6000, 0, "benchmark"))
    assert len(table) == 6000 and set(table["split"]) == {"train", "test"}
    sizes = table["domain"].value_counts()
    assert len(sizes) == 10 and 8 <= sizes.max() / sizes.min() <= 12
    assert table.groupby(["domain", "index"]).size().between(6, 14).all()
    test = table[table["split"] == "test"]
    assert (test.groupby("domain")["index"].nunique() >= 6).all()
    queries = test[test["role"].isin(["query", "both"])]
    assert (queries["domain"].value_counts() >= 60).all() and queries["domain"].nunique() == 10
    train_share = (
        1 - test.groupby("domain")["index"].nunique() / table.groupby("domain")["index"].nunique()
    )
    assert train_share.between(0.5, 0.62).all()


@pytest.mark.parametrize("images", [80, 200, 999])
def test_a_small_benchmark_still_walks_the_whole_road(images):
    table = table_of(dataset.plan(images, 0, "benchmark"))
    classes = table.groupby(["domain", "split"])["index"].nunique().unstack()
    assert (classes[["train", "test"]] >= 2).all().all()
    assert (table.groupby(["domain", "index"]).size() >= 2).all()
    assert images - 5 <= len(table) <= images + 40
    prints = table[(table["domain"] == "illustrations") & (table["split"] == "test")]
    assert all(set(roles) == {"query", "index"} for _, roles in prints.groupby("index")["role"])


def test_pretraining_holds_out_some_classes_for_validation():
    table = table_of(dataset.plan(6000, 0, "pretrain"))
    held_out = table.drop_duplicates(["domain", "index"]).groupby("domain")["split"]
    assert set(table["split"]) == {"train", "val"}
    assert held_out.apply(lambda split: (split == "val").mean()).between(0.05, 0.11).all()
    assert set(table.loc[table["split"] == "val", "role"]) == {"both"}


def test_no_class_is_described_in_both_parts_whatever_the_seed():
    phrases = {
        part: {
            (domain, subject(seed, part, domain, index).phrase)
            for domain in DOMAINS
            for index in range(60)
            for seed in (0, 1)
        }
        for part in ("benchmark", "pretrain")
    }
    assert not phrases["benchmark"] & phrases["pretrain"]
    # Labels differ as well, and within the default benchmark every class has its own phrase.
    names = [subject(0, "benchmark", p.domain, p.index) for p in dataset.plan(6000, 0, "benchmark")]
    assert max(Counter(name.phrase for name in names).values()) == 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_second_class_is_the_sister_of_the_one_before(domain):
    sisters = 0
    for index in range(0, 40, 2):
        elder, younger = (subject(0, "benchmark", domain, index + i) for i in (0, 1))
        assert elder.phrase != younger.phrase
        sisters += all(getattr(elder, field) == getattr(younger, field) for field in elder.kin)
    assert sisters >= 18


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_class_and_its_views_are_functions_of_their_numbers(domain):
    first, again = (subject(3, "pretrain", domain, 7) for _ in range(2))
    assert first == again and label(first, "pretrain", domain, 7).endswith("-p0007")
    view = DOMAINS[domain].view
    pictures = [
        view(first, generator(3, "pretrain", domain, 7, 2), "train").image for _ in range(2)
    ]
    assert np.array_equal(*map(np.asarray, pictures))
    other = view(first, generator(3, "pretrain", domain, 7, 3), "train").image
    assert other.size != pictures[0].size or not np.array_equal(other, pictures[0])


def fingerprint(domain):
    role = "index" if domain == "illustrations" else "both"
    what, rng = subject(0, "benchmark", domain, 0), generator(0, "benchmark", domain, 0, 1)
    view = DOMAINS[domain].view(what, rng, role)
    small = np.asarray(view.image.resize((4, 4), Image.Resampling.BOX))
    return "".join(str(level) for level in (small / 32).round().astype(int).ravel())


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_drawing_has_not_changed(domain):
    """Whoever changes a drawing raises dataset.VERSION and renews its line here."""
    levels = [[int(digit) for digit in s] for s in (fingerprint(domain), FINGERPRINTS[domain])]
    assert np.abs(np.subtract(*levels)).max() <= 1


def test_the_manifest_and_its_pictures(toy):
    table = pd.read_csv(toy)
    assert list(table) == ["image_path", "label", "domain", "split", "role", "caption"]
    assert table["image_path"].is_unique and table["caption"].str.len().min() > 20
    assert (table["label"].str.split("/").str[0] == table["domain"]).all()
    by_split = table.groupby("split")["label"].agg(set)
    assert not by_split["train"] & by_split["test"]
    for path in table["image_path"]:
        with Image.open(toy.parent / path) as picture:
            assert picture.mode == "RGB" and 96 <= max(picture.size) <= 128
            assert np.asarray(picture).std() > 8


def test_captions_name_what_the_picture_shows(toy):
    table = pd.read_csv(toy).set_index("image_path")
    prints = table[table["domain"] == "illustrations"]
    assert prints.loc[prints["role"] == "query", "caption"].str.startswith("an ink sketch of").all()
    assert prints.loc[prints["role"] == "index", "caption"].str.contains("flat colour print").all()
    for p in dataset.plan(200, 1, "benchmark"):
        what = subject(1, "benchmark", p.domain, p.index)
        captions = table.loc[table["label"] == label(what, p.part, p.domain, p.index), "caption"]
        assert captions.str.contains(what.phrase, regex=False).all()
        assert captions.str.contains(r"\b(?:on|by|under|at|in) ", regex=True).all()
    assert a("orange duck") == "an orange duck" and count(3, "shelf") == "three shelves"


def test_the_number_of_workers_does_not_matter(toy, tmp_path, capsys):
    shared = draw(tmp_path / "shared", images=200, seed=1, workers=2)
    assert capsys.readouterr().out == ""
    assert shared.read_bytes() == toy.read_bytes()
    for path in pd.read_csv(toy)["image_path"]:
        with Image.open(shared.parent / path) as one, Image.open(toy.parent / path) as two:
            assert np.array_equal(one, two), path


def test_a_colour_thumbnail_is_not_enough(toy):
    """Nearest neighbours of 8 x 8 pictures, by cosine, over the merged test index."""
    table = pd.read_csv(toy).query("split == 'test'").reset_index(drop=True)
    small = []
    for path in table["image_path"]:
        with Image.open(toy.parent / path) as picture:
            small.append(np.asarray(picture.resize((8, 8), Image.Resampling.BOX), float).ravel())
    features = np.array(small) / np.linalg.norm(small, axis=1, keepdims=True)
    similarity = features @ features.T
    similarity[:, table["role"] == "query"] = -1
    np.fill_diagonal(similarity, -1)
    labels = table["label"].to_numpy()
    hit = labels[similarity.argmax(axis=1)] == labels
    by_domain = pd.Series(hit)[table["role"] != "index"].groupby(table["domain"]).mean()
    assert by_domain.mean() < 0.5 and hit.mean() > 3 / len(set(labels))


@pytest.fixture
def few(monkeypatch):
    """Two classes instead of forty, to draw again and again."""
    plans = dataset.plan(80, 0, "benchmark")[:2]
    monkeypatch.setattr(dataset, "plan", lambda images, seed, part: plans)


def test_a_finished_set_is_left_alone_and_any_other_drawn_again(few, tmp_path):
    manifest = draw(tmp_path, images=80, workers=1)
    picture = tmp_path / pd.read_csv(manifest)["image_path"][0]
    picture.write_bytes(b"touched")
    assert draw(tmp_path, images=80, workers=1) == manifest
    assert picture.read_bytes() == b"touched"
    stale = tmp_path / "images" / "stale.jpg"
    stale.touch()
    draw(tmp_path, images=81, workers=1)
    assert picture.read_bytes() != b"touched" and not stale.exists()


def test_an_interrupted_drawing_is_not_taken_for_a_finished_one(few, tmp_path, monkeypatch):
    draw(tmp_path, images=80, workers=1)
    whole, calls = dataset.draw_class, []

    def break_off(folder, plan):
        calls.append(plan)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(folder, plan)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(dataset, "draw_class", break_off)
        draw(tmp_path, images=80, seed=1, workers=1)
    assert not (tmp_path / "toy.json").exists()
    table = pd.read_csv(draw(tmp_path, images=80, seed=1, workers=1))
    assert all((tmp_path / path).exists() for path in table["image_path"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"images": 79}, "images: 79 is too few"),
        ({"part": "exam"}, "part: 'exam'"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(tmp_path, arguments, words):
    with pytest.raises(DrawingError, match=words):
        draw(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "toy").touch()
    with pytest.raises(DrawingError, match="is a file"):
        draw(tmp_path / "toy")


def test_the_command_draws_and_writes_a_contact_sheet(few, tmp_path):
    sheet = tmp_path / "sheet.png"
    main(
        ["--out", str(tmp_path / "t"), "--images", "80", "--workers", "1", "--preview", str(sheet)]
    )
    with Image.open(sheet) as picture:
        assert picture.width > 1000 and np.asarray(picture).std() > 8


def test_a_homography_takes_four_points_to_four_points():
    source, target = rect(0, 0, 1, 2), np.array([(3, 1), (9, 2), (8, 12), (2, 9)], float)
    assert np.allclose(projective(homography(source, target))(source), target)


def test_a_smooth_curve_passes_through_its_points():
    points = np.array([(0, 0), (2, 1), (3, 4), (-1, 2)], float)
    assert np.allclose(smooth(points, steps=5)[::5], points)


def test_text_is_written_where_the_pen_is_told():
    image = Image.new("RGBA", (200, 100))
    Pen(image, lambda points: points * 100).text("HAT", (0.5, 0.25, 1.5, 0.75), "black")
    x0, y0, x1, y1 = image.getbbox()
    assert 48 <= x0 < x1 <= 152 and 23 <= y0 < y1 <= 77
    assert max(x1 - x0, 2 * (y1 - y0)) > 90


def nearest_box(origin, rays, boxes):
    """The box that each ray meets first, by the slab method: a slow twin of the painter."""
    first, best = np.full(len(rays), -1), np.full(len(rays), np.inf)
    for i, solid in enumerate(boxes):
        near, far = (solid.low - origin) / rays, (solid.high - origin) / rays
        enter, leave = np.minimum(near, far).max(axis=1), np.maximum(near, far).min(axis=1)
        closer = (enter < leave) & (enter > 0) & (enter < best)
        first[closer], best[closer] = i, enter[closer]
    return first


@pytest.mark.parametrize("seed", range(4))
def test_solids_hide_one_another_as_rays_say(seed):
    rng = np.random.default_rng(seed)
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250), (250, 0, 250)]
    cells = rng.permutation(27)[:6]
    boxes = []
    for cell, colour in zip(cells, colours, strict=True):
        low = np.array([cell % 3, cell // 3 % 3, cell // 9]) * 0.5 - 0.75 + rng.uniform(0, 0.1, 3)
        boxes.append(box(low, low + rng.uniform(0.2, 0.4, 3), colour))
    camera = Camera(float(rng.uniform(-60, 60)), float(rng.uniform(-10, 40)), 5.0)
    x0, y0, x1, y1 = bounds(boxes, camera)
    image = Image.new("RGBA", (200, 200))
    paint(Pen(image, lambda p: (p - (x0, y0)) / (x1 - x0, y1 - y0) * 200), boxes, camera)
    pixels = rng.integers(0, 200, (400, 2))
    flat = (pixels + 0.5) / 200 * (x1 - x0, y1 - y0) + (x0, y0)
    # A picture point (u, v) lies at depth 0 in camera axes, whose rows are the rotation's.
    targets = np.column_stack([flat * (1, -1), np.zeros(400)]) @ camera.rotation
    expected = nearest_box(camera.position, targets - camera.position, boxes)
    painted = np.asarray(image)[pixels[:, 1], pixels[:, 0]]
    hue = painted[:, :3].astype(float) / np.maximum(painted[:, :3].max(axis=1, keepdims=True), 1)
    distance = np.abs(hue[:, None] - np.array(colours) / 250).sum(axis=2)
    seen = np.where(painted[:, 3] > 0, distance.argmin(axis=1), -1)
    assert (seen == expected).mean() > 0.97 and len(set(expected)) > 3
