"""Without a network, or with a silent hub, a tag is refused in seconds; a flaky hub is tried again."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.models.backbones.timm import Timm
from guie.models.pretrained import _no_answer, find_weights

SOON_S = 9.0  # a silent server costs 5, the rest is for a busy machine
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = BackboneConfig(
    library="timm", name="vit_tiny_patch16_224", pretrained="augreg_in21k_ft_in1k"
)
REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def hub_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Send the hub's client to a port of this machine, with a cache of its own."""
    Timm.hub_source(CONFIG)  # imports timm, which is not part of the time
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def send(port: int) -> None:
        address = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        _no_answer.cache_clear()

    yield send
    _no_answer.cache_clear()


@pytest.fixture(params=["refuses", "accepts and is silent"])
def absent(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that is not there in one of two ways."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        port = server.getsockname()[1]
        if request.param == "refuses":
            server.close()
        yield port


def test_without_a_hub_only_cached_weights_open_in_seconds(
    absent: int, tmp_path: Path, hub_at
) -> None:
    hub_at(absent)
    began = time.monotonic()
    with pytest.raises(UserError, match="does not answer .*; download it elsewhere") as caught:
        find_weights(CONFIG)
    assert time.monotonic() - began < SOON_S
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError):  # a second model of the run
        find_weights(CONFIG)
    cached = tmp_path / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
    (cached / "snapshots" / COMMIT).mkdir(parents=True)
    (cached / "snapshots" / COMMIT / "pytorch_model.bin").write_bytes(b"weights")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT)
    found = find_weights(CONFIG)
    assert time.monotonic() - began < SOON_S
    assert found is not None and found.file.read_bytes() == b"weights"


def test_a_hub_that_fails_now_and_then_is_asked_again(tmp_path: Path, hub_at) -> None:
    faults = ["cut", "answer", "503", "cut"]  # the first of each request's tries

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(b"")

        def do_GET(self) -> None:
            self.answer(b"weights")

        def answer(self, body: bytes) -> None:
            fault = faults.pop(0) if faults else "answer"
            if fault == "cut":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self.send_response(503 if fault == "503" else 200)
            self.send_header("ETag", '"0123"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(b"weights")))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub_at(server.server_port)
    found = find_weights(CONFIG)
    server.shutdown()
    assert found is not None and found.file.read_bytes() == b"weights"
    assert not faults, "all were met"
