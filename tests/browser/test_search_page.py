"""The search page in a browser: a picture in, a box drawn, a domain typed, a neighbour clicked."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image
from werkzeug.serving import make_server

from browsing import NARROW, WIDE, overflow
from guie.search import open_index
from guie.search.server import make_app
from some_pictures import folder_of, indexed, picture
from tiny_runs import tiny_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the page over 30 pictures, one of which has a name that wants to be a tag."""
    place = tmp_path_factory.mktemp("page")
    run, pictures = tiny_run(place / "run"), folder_of(place)
    picture(3, 50).save(pictures / "left" / "<img src=x onerror=alert(1)>.png")
    indexed(run, pictures, place / "index")
    picture(3, 50, (200, 160)).save(place / "asked.png")
    (place / "words.txt").write_text("no picture")
    with served(place / "index") as url:
        yield f"{url} {place}"


def drawn(pictures: Locator) -> None:
    """Wait until pictures have loaded: before that they have no size, and what is around them moves."""
    pictures.first.wait_for()
    pictures.evaluate_all(
        "all => Promise.all(all.map((one) => { one.loading = 'eager'; return one.decode(); }))"
    )


@contextmanager
def served(index: Path) -> Iterator[str]:
    """The address of the page over an index."""
    app = make_app(open_index(index), ("127.0.0.1",))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.mark.parametrize("width, dark", [(WIDE, False), (NARROW, True)])
def test_a_search_from_a_file_to_a_neighbours_neighbours(
    browse, address: str, width: int, dark: bool
) -> None:
    from playwright.sync_api import expect

    url, place = address.split()
    page = browse(width=width, dark=dark)
    page.goto(url)
    expect(page.locator("#about")).to_contain_text("31 images")
    page.set_input_files("#file", Path(place) / "asked.png")
    page.wait_for_selector(".hit img")
    drawn(page.locator(".hit img, #shown"))
    assert page.locator(".hit").count() == 12 and overflow(page) <= 0
    whole = page.locator(".hit .path").all_inner_texts()

    box = page.locator("#shown").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 3)
    with page.expect_request("**/search?*") as asked:
        page.mouse.up()
    assert b'name="box"' in (asked.value.post_data_buffer or b"")
    paths = page.locator(".hit .path")
    expect(paths).not_to_have_text(whole)
    with page.expect_response("**/search?*"):
        page.click("#whole")
    expect(paths).to_have_text(whole)

    page.fill("#domain", "lef")
    expect(paths).to_have_text([re.compile("^left/")] * 12)
    with page.expect_response("**/neighbours?*row=*"):
        page.locator(".hit").nth(1).click()
    page.wait_for_selector(".hit img")
    page.fill("#domain", "nowhere")
    expect(page.locator("#said.fault")).to_contain_text("no domain contains 'nowhere'")


def test_the_part_of_a_picture_that_was_found_is_framed(browse, tmp_path: Path) -> None:
    pictures = folder_of(tmp_path, classes=4, each=1)
    wide = Image.new("RGB", (200, 80), "white")
    wide.paste(picture(9, 0, (100, 40)), (100, 40))
    wide.save(pictures / "left" / "wide.png")
    picture(9, 0, (100, 40)).save(tmp_path / "asked.png")
    indexed(tiny_run(tmp_path / "run"), pictures, tmp_path / "index", regions=14)
    with served(tmp_path / "index") as url:
        page = browse()
        page.goto(url)
        page.set_input_files("#file", tmp_path / "asked.png")
        first = page.locator(".hit").first
        first.locator(".part").wait_for(state="attached")
        drawn(page.locator(".hit img, #shown"))
        assert "wide.png" in first.locator(".path").inner_text()
        image, part = (first.locator(name).bounding_box() for name in ("img", ".part"))
        for start, size in (("x", "width"), ("y", "height")):
            assert part[start] == pytest.approx(image[start] + image[size] / 2, abs=1)
            assert part[size] == pytest.approx(image[size] / 2, abs=1)
        assert image["width"] == pytest.approx(2.5 * image["height"], abs=2)
        assert overflow(page) <= 0


def test_what_is_no_picture_is_told_and_a_name_is_no_tag(browse, address: str) -> None:
    from playwright.sync_api import expect

    url, place = address.split()
    page = browse()
    page.goto(url)
    page.set_input_files("#file", Path(place) / "words.txt")
    expect(page.locator("#said")).to_contain_text("words.txt is not an image")
    page.set_input_files("#file", Path(place) / "asked.png")
    page.wait_for_selector(".hit img")
    page.select_option("#k", "48")
    expect(page.locator(".hit")).to_have_count(31)
    assert any("<img src=x" in text for text in page.locator(".hit .path").all_inner_texts())
    assert page.locator(".hit img[src=x]").count() == 0


def test_a_picture_is_dropped_and_pasted(browse, address: str) -> None:
    url, place = address.split()
    page = browse()
    page.goto(url)
    data = list((Path(place) / "asked.png").read_bytes())
    for kind in ("drop", "paste"):
        transfer = page.evaluate_handle(
            "bytes => { const t = new DataTransfer();"
            " t.items.add(new File([new Uint8Array(bytes)], 'a.png', {type: 'image/png'})); return t; }",
            data,
        )
        with page.expect_response("**/search?*") as answered:
            if kind == "drop":
                page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
            else:
                page.evaluate(
                    "t => document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: t}))",
                    transfer,
                )
        assert answered.value.ok
