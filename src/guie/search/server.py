"""Serve the search page: routes, and checks of requests."""

from __future__ import annotations

import io
import os
import secrets
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Collection
from contextlib import redirect_stderr, suppress
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, NamedTuple

import numpy as np
from flask import Flask, Response, abort, jsonify, request, send_from_directory
from PIL import Image
from werkzeug.exceptions import HTTPException
from werkzeug.serving import make_server

from guie.base.arguments import corners_of, whole_number
from guie.base.errors import UserError
from guie.data.images import FOREIGN, open_as_seen, picture_of
from guie.search.engines import describe
from guie.search.index import Index
from guie.search.pages import as_jpeg
from guie.search.searcher import Searcher, cropped

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")  # listens on all addresses of this machine
MOST_BYTES = 32 << 20  # of an upload
# Of an upload: 12 KB of PNG can have that many. Processing takes 20 bytes a pixel, 44 with transparency.
MOST_PIXELS = 30_000_000
SHOWN_AT_ONCE = 2  # images of the index decoded in parallel for the page
MOST_NEIGHBOURS = 100
MOST_LETTERS = 1000  # of a text; CLIP's encoders read about 300
SIDES_PX = (320, 1024)  # of images of the index
KEPT = 64  # queries whose vectors are cached, for a change of domain or count
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


class Query(NamedTuple):
    """A query's unit vector (D), whether it was a text, and its patches (1, P, F) for `local`."""

    vector_D: np.ndarray
    is_text: bool = False
    patches_1PF: np.ndarray | None = None


class Queries:
    """Cache of the last queries by an unguessable token; the oldest are dropped."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Query] = OrderedDict()
        self._lock = Lock()

    def add(self, query: Query) -> str:
        token = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[token] = query
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return token

    def get(self, token: str) -> Query:
        """Return the query. Raises UserError if the token is unknown or was dropped."""
        with self._lock:
            if token not in self._kept:
                raise UserError("that query is no longer known; send the image again")
            self._kept.move_to_end(token)
            return self._kept[token]


def serve_page(searcher: Searcher, host: str, port: int, names: Collection[str]) -> None:
    """Serve the search page until Ctrl-C.

    Args:
        host, port: address to listen on; a warning tells who sees the page.
        names: further names of this machine that browsers may use.

    Raises UserError if it cannot listen there.
    """
    searcher.open_model()  # so that the first request does not wait for it
    everywhere = host in ANY_ADDRESS
    if host not in LOOPBACK:
        print(
            f"warning: anyone who can reach {host}:{port} sees the images of this index. Open the"
            f" page with {'an IP address of this machine' if everywhere else host}; for other names add"
            " --allow-host NAME",
            file=sys.stderr,
        )
    app = make_app(searcher, {*LOOPBACK, host.lower(), *names} - {""}, everywhere)
    try:
        with redirect_stderr(io.StringIO()):  # werkzeug explains a failure in lines of its own
            server = make_server(host, port, app, threaded=True)
    except (OSError, SystemExit):
        raise UserError(
            f"--port {port}: cannot listen on {host}; choose another --port or --host"
        ) from None
    shown = "localhost" if everywhere else f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{server.server_port}/ (Ctrl-C stops it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")


def make_app(searcher: Searcher, hosts: Collection[str], any_address: bool = False) -> Flask:
    """Return the Flask application.

    Args:
        hosts: allowed host names and addresses, in lower case and without a port.
        any_address: also allow any IP address as host. That is safe. A foreign page's name can resolve to
            this machine, but an IP address as host is always the real target of the request.
    """
    app = Flask("guie.search.server", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    app.config["MAX_FORM_MEMORY_SIZE"] = MOST_BYTES
    _guard(app, hosts, any_address)
    _show(app, searcher)
    _answer(app, searcher)
    return app


def _guard(app: Flask, hosts: Collection[str], any_address: bool) -> None:
    """Check the host of each request, add security headers, and return errors as JSON."""

    @app.before_request
    def _from_here() -> None:
        """Reject foreign pages whose name resolves to this machine (DNS rebinding), and their scripts."""
        name, origin = _name(request.host), request.headers.get("Origin")
        if name not in hosts and not (any_address and _is_address(name)):
            abort(403, f"{name}: not an allowed host name; allow it with serve --allow-host NAME")
        site = origin.partition("://")[2] if origin is not None else request.host
        if site != request.host and _name(site) not in hosts:
            abort(403, "the request comes from a page of another site")

    @app.after_request
    def _guarded(response: Response) -> Response:
        response.headers.update(HEADERS)
        return response

    @app.errorhandler(HTTPException)
    def _refused(error: HTTPException) -> tuple[Response, int]:
        words = error.description or "refused"
        if error.code == 413:
            words = f"the image is larger than {MOST_BYTES >> 20} MB"
        return jsonify(error=words), error.code or 500

    @app.errorhandler(UserError)
    def _at_fault(error: UserError) -> tuple[Response, int]:
        return jsonify(error=str(error)), 400


def _show(app: Flask, searcher: Searcher) -> None:
    """Add the routes of the page and of the images of the index."""
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
            **{"model": facts.model.rpartition("/")[2]},  # paths of this machine are not sent
            **{"domains": searcher.domains, "sure": describe(facts.sureness)},
            **{"texts": searcher.takes_texts},
        }

    @app.get("/picture/<name>")  # not <int:row>, which fails on thousands of digits
    def picture(name: str) -> Response:
        if whole_number(name) is None:
            abort(404, "an image's name must be its row number")
        row = _row(searcher.index, name)
        side_px = request.args.get("side", SIDES_PX[0], int)
        if side_px not in SIDES_PX:
            raise UserError(f"side: must be {' or '.join(map(str, SIDES_PX))}")
        file = _file(searcher.index, row)
        try:
            with decoding:
                seen = open_as_seen(file)
                seen.thumbnail((side_px, side_px), reducing_gap=2.0)
        except UserError as error:
            # The error has the file's path on this machine, which must not be sent.
            gone = isinstance(error.__cause__, FileNotFoundError)
            reason = "the image no longer exists" if gone else "the image is no longer readable"
            raise UserError(f"{searcher.index.files['image_path'].iloc[row]}: {reason}") from error
        return Response(as_jpeg(seen), mimetype="image/jpeg")


def _answer(app: Flask, searcher: Searcher) -> None:
    """Add the routes for neighbours of an upload, a text, an earlier query, or an indexed image."""
    queries = Queries()
    one_at_a_time = Lock()  # so that only one large upload is in memory at a time

    @app.post("/search")
    def search() -> dict[str, Any]:
        if "picture" not in request.files:
            raise UserError("the request has no image")
        began = time.perf_counter()
        box = request.form.get("box")
        corners = corners_of(box) if box else None
        with one_at_a_time:
            sent = request.files["picture"].read()
            _refuse_many_pixels(sent)
            part = cropped(picture_of(sent, searcher.index.facts.decode), corners)
            patches_1PF = searcher.patches([part])
            query = Query(searcher.embed([part])[0], patches_1PF=patches_1PF)
        return {"token": queries.add(query), **neighbours(query, None, began)}

    @app.post("/text")
    def text() -> dict[str, Any]:
        began, words = time.perf_counter(), request.form.get("text", "")
        if len(words) > MOST_LETTERS:
            raise UserError(
                f"the text has {len(words):,} letters; at most {MOST_LETTERS:,} are used"
            )
        query = Query(searcher.embed_text(words), is_text=True)
        return {"token": queries.add(query), **neighbours(query, None, began)}

    @app.get("/neighbours")
    def of_known() -> dict[str, Any]:
        began = time.perf_counter()
        if "row" in request.args:
            row = _row(searcher.index, request.args["row"])
            query = Query(searcher.vector_of_row(row), False, searcher.patches_of_row(row))
            return neighbours(query, row, began)
        return neighbours(queries.get(request.args.get("token", "")), None, began)

    def neighbours(query: Query, own: int | None, began: float) -> dict[str, Any]:
        k = request.args.get("k", 12, int)
        if not 1 <= k <= MOST_NEIGHBOURS:
            raise UserError(f"k: must be 1 to {MOST_NEIGHBOURS}")
        domain = request.args.get("domain") or None
        vector_D, is_text, patches_1PF = query
        hits = searcher.near(vector_D, k, domain, own, is_text, patches_1PF)
        return {"hits": [asdict(hit) for hit in hits], "seconds": time.perf_counter() - began}


def _refuse_many_pixels(sent: bytes) -> None:
    """Raise UserError if the image's header declares more than MOST_PIXELS; it is not decoded."""
    width = height = 0
    # `picture_of` reports images without a readable header.
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on large images
        Image.init()
        formats = [one for one in FOREIGN if one in Image.OPEN]
        with Image.open(io.BytesIO(sent), formats=formats) as image:
            width, height = image.size
    if width * height > MOST_PIXELS:
        raise UserError(
            f"the image has {width:,} x {height:,} pixels; at most {MOST_PIXELS:,} are allowed; send a"
            " smaller copy"
        )


def _row(index: Index, text: str) -> int:
    row = whole_number(text)
    if row is None or row >= index.facts.pictures:
        count = index.facts.pictures
        raise UserError(
            f"row {text[:40]}: must be 0 to {count - 1:,}; the index has {count:,} images"
        )
    return row


def _file(index: Index, row: int) -> Path:
    """Return an image's path, which may have been deleted or replaced by a link since indexing."""
    root = os.path.realpath(index.facts.root)
    file = os.path.realpath(os.path.join(root, index.files["image_path"].iloc[row]))
    if os.path.commonpath([root, file]) != root:
        raise UserError("that image is a link that leaves the folder")
    return Path(file)


def _name(host: str) -> str:
    """Return the host in lower case, without port or the brackets of an IPv6 address (`[::1]:80`)."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() else host).removeprefix("[").removesuffix("]").lower()


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(name))
    return False
