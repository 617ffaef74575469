"""The builder of mini-uned, with tiny archives in the layouts of the six repositories."""

import csv
import gzip
import hashlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import get_small
from guie.base.errors import UserError
from guie.data.manifest import load_manifest
from sharded import tar_of

Rows = list[tuple[str, str, str, str]]
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M0 0h4v8H0z"/></svg>'
SMALL = "python/images_background_small1.zip"
ROWS: Rows = [  # source, label, split, role
    ("cars_train/00002.jpg", "cars/audi", "train", "train"),
    ("cars_train/00001.jpg", "cars/audi", "train", "train"),
    ("dataset/test/Fruit/Kiwi/Kiwi_001.jpg", "produce/kiwi", "test", "both"),
    ("dataset/val/Fruit/Kiwi/Kiwi_001.jpg", "produce/kiwi", "test", "both"),
    ("dataset/train/Packages/Milk/Milk_001.jpg", "packages/milk", "train", "train"),
    (f"{SMALL}!small1/Latin/character01/0001_01.png", "characters/latin-01", "val", "both"),
    (f"{SMALL}!small1/Latin/character01/0001_02.png", "characters/latin-01", "val", "both"),
    ("dist/emoji/fluentui/zzz.png", "emoji/zzz", "test", "query"),
    ("dist/emoji/noto/zzz.png", "emoji/zzz", "test", "index"),
    ("icons/git/git-plain.svg", "logos/git", "train", "train"),
    ("images/12.jpg", "leaves/acer", "train", "train"),
]
DRAWN = [name for name in get_small.DOMAINS if name != "logos"]  # by Pillow alone


def encoded(size: tuple[int, int], color: object, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, kind)
    return file.getvalue()


def content_of(source: str, shade: int) -> bytes:
    """A source file in the format of its repository; no two are equal."""
    if source.endswith(".svg"):
        return SVG
    if source.startswith("cars_train"):
        return encoded((400, 200), (250, 0, shade))
    if source.startswith("dist/emoji"):
        return encoded((72, 72), (0, 0, shade, 0), "RGBA", "PNG")
    if "!" in source:
        return encoded((105, 105 + shade), 1, "1", "PNG")
    if source.startswith("images/"):
        return encoded((100, 1000), 255, "L")
    return encoded((348, 348), (shade, 200, 0))


@pytest.fixture
def sources() -> dict[str, bytes]:
    """Content by source path, as the published table names them."""
    return {row[0]: content_of(row[0], shade) for shade, row in enumerate(ROWS)}


def digest_of(sources: dict[str, bytes], domain: str) -> str:
    own = sorted(row[0] for row in ROWS if row[1].startswith(domain))
    lines = (f"{hashlib.sha256(sources[source]).hexdigest()}  {source}\n" for source in own)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def expected_manifest(rows: Rows = ROWS) -> str:
    seen: list[str] = []
    lines = ["image_path,label,domain,split,role"]
    for _, label, split, role in rows:
        domain = label.split("/")[0]
        suffix = "png" if domain in ("characters", "leaves") else "jpg"
        path = f"images/{label}/{seen.count(label):03d}.{suffix}"
        lines.append(f"{path},{label},{domain},{split},{role}")
        seen.append(label)
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def published(
    tmp_path: Path, sources: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The table and the digests of a benchmark of eleven images."""
    table = tmp_path / "table.csv.gz"
    with gzip.open(table, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("source", "label", "split", "role"), *ROWS])
    digest = hashlib.sha256(expected_manifest().encode()).hexdigest()
    domains = {
        name: replace(domain, sources_sha256=digest_of(sources, name))
        for name, domain in get_small.DOMAINS.items()
    }
    monkeypatch.setattr(get_small, "TABLE", table)
    monkeypatch.setattr(get_small, "MANIFEST_SHA256", digest)
    monkeypatch.setattr(get_small, "DOMAINS", domains)
    monkeypatch.chdir(tmp_path)  # whose cache is empty
    monkeypatch.delenv("GUIE_CACHE", raising=False)
    yield


@pytest.fixture
def mirror(tmp_path: Path, sources: dict[str, bytes]) -> Path:
    """A folder with the six archives, that of leaves a tar."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    for repository in {domain.repository for domain in get_small.DOMAINS.values()}:
        domains = [n for n, domain in get_small.DOMAINS.items() if domain.repository == repository]
        own = [row[0] for row in ROWS if row[1].split("/")[0] in domains]
        members = {source: sources[source] for source in own if "!" not in source}
        if "characters" in domains:
            nested = io.BytesIO()
            with zipfile.ZipFile(nested, "w") as inner:
                for source in own:
                    inner.writestr(source.split("!")[1], sources[source])
            members[SMALL] = nested.getvalue()
        path = folder / f"{repository.stem}.zip"
        members = {f"{repository.stem}/{n}": members.get(n, b"") for n in ("README", *members)}
        if "leaves" in domains:
            tar_of(path.with_suffix(".tar.gz"), members.items(), "w:gz")
            continue
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    return folder


def build(mirror: Path, *words: str) -> None:
    get_small.main(["--from", str(mirror), "--out", "small", *words])


def stored(folder: Path = Path("small")) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def archive_of(mirror: Path, domain: str) -> Path:
    return mirror / f"{get_small.DOMAINS[domain].repository.stem}.zip"


def test_the_committed_table_is_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rows = get_small.read_table(get_small.TABLE)
    assert len(rows) == len({row.source for row in rows}) == 24_217
    assert get_small.counts([row for row in rows if row.domain == "packages"]) == (
        "1,776 images of 31 classes (train 981 of 17, val 159 of 3, test 636 of 11)"
    )


def test_six_domains_as_published(mirror: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(mirror, "--only", *DRAWN)
    text = Path("small/manifest.csv").read_text()
    without_logos = [line for line in expected_manifest().splitlines() if "logos" not in line]
    assert text.splitlines() == without_logos
    assert len(load_manifest("small/manifest.csv").table) == 10 == len(stored()) - 1
    counted = "10 images of 6 classes (train 4 of 3, val 2 of 1, test 4 of 2)"
    assert counted in capsys.readouterr().out
    images = {name: Image.open(f"small/images/{name}") for name in (
        *("cars/audi/000.jpg", "produce/kiwi/000.jpg", "packages/milk/000.jpg"),
        *("characters/latin-01/000.png", "emoji/zzz/000.jpg", "leaves/acer/000.png"),
    )}  # fmt: skip
    sizes = [image.size for image in images.values()]
    assert sizes == [(192, 96), (96, 96), (104, 104), (105, 110), (72, 72), (26, 256)]
    red, _, blue = images["cars/audi/000.jpg"].getpixel((50, 50))
    assert red < 20 and blue > 230, "red and blue are swapped in the source"
    assert images["emoji/zzz/000.jpg"].getpixel((5, 5)) == (255, 255, 255), "on white"
    assert images["characters/latin-01/000.png"].mode == "L"


def test_logos_are_drawn(mirror: Path) -> None:
    try:
        get_small.cairo()
    except UserError as error:
        pytest.skip(str(error))
    build(mirror)
    assert Path("small/manifest.csv").read_text() == expected_manifest()
    with Image.open("small/images/logos/git/000.jpg") as logo:
        assert logo.size == (112, 112)
        assert logo.getpixel((10, 50)) == (0, 0, 0) and logo.getpixel((100, 50)) == (255, 255, 255)


def test_domains_are_added_and_what_is_complete_needs_no_archive(
    mirror: Path, tmp_path: Path
) -> None:
    build(mirror, "--only", "leaves")
    build(mirror, "--only", "cars")
    assert Path("small/manifest.csv").read_text().count("\n") == 4
    one_by_one = stored()
    build(tmp_path / "nowhere", "--only", "cars")
    Path("small").rename("first")
    build(mirror, "--only", "cars", "leaves")
    assert stored() == one_by_one
    Path("small/images/cars/audi/000.jpg").unlink()
    with pytest.raises(UserError, match="cars: 1 files are missing, such as images/cars/audi/000"):
        build(mirror, "--only", "leaves")


def test_an_interrupted_run_continues(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = get_small.draw

    def interrupted(source: str, *rest: object) -> Image.Image:
        if source == "dataset/val/Fruit/Kiwi/Kiwi_001.jpg":
            raise KeyboardInterrupt
        return draw(source, *rest)

    monkeypatch.setattr(get_small, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(mirror, "--only", "cars", "produce")
    assert {p.name for p in Path("small/images").iterdir()} == {"cars", ".produce.part"}
    monkeypatch.setattr(get_small, "draw", draw)
    build(mirror, "--only", "cars", "produce")
    assert {p.name for p in Path("small/images").iterdir()} == {"cars", "produce"}
    assert len(stored()) == 5


def outside(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil.jpg", "evil")


def linked(path: Path) -> None:
    link = zipfile.ZipInfo(f"{path.stem}/cars_train/00001.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "/etc/passwd")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def of_another_commit(path: Path, missing: bool = False) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in (2,) if missing else (1, 2):
            archive.writestr(f"{path.stem}/cars_train/0000{number}.jpg", "another")


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (outside, r"car_dataset1-.*\.zip: not read: .*evil.jpg"),
    (linked, "00001.jpg': not a regular file"),
    (cut, "damaged or not an archive"),
    (of_another_commit, "the files of cars have SHA-256 .*, expected .*; remove it"),
    (lambda path: of_another_commit(path, True), "holds 1 of the 2 files of cars, and not cars_tr"),
    (Path.unlink, "no such archive.* download https://github.com/fmejbah/"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_a_faulty_archive_is_refused_before_anything_is_built(
    fault: Callable[[Path], object], message: str, mirror: Path, tmp_path: Path
) -> None:
    fault(archive_of(mirror, "cars"))
    with pytest.raises(UserError, match=message):
        build(mirror, "--only", "cars")
    assert not Path("small").exists() and not list(tmp_path.rglob("*evil*"))


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("guie.base.network.stream", unreachable)
    with pytest.raises(UserError, match="https://.*Leaf/archive/b4.*zip: download failed.*--from"):
        get_small.main(["--only", "leaves", "--out", "small"])
    assert not Path("small").exists()


def test_a_download_is_kept_only_when_whole(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = archive_of(mirror, "cars").read_bytes()
    sent = [whole[:100], whole]

    def stream(url: str, path: Path) -> None:
        assert url == get_small.DOMAINS["cars"].repository.url
        path.write_bytes(sent.pop(0))

    monkeypatch.setattr("guie.base.network.stream", stream)
    with pytest.raises(UserError, match="damaged or not an archive"):
        get_small.main(["--only", "cars", "--out", "small"])
    assert not list(Path("runs/.cache/small").iterdir())
    get_small.main(["--only", "cars", "--out", "small"])
    assert len(stored()) == 3
    get_small.main(["--only", "cars", "--out", "again"])  # nothing is sent a third time


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("holiday.jpg", "small: holds 'holiday.jpg', which this script did not make"),
        ("images/cars/audi/a.jpg", "small: holds 'images/cars/audi/a.jpg', which this script did"),
        ("manifest.csv", "manifest.csv: not written by this script"),
    ],
)
def test_files_of_others_stay(name: str, message: str, mirror: Path) -> None:
    path = Path("small") / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(UserError, match=message):
        build(mirror, "--only", "cars")
    assert stored() == {name: b"mine"}


def test_a_missing_cairosvg_is_named_first(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(UserError, match="no module cairosvg.*--only.*requirements/small.txt"):
        build(mirror)
    assert not Path("small").exists()
