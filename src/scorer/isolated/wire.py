"""Messages between the scorer and a model's process: a JSON object and raw bytes, never a pickle."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTHS = struct.Struct("<II")
# What the model's side may say at most; an embedding has 256 bytes.
MAX_JSON_BYTES = 2**16
MAX_REPLY_BYTES = 2**20
MAX_REQUEST_BYTES = 2**31
CHUNK_BYTES = 2**20

Message = tuple[dict[str, Any], bytearray]


class Broken(Exception):
    """The other side went away, or says what no message is."""


def send(line: socket.socket, header: dict[str, Any], payload: Any = b"", seconds: float = 0):
    """Send one message.

    Args:
        payload: bytes, or an array of them that is contiguous.
        seconds: the time that it may take; 0: any.

    Raises:
        TimeoutError: the other side does not read.
        Broken: it went away.
    """
    words = json.dumps(header).encode()
    body = memoryview(payload).cast("B")
    line.settimeout(seconds or None)
    try:
        line.sendall(_LENGTHS.pack(len(words), len(body)) + words)
        if len(body):
            line.sendall(body)
    except TimeoutError:
        raise
    except OSError as error:
        raise Broken("went away") from error


def receive(line: socket.socket, seconds: float = 0, most_bytes: int = MAX_REPLY_BYTES) -> Message:
    """Receive one message.

    Raises:
        TimeoutError: it is not whole after so many seconds (0: waits for ever).
        Broken: the other side went away, or what it says is no message.
    """
    deadline = time.monotonic() + seconds if seconds else None
    lengths = _exactly(line, _LENGTHS.size, deadline)
    json_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if json_bytes > MAX_JSON_BYTES or payload_bytes > most_bytes:
        raise Broken("sends more than it may")
    words, payload = _exactly(line, json_bytes, deadline), _exactly(line, payload_bytes, deadline)
    try:
        header = json.loads(words)
    except (ValueError, RecursionError) as error:
        raise Broken("sends no JSON") from error
    if not isinstance(header, dict):
        raise Broken("sends no JSON object")
    return header, payload


def _exactly(line: socket.socket, count: int, deadline: float | None) -> bytearray:
    received = bytearray(count)
    view, got = memoryview(received), 0
    while got < count:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        line.settimeout(left)
        try:
            read = line.recv_into(view[got : got + CHUNK_BYTES])
        except TimeoutError:
            raise
        except OSError as error:
            raise Broken("went away") from error
        if not read:
            raise Broken("went away")
        got += read
    return received
