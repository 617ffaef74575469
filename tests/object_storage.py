"""S3 on the loopback: moto's server in a process of its own, and a proxy that answers badly on demand."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

START_S = 60


@contextmanager
def s3() -> Iterator[str]:
    """The endpoint of an empty S3. Skips where moto or s3fs is absent."""
    for module in ("s3fs", "moto"):
        pytest.importorskip(module, reason=f"no {module}: see make judges")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(words, **quiet)
    endpoint = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(endpoint, timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < until and server.poll() is None, "moto does not start"
                time.sleep(0.1)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def settings(endpoint: str) -> dict[str, str]:
    """The environment of a client of this S3."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def upload(endpoint: str, folder: Path, bucket: str) -> str:
    """Copy the files of a folder into a new bucket; return the URL of their place."""
    import s3fs

    client = s3fs.S3FileSystem(
        key="testing", secret="testing", endpoint_url=endpoint, skip_instance_cache=True
    )
    client.mkdir(bucket)
    for file in sorted(folder.iterdir()):
        if file.is_file():
            client.pipe_file(f"{bucket}/set/{file.name}", file.read_bytes())
    return f"s3://{bucket}/set"


def set_environment(patched: pytest.MonkeyPatch, endpoint: str) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # it keeps the endpoint of an earlier module's server
    for name, value in settings(endpoint).items():
        patched.setenv(name, value)
    assert os.environ["AWS_ENDPOINT_URL"] == endpoint


BODIES = {
    503: b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
    403: b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>",
}


class Troubled:
    """A proxy before an S3: the next requests for an object fail as in `troubles`, the others pass.

    A trouble is an HTTP status such as 503, or a number of seconds to wait as a float.
    """

    def __init__(self, endpoint: str):
        self.troubles: list[float] = []
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
                trouble = proxy.troubles.pop(0) if proxy.troubles else 0.0
                if isinstance(trouble, int):
                    return self._answer(trouble, {}, BODIES[trouble])
                time.sleep(trouble)
                kept = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                request = urllib.request.Request(
                    endpoint + self.path, headers=kept, method=self.command
                )
                try:
                    with urllib.request.urlopen(request) as found:
                        self._answer(found.status, dict(found.headers), found.read())
                except urllib.error.HTTPError as error:
                    self._answer(error.code, dict(error.headers), error.read())

            do_HEAD = do_GET

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                length = headers.pop("Content-Length", str(len(body)))
                for name, value in headers.items():
                    if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command == "GET":
                    try:
                        self.wfile.write(body)
                    except OSError:  # the client did not wait
                        pass

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
