"""The page: what it answers as an API, and what it refuses with a word."""

import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from guie.search import Searcher, open_index
from some_pictures import SEARCH, folder_of, indexed, picture, served

gradio_client = pytest.importorskip("gradio_client", reason="make setup has it")


@pytest.fixture(scope="module")
def place(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with pictures and their served index; its address is in `url`."""
    place = tmp_path_factory.mktemp("page")
    folder_of(place, each=3)
    (place / "pictures").rename(place / "elsewhere")
    (place / "pictures").mkdir()
    for name in ("left", "right"):  # classes on another disk
        (place / "pictures" / name).symlink_to(place / "elsewhere" / name)
    picture(3, 50, (200, 160)).save(place / "asked.png")
    indexed(run, place / "m.csv", place / "index")
    with served(place / "index") as (url, port):
        (place / "url").write_text(f"{url} {port}")
        yield place


@pytest.fixture(scope="module")
def client(place: Path) -> Any:
    return gradio_client.Client((place / "url").read_text().split()[0], verbose=False)


def sent(path: Path) -> Any:
    return gradio_client.handle_file(path)


def paths(hits: list[dict[str, Any]]) -> list[str]:
    return [hit["image_path"] for hit in hits]


def test_a_batch_is_answered_as_by_the_searcher(client: Any, place: Path) -> None:
    searcher, asked = open_index(place / "index"), place / "asked.png"
    like = "pictures/left/1_0.png"
    found = client.predict([sent(asked)] * 2, [], [like], 4, "left", api_name="/search")
    expected = [hit.image_path for hit in searcher.query(asked, 4, domain="left")]
    assert [paths(hits) for hits in found[:2]] == [expected] * 2
    assert paths(found[2]) == [hit.image_path for hit in searcher.like(like, 4, "left")]
    assert str(place) not in json.dumps(found)
    with ThreadPoolExecutor(10) as tabs:  # ten at once
        asked_again = [
            tabs.submit(client.predict, [sent(asked)], [], [], 4, "left", api_name="/search")
            for _ in range(10)
        ]
        assert [paths(one.result()[0]) for one in asked_again] == [expected] * 10


def test_what_is_no_picture_is_refused_with_a_word(client: Any, place: Path) -> None:
    Image.new("L", (10_001, 10_001)).save(place / "bomb.png")
    for name, data, fault in (
        ("a.png", b"#!/bin/sh\n", "not a readable image"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a readable image"),
        ("a.heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        ("b.png", (place / "asked.png").read_bytes()[:90], "not a readable image"),
        ("bomb.png", (place / "bomb.png").read_bytes(), "megapixels"),
    ):
        (place / name).write_bytes(data)
        with pytest.raises(Exception, match=fault):
            client.predict([sent(place / name)], api_name="/search")
    for values, fault in (
        ({"domain": "x"}, "no domain contains 'x'"),
        ({"texts": ["a cup"]}, "the model of this index reads none"),
        ({"image_paths": ["gone"]}, "gone: not in the index"),
    ):
        with pytest.raises(Exception, match=fault):
            given = {"image_paths": ["pictures/left/1_0.png"], **values}
            client.predict(**given, api_name="/search")


def asked(
    port: int, path: str, headers: dict[str, str], body: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST" if body else "GET", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(errors="replace")


def test_foreign_hosts_pages_and_files_are_refused(place: Path) -> None:
    port = int((place / "url").read_text().split()[1])
    here = f"127.0.0.1:{port}"
    for host, origin, allowed in (
        (here, None, True),
        ("localhost:9", "http://localhost:9", True),
        ("[::1]:9", None, True),
        ("192.168.1.7:9", "http://192.168.1.7:9", True),
        ("192.168.1.7:9", "http://192.168.1.66", False),
        ("192.168.1.7.evil.example", None, False),
        ("evil.example:9", "http://evil.example:9", False),
        (here, "https://evil.example", False),
        (here, "null", False),
    ):
        headers = {"Host": host} | ({"Origin": origin} if origin else {})
        assert asked(port, "/config", headers)[0] == (200 if allowed else 403), (host, origin)
    for file in ("/etc/hostname", str(place / "asked.png"), str(place / "m.csv")):
        assert asked(port, f"/gradio_api/file={file}", {"Host": here})[0] == 403
        body = json.dumps({"data": [[{"path": file, "meta": {"_type": "gradio.FileData"}}]]})
        headers = {"Host": here, "Content-Type": "application/json"}
        _, event = asked(port, "/gradio_api/call/search", headers, body)
        number = json.loads(event)["event_id"]
        assert "error" in asked(port, f"/gradio_api/call/search/{number}", {"Host": here})[1]
    large = b'--X\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
    headers = {"Host": here, "Content-Type": "multipart/form-data; boundary=X"}
    body = (large + bytes((64 << 20) + 1) + b"\r\n--X--\r\n").decode("latin-1")
    status, said = asked(port, "/gradio_api/upload", headers, body)
    assert status == 413 and "64" in said


def test_an_update_is_answered_while_the_page_is_served(
    client: Any, place: Path, run: Path, tmp_path: Path
) -> None:
    folder_of(tmp_path, classes=2, each=2)
    indexed(run, tmp_path / "m.csv", tmp_path / "index")
    with served(tmp_path / "index", "--root-path", "/search") as (url, port):
        own = gradio_client.Client(url, verbose=False)
        own.predict([sent(place / "asked.png")], api_name="/search")
        picture(9, 9).save(tmp_path / "pictures/left/1_0.png")
        (tmp_path / "pictures/right/0_0.png").unlink()
        indexed(run, tmp_path / "m.csv", tmp_path / "index")
        picture(9, 9).save(tmp_path / "new.png")
        time.sleep(1.1)
        (hits,) = own.predict([sent(tmp_path / "new.png")], api_name="/search")
        assert hits[0]["image_path"] == "pictures/left/1_0.png" and len(hits) == 3
        headers = {"Host": "127.0.0.1", "X-Forwarded-Host": "photos.example"}
        assert json.loads(asked(port, "/config", headers)[1])["root"] == (
            "http://photos.example/search"
        )
        shutil.move(tmp_path / "index", tmp_path / "away")
        time.sleep(1.1)  # it looks once a second
        with pytest.raises(Exception, match="the index cannot be read now") as refused:
            own.predict([sent(tmp_path / "new.png")], api_name="/search")
        assert str(tmp_path) not in str(refused.value)


def test_a_port_in_use_is_one_line(searcher: Searcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve", "--index", str(searcher.index.folder), "--port", str(port)]
        ended = subprocess.run([sys.executable, SEARCH, *words], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stdout == ""
    assert f"--port {port}: cannot listen on 127.0.0.1; choose another" in ended.stderr


def test_pictures_are_shown_without_metadata_and_faults_without_folders(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "temp"))
    from guie.search.app import Page, corner, gr

    pictures = folder_of(tmp_path, classes=2, each=3)
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    picture(1, 0).save(pictures / "left/1_0.png", exif=exif)
    indexed(run, pictures, tmp_path / "index", regions=5)
    page = Page(open_index(tmp_path / "index"))
    (pictures / "left/1_1.png").unlink()
    found, names, said = page.answer(None, "", "", "left/1_0.png", "", 5)
    assert len(found) == 5 and said == "Neighbours of left/1_0.png" and names[0] in found[0][1]
    assert any("unreadable" in about and "left/1_1.png" in about for _, about in found)
    image, _ = page.shown("left/1_0.png", "", (0, 0, 0.5, 0.5))
    assert not image.info and not image.getexif() and image.getpixel((0, 0)) == (255, 0, 0)
    parts = page.answer(str(pictures / "left/1_0.png"), "0,0,20,20", "", "", "", 3)
    assert parts[2] == "Neighbours of a part of the image" and len(parts[0]) == 3
    with pytest.raises(gr.Error, match="left,top,right,bottom"):
        page.answer(str(pictures / "left/1_0.png"), "0,0", "", "", "", 3)
    with pytest.raises(gr.Error, match="an image is gone or unreadable"):
        page.copies()
    assert page.answer(None, "", "", "", "", 5) == ([], [], "")
    click = type("Click", (), {"index": [9, 2]})
    assert corner("", click) == "9,2" and corner("4,7", click) == "4,2,9,7"
    assert corner("1,2,3,4", click) == "9,2"
