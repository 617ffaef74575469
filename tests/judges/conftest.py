"""What a judge needs lies on this machine: nothing is downloaded."""

import socket
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one machine may talk to each other, and to nobody else."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX, f"a connection to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
