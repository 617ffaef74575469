"""Child processes: which signals end them, and that they never outlive their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from guie.base.processes import children_block_sigterm, context, follow_parent
from kills import is_gone, until


def helper(ready: object) -> None:
    follow_parent()
    ready.set()
    time.sleep(60)


def main_process(method: str, pid: object) -> None:
    """Start a helper, send its process number, and sleep."""
    context = multiprocessing.get_context(method)
    ready = context.Event()
    child = context.Process(target=helper, args=(ready,), daemon=True)
    child.start()
    ready.wait(300)
    pid.send(child.pid)
    time.sleep(60)


def test_only_its_parent_ends_it() -> None:
    context = multiprocessing.get_context("spawn")  # NumPy's threads start before the helper
    ready = context.Event()
    child = context.Process(target=helper, args=(ready,), daemon=True)
    with children_block_sigterm():
        child.start()
    assert ready.wait(300)
    for name in ("INT", "TERM"):  # as a terminal, and a cluster that signals every process
        subprocess.run(["kill", f"-{name}", str(child.pid)], check=True)
    child.join(0.3)
    assert child.is_alive()
    child.terminate()
    child.join(300)
    assert child.exitcode == 128 + signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_it_ends_with_its_parent(method: str) -> None:
    context = multiprocessing.get_context(method)
    received, sent = context.Pipe(duplex=False)
    parent = context.Process(target=main_process, args=(method, sent))
    parent.start()
    assert received.poll(300)
    pid = received.recv()
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    assert until(lambda: is_gone(pid))


def look(event: object, busy: object) -> None:
    while True:
        event.is_set()
        busy.value = True


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_event_can_be_read_though_its_last_reader_was_killed(method) -> None:
    """Half of Python's own events stay locked."""
    own = context(method)
    for _ in range(8 if method == "fork" else 1):
        event, busy = own.Event(), own.RawValue("b", False)
        reader = own.Process(target=look, args=(event, busy))
        reader.start()
        try:
            assert until(lambda busy=busy: busy.value, 300)  # it imports torch
        finally:  # it never ends by itself
            reader.kill()
            reader.join()
        assert not event.is_set()
        event.set()
        assert event.is_set()
