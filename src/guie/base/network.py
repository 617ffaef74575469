"""Download files, bound the time that a missing network costs, and refuse foreign hosts."""

import socket
import urllib.request
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
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


class OwnHosts:
    """ASGI middleware: refuses requests to, and from pages of, hosts that are not this server's.

    A foreign page's name can resolve to this machine (DNS rebinding); an address in place of a name cannot.

    Args:
        names: host names of this server, in lower case.
        policy: content security policy that answers get.
    """

    def __init__(self, app: Any, names: Collection[str], policy: str):
        self.app, self.names, self.policy = app, names, policy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer 403."""
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope.get("headers", ())
        }
        host, origin = host_name(f"//{headers.get('host', '')}"), headers.get("origin")
        allowed = host in self.names or is_address(host)
        same = origin is None or host_name(origin) in (host, *self.names)

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                policy = b"content-security-policy", self.policy.encode()
                message = message | {"headers": [*message.get("headers", ()), policy]}
            await send(message)

        if scope["type"] == "lifespan" or (allowed and same):
            await self.app(scope, receive, answer)
            return
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"not a host name of this page"})


def host_name(url: str) -> str:
    """Return the host of a URL, in lower case; empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
