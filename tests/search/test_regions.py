"""An index of several regions an image: what is stored, what is found and where, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import search
from guie.base.errors import UserError
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_seen
from guie.data.regions import GRIDS, Region, regions_of
from guie.search.searcher import Searcher, open_index
from some_pictures import folder_of, indexed, picture

COUNT = 5


@pytest.fixture(scope="module")
def searcher(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Of 30 labelled pictures, five regions each; no test changes it."""
    place = tmp_path_factory.mktemp("regions")
    folder_of(place)
    indexed(run, place / "m.csv", place / "index", regions=COUNT)
    return open_index(place / "index")


@pytest.mark.parametrize("count", GRIDS)
def test_regions_cover_the_image_and_neighbours_overlap(count: int) -> None:
    regions = regions_of(count)
    assert len(regions) == count and regions[0] == Region(0, 0, 1)
    for side in GRIDS[count]:
        lefts = sorted({region.left for region in regions if region.side == side})
        assert lefts[0] == 0 and lefts[-1] + side == pytest.approx(1)
        assert max(np.diff(lefts)) <= side / 2 + 1e-9
    for region in regions:
        for size in ((1, 1), (3, 400), (640, 480)):
            left, top, right, bottom = region.corners(size)
            assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    assert regions[0].corners((640, 480)) == (0, 0, 640, 480)


def test_vectors_are_those_of_the_crops(searcher: Searcher) -> None:
    row, files, vectors_ND = 7, searcher.engine.files, searcher.engine.vectors_ND
    image = open_as_seen(searcher.root / files["image_path"][row])
    crops = [image.crop(region.corners(image.size)) for region in regions_of(COUNT)]
    kept = vectors_ND[row * COUNT : (row + 1) * COUNT]
    np.testing.assert_allclose(searcher.model.embed(crops), kept, atol=1e-6)
    assert (searcher.engine.vectors([files["image_path"][row]]) == kept[0]).all()


@pytest.mark.parametrize("own", [None, 0, 13])
@pytest.mark.parametrize("domain", [None, "left"])
def test_an_image_is_as_near_as_its_nearest_region(searcher, own, domain) -> None:
    files, vectors_ND = searcher.engine.files, searcher.engine.vectors_ND
    query_D = np.random.default_rng(own or 5).normal(size=vectors_ND.shape[1])
    query_D = (query_D / np.linalg.norm(query_D)).astype(np.float32)
    score_NR = (vectors_ND @ query_D).reshape(len(files), COUNT)
    best_N = score_NR.max(axis=1)
    asked = (
        np.ones(len(files), bool)
        if domain is None
        else (files["domain"] == domain).to_numpy(copy=True)
    )
    if own is not None:
        asked[own] = False
    for k in (1, 4, 100):
        mine = None if own is None else [files["image_path"][own]]
        (hits,) = searcher.near(query_D[None], k, domain, mine)
        order = np.lexsort((np.arange(len(files)), -best_N))
        rows = order[asked[order]][:k].tolist()
        assert [hit.image_path for hit in hits] == files["image_path"][rows].tolist()
        for row, hit in zip(rows, hits, strict=True):
            assert hit.similarity == pytest.approx(best_N[row], abs=1e-6)
            nearest = int(np.argmax(score_NR[row]))
            left, top, side = regions_of(COUNT)[nearest]
            assert hit.region == ((left, top, left + side, top + side) if nearest else None)


def test_an_object_in_a_corner_is_found_there(run: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, classes=4, each=1)
    pasted = Image.new("RGB", (80, 64), "white")
    pasted.paste(picture(9, 0), (40, 32))
    pasted.save(folder / "left/pasted.png")
    indexed(run, folder, tmp_path / "index", regions=14)
    hit = open_index(tmp_path / "index").query(picture(9, 0), k=1)[0]
    assert hit.image_path == "left/pasted.png" and hit.region == (0.5, 0.5, 1, 1)
    assert hit.similarity == pytest.approx(1, abs=1e-5)
    assert hit.description.endswith("at 0.50,0.50,1.00,1.00")


def test_an_update_has_the_bits_of_a_new_index(run: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, classes=3, each=2)
    indexed(run, folder, tmp_path / "index", regions=COUNT)
    picture(11, 3).save(folder / "left/1_0.png")
    picture(12, 4).save(folder / "right/new.png")
    (folder / "right/0_1.png").unlink()
    _, words = indexed(run, folder, tmp_path / "index", regions=COUNT)
    assert words == "1 new, 1 changed, 1 removed, 4 unchanged"
    indexed(run, folder, tmp_path / "fresh", regions=COUNT)
    updated, fresh = (open_index(tmp_path / name).engine for name in ("index", "fresh"))
    assert updated.files.equals(fresh.files)
    np.testing.assert_allclose(updated.vectors_ND, fresh.vectors_ND, atol=1e-6)


def test_an_update_keeps_the_regions_and_others_are_refused(
    run: Path, tmp_path: Path, capsys
) -> None:
    folder = folder_of(tmp_path, classes=2, each=2)
    words = ["--images", str(folder), "--model", str(run), "--out", str(tmp_path / "index")]
    words = ["index", *words, "--workers", "1"]
    search.main([*words, "--regions", "5"])
    search.main(words)
    assert capsys.readouterr().out.count("4 images of 5 regions") == 2
    with pytest.raises(UserError, match="made with --regions 5, not 14; leave --regions out"):
        search.main([*words, "--regions", "14"])
    with pytest.raises(UserError, match="several regions of an image, which cannot be re-ranked"):
        open_index(tmp_path / "index", rerank=["csls"])
    with pytest.raises(SystemExit):
        search.main([*words, "--regions", "7"])


def test_a_page_shows_the_region(searcher: Searcher, tmp_path: Path) -> None:
    asked = searcher.root / searcher.engine.files["image_path"][3]
    part = open_as_seen(asked).crop(regions_of(COUNT)[2].corners(open_as_seen(asked).size))
    part.save(tmp_path / "part.png")
    words = ["--index", str(searcher.index.folder), str(tmp_path / "part.png"), "--k", "3"]
    page, values = tmp_path / "a.html", tmp_path / "a.json"
    search.main(["query", *words, "--html", str(page), "--json", str(values)])
    (answer,) = json.loads(values.read_text())
    regions = [hit["region"] for hit in answer["hits"]]
    assert regions[0] == [0.25, 0.0, 1.0, 0.75]
    shown = page.read_text().count('class="part"')
    assert shown == sum(region is not None for region in regions)
    assert "left:25.0%;top:0.0%;width:75.0%;height:75.0%" in page.read_text()


def test_crops_of_a_file_decode_it_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        picture(number, 0).save(path)
    decoded: list[Path] = []

    def opened(path: Path) -> Image.Image:
        decoded.append(path)
        return open_as_seen(path)

    boxes = [None, *regions_of(COUNT)[1:]] * 2
    files = [path for path in paths for _ in range(COUNT)]
    data = EvalDataset(files, lambda image_1CHW: image_1CHW, boxes, opened)
    crops = [data.pixels(row) for row in range(len(data))]
    assert decoded == paths
    sizes = [crop.shape[:2] for crop in crops]
    assert sizes == [(32, 40), *[(24, 30)] * 4] * 2
    assert (data.pixels(7) == crops[7]).all() and (data.pixels(2) == crops[2]).all()
