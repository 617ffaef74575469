"""The search page's server: what it answers, and what it refuses."""

from __future__ import annotations

import io
import os
import secrets
import time
import warnings
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

import numpy as np
from flask import Flask, Response, abort, jsonify, request, send_from_directory
from PIL import Image
from werkzeug.exceptions import HTTPException

from guie.base.errors import UserError
from guie.data.images import FOREIGN, open_as_seen, picture_of
from guie.search.engines import describe
from guie.search.index import Index
from guie.search.pages import as_jpeg
from guie.search.searcher import Searcher, corners_of, cropped, whole_number

MOST_BYTES = 32 << 20  # of an upload
# Of an upload, which may be 12 KB of PNG: decoding and embedding take 20 bytes a pixel, 44 with transparency
MOST_PIXELS = 30_000_000
SHOWN_AT_ONCE = 2  # pictures of the index that are decoded for the page
MOST_NEIGHBOURS = 100
SIDES_PX = (320, 1024)  # of pictures of the index
KEPT = 64  # queries whose vectors are remembered, for other domains and counts
STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:;"
        " media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Queries:
    """Vectors of the last queries by a token that cannot be guessed; the oldest go."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = Lock()

    def add(self, query_D: np.ndarray) -> str:
        token = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[token] = query_D
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return token

    def get(self, token: str) -> np.ndarray:
        """Raises UserError where it is not known, or no longer."""
        with self._lock:
            if token not in self._kept:
                raise UserError("that query is no longer known; send the picture again")
            self._kept.move_to_end(token)
            return self._kept[token]


def make_app(searcher: Searcher, hosts: Collection[str], any_address: bool = False) -> Flask:
    """The application.

    Args:
        hosts: names and addresses that it may be called by, in lower case and without a port.
        any_address: it may be called by any IP address too. That is safe: a foreign page can have its name
            point to this machine, but an address in the browser's request is where the request goes.
    """
    app = Flask("guie.search.server", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.config["MAX_FORM_MEMORY_SIZE"] = MOST_BYTES
    _guard(app, hosts, any_address)
    _show(app, searcher)
    _answer(app, searcher)
    return app


def _guard(app: Flask, hosts: Collection[str], any_address: bool) -> None:
    """Who may ask, what goes along with each answer, and faults as a word."""

    @app.before_request
    def _from_here() -> None:
        """A foreign page that has its name point here is refused (DNS rebinding), and so are its scripts."""
        name, origin = _name(request.host), request.headers.get("Origin")
        if name not in hosts and not (any_address and _is_address(name)):
            abort(403, f"{name}: not a name of this machine; allow it by serve --allow-host NAME")
        site = origin.partition("://")[2] if origin is not None else request.host
        if site != request.host and _name(site) not in hosts:
            abort(403, "asked by a page of another site")

    @app.after_request
    def _guarded(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    @app.errorhandler(HTTPException)
    def _refused(error: HTTPException) -> tuple[Response, int]:
        words = error.description or "refused"
        if error.code == 413:
            words = f"the picture is larger than {MOST_BYTES >> 20} MB"
        return jsonify(error=words), error.code or 500

    @app.errorhandler(UserError)
    def _at_fault(error: UserError) -> tuple[Response, int]:
        return jsonify(error=str(error)), 400


def _show(app: Flask, searcher: Searcher) -> None:
    """The page itself, and the pictures of the index."""
    decoding = BoundedSemaphore(SHOWN_AT_ONCE)

    @app.get("/")
    def page() -> Response:
        return send_from_directory(STATIC, "search.html")

    @app.get("/static/<name>")
    def static_file(name: str) -> Response:
        return send_from_directory(STATIC, name)

    @app.get("/about")
    def about() -> dict[str, Any]:
        facts = searcher.index.facts
        return {
            **{"pictures": facts.pictures, "source": Path(facts.source).name},
            **{"model": facts.model.rpartition("/")[2]},  # places of this machine stay here
            **{"domains": searcher.domains, "sure": describe(facts.sureness)},
        }

    @app.get("/picture/<name>")  # not <int:row>, which fails on a number of thousands of digits
    def picture(name: str) -> Response:
        if whole_number(name) is None:
            abort(404, "pictures are named by their row")
        row = _row(searcher.index, name)
        side_px = request.args.get("side", SIDES_PX[0], int)
        if side_px not in SIDES_PX:
            raise UserError(f"side: is {' or '.join(map(str, SIDES_PX))}")
        file = _file(searcher.index, row)
        try:
            with decoding:
                seen = open_as_seen(file)
                seen.thumbnail((side_px, side_px), reducing_gap=2.0)
        except UserError as error:
            # The error names the file's place on this machine, which is nobody else's business.
            gone = isinstance(error.__cause__, FileNotFoundError)
            reason = "no such image any more" if gone else "not a readable image any more"
            raise UserError(f"{searcher.index.files['image_path'].iloc[row]}: {reason}") from error
        return Response(as_jpeg(seen), mimetype="image/jpeg")


def _answer(app: Flask, searcher: Searcher) -> None:
    """Neighbours of a picture that is sent, of one sent before, of one of the index."""
    queries = Queries()
    one_at_a_time = Lock()  # so that memory holds one large picture, however many are sent

    @app.post("/search")
    def search() -> dict[str, Any]:
        if "picture" not in request.files:
            raise UserError("no picture came along")
        began = time.perf_counter()
        box = request.form.get("box")
        corners = corners_of(box) if box else None
        with one_at_a_time:
            sent = request.files["picture"].read()
            _refuse_many_pixels(sent)
            query_D = searcher.embed([cropped(picture_of(sent), corners)])[0]
        return {"token": queries.add(query_D), **neighbours(query_D, None, began)}

    @app.get("/neighbours")
    def of_known() -> dict[str, Any]:
        began = time.perf_counter()
        if "row" in request.args:
            row = _row(searcher.index, request.args["row"])
            return neighbours(np.asarray(searcher.vectors_ND[row]), row, began)
        return neighbours(queries.get(request.args.get("token", "")), None, began)

    def neighbours(query_D: np.ndarray, own: int | None, began: float) -> dict[str, Any]:
        k = request.args.get("k", 12, int)
        if not 1 <= k <= MOST_NEIGHBOURS:
            raise UserError(f"k: is to be 1 to {MOST_NEIGHBOURS}")
        hits = searcher.near(query_D, k, request.args.get("domain") or None, own)
        return {"hits": [asdict(hit) for hit in hits], "seconds": time.perf_counter() - began}


def _refuse_many_pixels(sent: bytes) -> None:
    """Raise UserError where the header tells of more than MOST_PIXELS; nothing is decoded for that."""
    width = height = 0
    # What has no readable header is refused by `picture_of`, which says why.
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large pictures
        Image.init()
        formats = [one for one in FOREIGN if one in Image.OPEN]
        with Image.open(io.BytesIO(sent), formats=formats) as image:
            width, height = image.size
    if width * height > MOST_PIXELS:
        raise UserError(
            f"the picture has {width:,} x {height:,} pixels, of which {MOST_PIXELS:,} are allowed; send a"
            " smaller copy"
        )


def _row(index: Index, text: str) -> int:
    row = whole_number(text)
    if row is None or row >= index.facts.pictures:
        raise UserError(f"row {text[:40]}: the index has {index.facts.pictures:,} pictures")
    return row


def _file(index: Index, row: int) -> Path:
    """Of a picture, which may have gone, or become a link to elsewhere, since it was indexed."""
    root = os.path.realpath(index.facts.root)
    file = os.path.realpath(os.path.join(root, index.files["image_path"].iloc[row]))
    if os.path.commonpath([root, file]) != root:
        raise UserError("that picture is a link that leaves the folder")
    return Path(file)


def _name(host: str) -> str:
    """Without the port, in lower case; an IPv6 address, `[::1]:80`, without its brackets."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).removeprefix("[").removesuffix("]").lower()


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False
