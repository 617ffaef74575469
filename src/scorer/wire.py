"""Messages between the scorer and a model's process: a JSON object and raw bytes, never a pickle."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTHS = struct.Struct("<II")
# Maximum message sizes of the model's side; an embedding has 256 bytes.
MAX_JSON_BYTES = 2**16
MAX_REPLY_BYTES = 2**20
MAX_REQUEST_BYTES = 2**31
CHUNK_BYTES = 2**20
MAX_NUMBERS = 64  # of one embedding; of a longer one only the length is sent

Message = tuple[dict[str, Any], bytearray]


class Broken(Exception):
    """The other side closed the socket, or sent an invalid message."""


def send(
    line: socket.socket, header: dict[str, Any], payload: Any = b"", seconds: float = 0
) -> None:
    """Send one message.

    Args:
        payload: bytes, or a contiguous array of bytes.
        seconds: timeout; 0: none.

    Raises:
        TimeoutError: the other side does not read.
        Broken: it closed the socket.
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
        TimeoutError: it is incomplete after `seconds` (0: no timeout).
        Broken: the other side closed the socket, or sent an invalid message.
    """
    deadline = time.monotonic() + seconds if seconds else None
    lengths = _exactly(line, _LENGTHS.size, deadline)
    json_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if json_bytes > MAX_JSON_BYTES or payload_bytes > most_bytes:
        raise Broken("sent more than allowed")
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
