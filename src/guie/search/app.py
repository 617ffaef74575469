"""The search page, in Gradio, and its functions as an API.

Uploads are files in a private folder; they are decoded as untrusted data, and deleted within the hour.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import: no request to another host

import gradio as gr
from PIL import Image, ImageDraw
from starlette.middleware import Middleware

from guie.base.arguments import corners
from guie.base.errors import UserError
from guie.base.network import OwnHosts, host_name
from guie.base.processes import usable_cores
from guie.curation.duplicates.groups import KINDS, find_groups
from guie.data.images import cropped, picture_of
from guie.evaluation.confidence import describe
from guie.search.engines import Exact
from guie.search.searcher import Searcher

MOST_BYTES = "64mb"  # of an upload
MOST, CONCURRENT = 100, 8  # neighbours, and requests of one kind at once
SIDE_PX = 320  # of the pictures shown
KEPT_S = (600, 3000)  # uploads: looked for each 10 minutes, deleted after 50
PAIRED = 50_000  # images that the page compares for copies; search.py duplicates has no limit
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"
PICTURES: dict[str, Any] = {
    "columns": 4,
    "allow_preview": False,
    "format": "jpeg",
    "buttons": [],
    "height": "auto",
}
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
# Gradio would drop a query that comes while it computes an answer
LATEST = PRIVATE | {"trigger_mode": "always_last"}
Shown = tuple[Image.Image, str]  # a picture and its caption


class Page:
    """What the page and its API do."""

    def __init__(self, searcher: Searcher):
        self.searcher = searcher
        self._decoding = Lock()  # one large upload in memory at a time

    def refreshed(self) -> Searcher:
        """Return the searcher, at the newest version of the index."""
        with _without_folders("the index cannot be read now; try again later"):
            self.searcher.refresh()
        return self.searcher

    def decoded(self, path: str, part: str = "") -> Image.Image:
        """Decode an upload, or a part of it. Raises UserError."""
        with self._decoding:
            picture = picture_of(Path(path).read_bytes(), self.searcher.index.facts.decode)
        return cropped(picture, corners(part) if part.strip() else None)

    def shown(self, image_path: str, about: str, region: Sequence[float] | None = None) -> Shown:
        """Return the pixels of an image of the index, without the metadata of its file, and a caption."""
        try:
            image = self.searcher.decoded(self.searcher.root / image_path)
        except UserError:  # whose message has the folder of the file
            image, about = Image.new("RGB", (SIDE_PX, SIDE_PX), "silver"), f"{about} · unreadable"
        image.thumbnail((SIDE_PX, SIDE_PX), reducing_gap=2.0)
        if region:
            sides = [share * image.size[place % 2] for place, share in enumerate(region)]
            ImageDraw.Draw(image).rectangle(sides, outline="red", width=3)
        return Image.frombytes("RGB", image.size, image.tobytes()), f"{about} · {image_path}"

    def answer(
        self, image: str | None, part: str, text: str, like: str, domain: str, k: float
    ) -> tuple[list[Shown], list[str], str]:
        """Return pictures, their paths, and a title."""
        with _as_messages():
            searcher, settings = self.refreshed(), (int(k), domain)
            if like:
                query, hits = like, searcher.like(like, *settings)
            elif text.strip():
                query, hits = f"“{text}”", searcher.query_text(text, *settings)
            elif image:
                query = "a part of the image" if part.strip() else "the image"
                hits = searcher.query_many([self.decoded(image, part)], *settings)[0]
            else:
                return [], [], ""
        found = []
        for hit in hits:
            sure = "" if hit.sure is None else f" · sure {100 * hit.sure:.0f} %"
            about = f"{hit.distance:.3f}{sure} · {hit.label or hit.domain}"
            found.append(self.shown(hit.image_path, about, hit.region))
        return found, [hit.image_path for hit in hits], f"Neighbours of {query}"

    def copies(self) -> list[Shown]:
        """Return images of the largest groups of copies."""
        with _as_messages():
            engine = self.refreshed().engine
            if not isinstance(engine, Exact) or len(engine.files) > PAIRED:
                raise UserError(f"more than {PAIRED:,} images; run search.py duplicates")
            with _without_folders("an image is gone or unreadable; update the index first"):
                found = find_groups(self.searcher.root, engine.files, usable_cores())
        rows = found.head(MOST).itertuples()
        return [self.shown(row.image_path, f"group {row.group}, {KINDS[row.kind]}") for row in rows]

    def search(
        self,
        images: list[gr.FileData] = [],  # noqa: B006 - never changed; shown as the API's default
        texts: list[str] = [],  # noqa: B006
        image_paths: list[str] = [],  # noqa: B006
        k: int = 12,
        domain: str = "",
    ) -> list[list[dict[str, Any]]]:
        """Return the neighbours of each image, then of each text, then of each image of the index."""
        with _as_messages():
            searcher = self.refreshed()
            if texts and not searcher.model.takes_texts:
                raise UserError("texts: the model of this index reads none")
            pictures = [self.decoded(dict(image)["path"]) for image in images]
            found = searcher.query_many(pictures, k, domain) if pictures else []
            found += [searcher.query_text(text, k, domain) for text in texts]
            found += [searcher.like(path, k, domain) for path in image_paths]
            return [[asdict(hit) for hit in hits] for hits in found]


@contextmanager
def _as_messages() -> Iterator[None]:
    """Show a UserError on the page."""
    try:
        yield
    except UserError as error:
        raise gr.Error(str(error), print_exception=False) from None


@contextmanager
def _without_folders(instead: str) -> Iterator[None]:
    """Print a UserError, which names folders of this machine, and raise another."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise UserError(instead) from None


def corner(part: str, clicked: gr.SelectData) -> str:
    """Return the part of an image between two clicks; after the first, that corner alone."""
    x, y = map(int, clicked.index)
    known = [int(at) for at in part.split(",") if at.strip().isdecimal()]
    if len(known) != 2:
        return f"{x},{y}"
    (left, right), (top, bottom) = sorted((known[0], x)), sorted((known[1], y))
    return f"{left},{top},{right},{bottom}"


def clicked_path(paths: list[str], clicked: gr.SelectData) -> str:
    """Return the path of the neighbour that was clicked."""
    return paths[clicked.index]


def make_blocks(searcher: Searcher) -> gr.Blocks:
    """Return the page. Raises UserError if the model of the index cannot be opened."""
    page, facts = Page(searcher), searcher.index.facts
    about = f"{searcher.index.images:,} images of {Path(facts.source).name}, by {Path(facts.model).name}"
    with gr.Blocks(title="Image search", delete_cache=KEPT_S, fill_width=True) as blocks:
        gr.Markdown(f"# Image search\n{about}. Confidence: {describe(facts.confidence)}.")
        paths, like = gr.State([]), gr.State("")
        with gr.Row():
            with gr.Column(min_width=280):
                image = gr.Image(label="Image: choose, drop, paste or take one", buttons=[])
                # The file as it came, which Gradio has checked to be an upload, but would decode itself.
                setattr(image, "preprocess", lambda payload: payload.path if payload else None)  # noqa: B010
                info = "left,top,right,bottom in pixels: type it, or click two corners of the image"
                part = gr.Textbox(label="Part of the image", info=info)
                text = gr.Textbox(label="Or a text", visible=searcher.model.takes_texts)
                domain = gr.Dropdown([("all", ""), *facts.domains], value="", label="Domain")
                k = gr.Slider(1, MOST, 12, step=1, label="Neighbours")
                again = gr.Button("Search", variant="primary")
            with gr.Column(scale=3):
                title = gr.Markdown()
                hits = gr.Gallery(label="Click a picture to search again", **PICTURES)
                with gr.Accordion("Copies", open=False):
                    find = gr.Button("Find copies in the index")
                    find.click(page.copies, None, gr.Gallery(**PICTURES), **PRIVATE)
        query, shown = [image, part, text, like, domain, k], [hits, paths, title]
        image.select(corner, part, part, **PRIVATE)
        for event, change, inputs, outputs in (
            (image.input, lambda: ("", "", ""), None, [part, text, like]),
            (text.submit, lambda: "", None, like),
            (again.click, lambda: "", None, like),
            (hits.select, clicked_path, paths, like),
            (domain.input, lambda: None, None, None),
            (k.release, lambda: None, None, None),
        ):
            event(change, inputs, outputs, **LATEST).success(page.answer, query, shown, **LATEST)
        gr.api(page.search, api_name="search")
    return blocks.queue(default_concurrency_limit=CONCURRENT)


def serve_page(searcher: Searcher, host: str, port: int, root_path: str) -> None:
    """Serve the page until Ctrl-C.

    Args:
        root_path: path or address at which a proxy shows the page; its host is allowed too.

    Raises UserError if it cannot listen there, or the model of the index cannot be opened.
    """
    names = {"localhost", gethostname().lower(), host, host_name(root_path)} - {""}
    if host not in ("127.0.0.1", "localhost", "::1"):
        print(f"warning: who reaches {host}:{port} sees the images of this index", file=sys.stderr)
    with TemporaryDirectory(prefix="guie-page-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        blocks = make_blocks(searcher)
        try:
            blocks.launch(
                server_name=host,
                server_port=port or None,
                root_path=root_path or None,
                quiet=True,
                prevent_thread_lock=True,
                max_file_size=MOST_BYTES,
                footer_links=["api"],
                run_history=False,
                theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
                app_kwargs={"middleware": [Middleware(OwnHosts, names=names, policy=POLICY)]},
            )
        except OSError:
            fault = f"--port {port}: cannot listen on {host}"
            raise UserError(f"{fault}; choose another --port or --host") from None
        print(
            f"{root_path or f'http://{host}:{blocks.server_port}'}/ (Ctrl-C stops it)", flush=True
        )
        blocks.block_thread()
