"""The process that has imported torch and forks one `session` for each load of a model.

python -m scorer.isolated.server DESCRIPTOR

It never opens a submission itself, so its report of how a session ended can be trusted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from scorer.isolated import wire
from scorer.isolated.limits import Binding
from scorer.isolated.session import Session


def main(descriptor: int) -> None:
    """Serve until the scorer ends and thereby closes the socket.

    A parent death signal does not work here: Linux sends it when the starting thread ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    while True:
        words, lines, _, _ = socket.recv_fds(control, wire.MAX_JSON_BYTES, 2)
        if not words:
            return
        request = json.loads(words)
        if "end" in request:
            _, status, usage = os.wait4(request["end"], 0)
            message = {"code": os.waitstatus_to_exitcode(status), "peak_kib": usage.ru_maxrss}
            control.sendall(json.dumps(message).encode())
            continue
        child = os.fork()
        if not child:
            control.close()
            run(socket.socket(fileno=lines[0]), lines[1], request)
        for line in lines:
            os.close(line)
        control.sendall(json.dumps({"pid": child}).encode())


def run(line: socket.socket, errors: int, request: dict[str, Any]) -> None:
    """Restrict this process, then answer the scorer; never returns."""
    scratch = Path(request["scratch"])
    code = 1
    try:
        _into(scratch, errors)
        model = Path(request["model"])
        binding = Binding(model, request["memory_bytes"], request["threads"])
        binding.enter()
        Session(line, model, binding).serve()
    except wire.Broken:
        code = 0  # the scorer closed the socket
    finally:
        os._exit(code)


def _into(scratch: Path, errors: int) -> None:
    """Change to the scratch folder; discard stdout, and write stderr to a file."""
    os.chdir(scratch)
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, source in enumerate((nothing, nothing, errors)):
        os.dup2(source, target)


if __name__ == "__main__":
    main(int(sys.argv[1]))
