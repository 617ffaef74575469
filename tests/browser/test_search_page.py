"""The search page in a browser: a picture in, a part of it, a neighbour clicked, a domain, a fault."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from browsing import NARROW, WIDE, overflow
from some_pictures import folder_of, indexed, picture, served
from tiny_runs import tiny_run


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Of the page over 31 pictures, one of which has a name that wants to be a tag."""
    place = tmp_path_factory.mktemp("page")
    run, pictures = tiny_run(place / "run"), folder_of(place)
    picture(3, 50).save(pictures / "left" / "<img src=x onerror=alert(1)>.png")
    indexed(run, pictures, place / "index")
    picture(3, 50).save(place / "asked.png")
    (place / "words.png").write_text("no picture")
    with served(place / "index") as (url, _):
        yield url, place


@pytest.mark.parametrize("width, dark", [(WIDE, False), (NARROW, True)])
def test_a_search_from_a_file_to_a_neighbours_neighbours(
    browse, address: tuple[str, Path], width: int, dark: bool
) -> None:
    from playwright.sync_api import expect

    url, place = address
    page = browse(width=width, dark=dark)  # a request beyond this machine fails the test
    page.goto(url)
    page.get_by_text("31 images of pictures, by run").wait_for(timeout=60_000)
    said, captions = page.get_by_text("Neighbours of"), page.locator(".caption-label")
    choose = page.locator("input[type=file]").first

    def chosen(name: str) -> None:
        choose.set_input_files(place / name)

    chosen("asked.png")
    expect(said).to_have_text("Neighbours of the image", timeout=30_000)
    expect(captions).to_have_count(12)
    assert any("<img src=x" in text for text in captions.all_inner_texts())
    assert overflow(page) <= 0
    whole = captions.all_inner_texts()

    part = page.get_by_label("Part of the image")
    part.fill("0,0,20,20")
    page.get_by_role("button", name="Search", exact=True).press("Enter")
    expect(said).to_have_text("Neighbours of a part of the image", timeout=30_000)
    expect(captions).not_to_have_text(whole)

    second = page.locator(".thumbnail-item").nth(1)
    second.focus()
    second.press("Enter")
    expect(said).to_contain_text(".png", timeout=30_000)
    page.get_by_label(re.compile("remove image|clear", re.I)).first.click()
    chosen("asked.png")  # the same file again
    expect(said).to_have_text("Neighbours of the image", timeout=30_000)
    expect(captions).to_have_text(whole)

    chosen("words.png")  # which is none
    page.get_by_text("not a readable image").first.wait_for(timeout=30_000)
    assert str(place) not in page.inner_text("body")
