"""Download files, and bound the time that a missing network costs."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit

from tqdm import tqdm

CHUNK_BYTES = 1 << 20
ANSWER_S = 5.0  # for a server to take a connection
TIMEOUT_S = 60  # for the bytes that follow
PORTS = {"ftp": 21, "http": 80, "https": 443}

T = TypeVar("T")


def answered(ask: Callable[[], T]) -> T:
    """Return `ask()`. Raises what it raises, or TimeoutError after `ANSWER_S` seconds.

    It runs in a thread, because a client's timeout does not cover a name server that is silent.
    """
    answer: Future[T] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=wait, daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {ANSWER_S:g} s") from None


def stream(url: str, path: Path) -> None:
    """Write what an address sends to a file, with a progress bar. Raises OSError."""
    server = urlsplit(url)
    if server.scheme in PORTS and not urllib.request.getproxies():
        address = server.hostname, server.port or PORTS[server.scheme]
        answered(partial(socket.create_connection, address, ANSWER_S)).close()
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as source, path.open("wb") as target:
        size = int(source.headers.get("Content-Length") or 0) or None
        title = url.rpartition("/")[2]
        with tqdm(desc=title, total=size, unit="B", unit_scale=True, disable=None) as bar:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                bar.update(len(chunk))
