"""An index of several regions an image: what is stored, what is found and where."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import search
from guie.data.dataset import EvalDataset
from guie.data.images import DECODERS, open_as_seen
from guie.data.regions import GRIDS, Region, regions_of
from guie.search import Searcher, open_index
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


def test_vectors_are_those_of_the_crops(searcher: Searcher) -> None:
    row, files, vectors_ND = 7, searcher.engine.files, searcher.engine.vectors_ND
    image = open_as_seen(searcher.root / files["image_path"][row])
    crops = [image.crop(region.corners(image.size)) for region in regions_of(COUNT)]
    stored = vectors_ND[row * COUNT : (row + 1) * COUNT]
    np.testing.assert_allclose(searcher.model.embed(crops), stored, atol=1e-6)
    assert (searcher.engine.vectors([files["image_path"][row]]) == stored[0]).all()


@pytest.mark.parametrize("own", [None, 13])
@pytest.mark.parametrize("domain", [None, "left"])
def test_an_image_is_as_near_as_its_nearest_region(searcher, own, domain) -> None:
    files, vectors_ND = searcher.engine.files, searcher.engine.vectors_ND
    query_D = np.random.default_rng(5).normal(size=vectors_ND.shape[1])
    query_D = (query_D / np.linalg.norm(query_D)).astype(np.float32)
    score_NR = (vectors_ND @ query_D).reshape(len(files), COUNT)
    best_N = score_NR.max(axis=1)
    searched = (files["domain"] == (domain or files["domain"])).to_numpy(copy=True)
    if own is not None:
        searched[own] = False
    for k in (1, 4, 100):
        mine = None if own is None else [files["image_path"][own]]
        (hits,) = searcher.near(query_D[None], k, domain, mine)
        order = np.lexsort((np.arange(len(files)), -best_N))
        rows = order[searched[order]][:k].tolist()
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
    picture(9, 0).save(tmp_path / "object.png")
    indexed(run, folder, tmp_path / "index", regions=14)
    (hit,) = open_index(tmp_path / "index").query(tmp_path / "object.png", k=1)
    assert hit.image_path == "left/pasted.png" and hit.region == (0.5, 0.5, 1, 1)
    assert hit.similarity == pytest.approx(1, abs=1e-5)
    assert hit.description.endswith("at 0.50,0.50,1.00,1.00")
    page, values = tmp_path / "a.html", tmp_path / "a.json"
    words = ["query", "--index", str(tmp_path / "index"), str(tmp_path / "object.png"), "--k", "3"]
    search.main([*words, "--html", str(page), "--json", str(values)])
    regions = [hit["region"] for hit in json.loads(values.read_text())[0]["hits"]]
    assert page.read_text().count('class="part"') == sum(region is not None for region in regions)
    assert "left:50.0%;top:50.0%;width:50.0%;height:50.0%" in page.read_text()


def test_crops_of_a_file_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(paths):
        picture(number, 0).save(path)
    decoded: list[Path] = []

    def opened(path: Path) -> Image.Image:
        decoded.append(path)
        return open_as_seen(path)

    monkeypatch.setitem(DECODERS, "seen", opened)
    boxes = [None, *regions_of(COUNT)[1:]] * 2
    files = [path for path in paths for _ in range(COUNT)]
    data = EvalDataset(files, lambda image_1CHW: image_1CHW, boxes)
    crops = [data.pixels(row) for row in range(len(data))]
    assert decoded == paths
    assert [crop.shape[:2] for crop in crops] == [(32, 40), *[(24, 30)] * 4] * 2
