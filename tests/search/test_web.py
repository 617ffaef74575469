"""The page's server: what it answers, and what it refuses with a word."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from PIL import Image

from guie.base.errors import UserError
from guie.search import Searcher, open_index
from guie.search import server as app
from guie.search.server import KEPT, MOST_BYTES, Queries, Query, make_app, serve_page
from some_pictures import folder_of, indexed, picture

HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def client(searcher: Searcher) -> FlaskClient:
    return make_app(searcher, HOSTS).test_client()


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def huge(width: int = 20_000, height: int = 15_000) -> bytes:
    """A PNG whose header tells of so many pixels, in some hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_a_picture_that_is_sent_finds_its_neighbours(
    client: FlaskClient, searcher: Searcher
) -> None:
    sent = png(picture(3, 50))
    found = client.post("/search?k=4", data={"picture": (io.BytesIO(sent), "a.png")}).json
    expected = searcher.query(picture(3, 50), 4)
    assert [hit["row"] for hit in found["hits"]] == [hit.row for hit in expected]
    assert found["hits"][0]["sure"] == pytest.approx(expected[0].sure)
    among = client.get(f"/neighbours?token={found['token']}&domain=left&k=30").json
    assert {hit["domain"] for hit in among["hits"]} == {"left"}
    like = client.get("/neighbours?row=7&k=2").json
    assert [hit["row"] for hit in like["hits"]] == [hit.row for hit in searcher.like(7, 2)]
    boxed = {"picture": (io.BytesIO(sent), "a.png"), "box": "0,0,20,20"}
    parts = client.post("/search?k=4", data=boxed).json["hits"]
    assert [hit["row"] for hit in parts] == [
        hit.row for hit in searcher.query(picture(3, 50), 4, (0, 0, 20, 20))
    ]
    shown = Image.open(io.BytesIO(client.get("/picture/7").data))
    assert shown.size == (40, 32) and shown.format == "JPEG"
    about = client.get("/about").json
    assert about["domains"] == ["left", "right"] and "/" not in about["model"] + about["source"]


@pytest.mark.parametrize(
    "sent, message",
    [
        (b"", "not a readable image"),
        (b"#!/bin/sh\nrm -rf /\n", "not a readable image"),
        (
            b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
            "not a readable image",
        ),
        (png(picture(0, 0))[:90], "not a readable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a readable image"),
        (huge(), "pixels"),
        (
            huge(10_000, 10_000),
            "10,000 x 10,000 pixels; at most 30,000,000 are allowed; send a smaller",
        ),
        (huge(5_000, 6_001), "5,000 x 6,001 pixels"),
    ],
)
def test_what_is_no_picture_is_refused(client: FlaskClient, sent: bytes, message: str) -> None:
    answer = client.post("/search", data={"picture": (io.BytesIO(sent), "x")})
    assert answer.status_code == 400 and message in answer.json["error"]


def test_so_is_what_is_too_large_or_wrong(client: FlaskClient) -> None:
    large = {"picture": (io.BytesIO(bytes(MOST_BYTES + 1)), "x")}
    answer = client.post("/search", data=large)
    assert answer.status_code == 413 and "larger than 32 MB" in answer.json["error"]
    for words, message in (
        ("/neighbours?row=30", "has 30 images"),
        ("/neighbours?row=-1", "row -1"),
        ("/neighbours?row=" + "9" * 6000, "has 30 images"),
        ("/neighbours?row=²", "has 30 images"),
        ("/picture/30", "has 30 images"),
        ("/neighbours?row=1&k=0", "k: must be 1 to 100"),
        ("/neighbours?row=1&domain=x", "no domain contains 'x'"),
        ("/neighbours?token=x", "no longer known"),
        ("/picture/1?side=9999", "side: must be 320 or 1024"),
    ):
        answer = client.get(words)
        assert answer.status_code == 400 and message in answer.json["error"]
    for corners in ("1;2;3;4", "1,2,3,²", "1,2,3," + "9" * 5000, "1,2,3", "9,9,9,9"):
        box = {"picture": (io.BytesIO(png(picture(0, 0))), "x"), "box": corners}
        answer = client.post("/search", data=box)
        assert answer.status_code == 400 and "left,top,right,bottom" in answer.json["error"]
    assert client.post("/search", data={}).json["error"] == "the request has no image"
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/picture/..%2f7", "/picture/m.csv"):
        assert client.get(path).status_code == 404
    for path in ("/picture/" + "9" * 6000, "/picture/²", "/picture/-1"):
        assert client.get(path).status_code == 404


def test_another_sites_page_gets_no_answer(client: FlaskClient) -> None:
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/", headers={"Origin": "https://evil.example"}).status_code == 403
    page = client.get("/", headers={"Host": "127.0.0.1:8000", "Origin": "http://localhost:8000"})
    assert page.status_code == 200 and page.data.startswith(b"<!doctype html>")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "host, origin, allowed",
    [
        ("192.168.1.7:8000", None, True),
        ("192.168.1.7:8000", "http://192.168.1.7:8000", True),
        ("[fe80::1]:8000", "http://[fe80::1]:8000", True),
        ("[::1]:8000", None, True),
        ("Photos.Example:8000", "http://photos.example:8000", True),
        ("192.168.1.7:8000", "http://192.168.1.66", False),
        ("192.168.1.7:8000", "http://evil.example", False),
        ("192.168.1.7:8000", "null", False),
        ("192.168.1.7.evil.example", None, False),
        ("evil.example:8000", "http://evil.example:8000", False),
    ],
)
def test_a_page_for_all_addresses_is_reached_by_an_address_or_an_allowed_name(
    searcher: Searcher, host: str, origin: str | None, allowed: bool
) -> None:
    """A name that is not allowed may be one that a foreign page points to this machine."""
    headers = {"Host": host} | ({"Origin": origin} if origin else {})
    everywhere = make_app(searcher, {*HOSTS, "::1", "photos.example"}, True).test_client()
    answer = everywhere.get("/about", headers=headers)
    assert answer.status_code == (200 if allowed else 403)
    if not allowed and not origin:
        assert "allow it with serve --allow-host NAME" in answer.json["error"]
    here = make_app(searcher, {*HOSTS, "::1"}).test_client()
    assert (here.get("/about", headers=headers).status_code == 200) == (host == "[::1]:8000")


def test_pictures_that_are_sent_at_once_are_decoded_one_after_the_other(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, now, most = app.picture_of, [], []

    def slowly(data: bytes, *more: str) -> Image.Image:
        now.append(1)
        most.append(len(now))
        time.sleep(0.05)
        now.pop()
        return decode(data, *more)

    monkeypatch.setattr(app, "picture_of", slowly)
    sent = png(picture(3, 50))

    def send(_: int) -> int:
        data = {"picture": (io.BytesIO(sent), "a.png")}
        return client.application.test_client().post("/search", data=data).status_code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(send, range(4))) == [200] * 4
    assert most == [1] * 4


def test_no_error_tells_where_files_are(run: Path, tmp_path: Path) -> None:
    pictures = folder_of(tmp_path, classes=2, each=3)
    indexed(run, pictures, tmp_path / "index")
    client = make_app(open_index(tmp_path / "index"), HOSTS).test_client()
    gone, broken, folder, *_ = sorted(pictures.rglob("*.png"))
    gone.unlink()
    broken.write_bytes(b"no picture")
    folder.unlink()
    folder.mkdir()
    for row, message in enumerate(("no longer exists", "no longer readable", "no longer readable")):
        answer = client.get(f"/picture/{row}")
        assert answer.status_code == 400 and message in answer.json["error"]
        assert answer.json["error"].startswith("left/1_") and str(tmp_path) not in answer.text


def test_a_picture_that_went_or_became_a_link_is_told(run: Path, tmp_path: Path) -> None:
    pictures = folder_of(tmp_path, classes=2, each=2)
    indexed(run, pictures, tmp_path / "index")
    client = make_app(open_index(tmp_path / "index"), HOSTS).test_client()
    first, second, *_ = sorted(pictures.rglob("*.png"))
    secret = tmp_path / "secret.png"
    os.replace(first, secret)
    assert "no longer exists" in client.get("/picture/0").json["error"]
    first.symlink_to(secret)
    assert client.get("/picture/0").json["error"] == "that image is a link that leaves the folder"
    assert client.get("/picture/1").status_code == 200 and second.exists()


def test_the_last_queries_are_remembered_and_no_more(searcher: Searcher) -> None:
    queries, vector = Queries(), Query(searcher.vectors_ND[0])
    tokens = [queries.add(vector) for _ in range(KEPT + 1)]
    assert len(set(tokens)) == KEPT + 1 and queries.get(tokens[-1]) is vector
    with pytest.raises(Exception, match="no longer known"):
        queries.get(tokens[0])


def test_a_port_in_use_is_one_line(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(searcher, "open_model", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: cannot listen on 127.0.0.1; choose"):
            serve_page(searcher, "127.0.0.1", port, [])
    assert capsys.readouterr() == ("", "")
