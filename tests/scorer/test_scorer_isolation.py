"""What a model's process may not do, and that nothing it says can make the scorer fall."""

import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scorer_toys import Hangs, MeanColour, Reads, Writes, rewritten, torchscript_bytes

from scorer import wire
from scorer.errors import UserError, Violation
from scorer.isolated import limits, measuring
from scorer.isolated.limits import Binding
from scorer.process import Allowance, ModelProcess, SandboxedModel, Server

LINUX_LIMITS = {
    *("network", "memory", "files", "threads", "reads", "writes", "time_per_image", "time")
}


@pytest.fixture
def opened(tmp_path):
    """A function that loads a module in a process of its own."""

    def open_(module, **allowance):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        path = folder / "saved_model.pt"
        path.write_bytes(rewritten(torchscript_bytes(module), {}))
        model = SandboxedModel(path, Allowance(**{"threads": 1, **allowance}))
        process = running.enter_context(model.process())
        process.load()
        return process

    with ExitStack() as running:
        yield open_


def ask(process, height=4):
    return process.embed(np.zeros((1, height, 4, 3), np.uint8))


@pytest.mark.skipif(not limits.landlock_version(), reason="this system has no Landlock")
def test_a_model_writes_nowhere(opened, tmp_path):
    for path in (tmp_path / "outside.bin", Path("inside.bin")):  # the latter in its own folder
        process = opened(Writes(str(path)))
        assert set(process.limits) == LINUX_LIMITS and process.limits["writes"]["held"]
        with pytest.raises(Violation, match="(?i)permission denied"):
            ask(process)
    assert not list(tmp_path.rglob("*.bin"))


@pytest.mark.skipif(not limits.landlock_version(), reason="this system has no Landlock")
def test_a_model_reads_libraries_alone(opened, tmp_path):
    """Not even what it can name reaches its answers or the words of its errors."""
    secret = tmp_path / "manifest.csv"
    secret.write_text("labels")
    assert opened(MeanColour()).limits["reads"]["held"]
    for path in (secret, Path("/etc/passwd"), Path("/proc/self/environ"), Path(__file__)):
        with pytest.raises(Violation, match="(?i)permission denied"):
            ask(opened(Reads(str(path))))
    assert ask(opened(Reads(torch.__file__)))[0].count == 4  # the same model, where it may


CONFINED = """
import os, sys
from pathlib import Path
from scorer.isolated.limits import restrict_paths

def told(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__

allowed, secret, program = map(Path, sys.argv[1:])
before = told(lambda: os.execv(program, ["program"]))  # no format that the system knows
restrict_paths([allowed, program], [Path("/dev/null")])
print(
    before,
    *map(told, (
        lambda: os.execv(program, ["program"]),
        lambda: os.execv(allowed / "program", ["program"]),
        lambda: os.listdir(allowed),
        lambda: os.listdir(secret),
        lambda: (allowed / "words").read_text(),
        lambda: (secret / "words").read_text(),
        lambda: (allowed / "words").write_text(""),
        lambda: (allowed / "words").unlink(),
        lambda: (allowed / "new").mkdir(),
        lambda: (allowed / "folder").rmdir(),
        lambda: (allowed / "link").symlink_to("words"),
        lambda: os.truncate(allowed / "words", 0),
        lambda: Path("/dev/null").write_text("x"),
        lambda: program.read_bytes(),
    )),
)
"""


@pytest.mark.skipif(limits.landlock_version() < 3, reason="this system's Landlock lacks truncation")
def test_what_is_readable_can_be_neither_started_nor_changed(tmp_path):
    """A file named by itself as little as one in a folder."""
    for name in ("allowed", "secret"):
        (tmp_path / name / "folder").mkdir(parents=True)
        (tmp_path / name / "words").write_text("words")
    for program in (tmp_path / "program", tmp_path / "allowed" / "program"):
        program.write_bytes(b"no program")
        program.chmod(0o755)
    places = [str(tmp_path / name) for name in ("allowed", "secret", "program")]
    run = subprocess.run(
        [sys.executable, "-c", CONFINED, *places], capture_output=True, text=True, check=True
    )
    refused = [word == "PermissionError" for word in run.stdout.split()]
    assert refused == [False, True, True, False, True, False, *[True] * 7, False, False], run.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="of root alone")
def test_no_limit_of_threads_is_claimed_for_root(opened):
    limit = opened(MeanColour()).limits["threads"]
    assert limit == {
        "held": False,
        "how": "refused by the system: RLIMIT_NPROC does not apply to root",
    }


def test_what_a_model_says_cannot_reach_the_terminal_as_a_command(opened):
    class Shouts(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if images.size(1) == 3:
                raise RuntimeError("\x1b]0;owned\x07\x1b[2J\u202e\x9b1m")
            return images

    with pytest.raises(Violation) as caught:
        ask(opened(Shouts()))
    assert str(caught.value).isprintable()


def test_the_network_is_not_there(opened):
    process = opened(MeanColour())
    if not process.limits["network"]["held"]:
        pytest.skip(f"this system does not hold it: {process.limits['network']['how']}")
    links = os.readlink(f"/proc/{process.pid}/ns/net"), os.readlink("/proc/self/ns/net")
    assert links[0] != links[1]


def test_the_process_ends_with_the_scorer(opened):
    """The line closes; what computes for ever is ended by the system with who started it."""
    process = opened(Hangs(), image_seconds=0.2)
    with pytest.raises(Violation) as caught:
        ask(process)
    assert caught.value.verdict == "hang"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")
def test_the_system_holds_the_limits_that_are_listed(opened):
    process = opened(MeanColour(), memory_bytes=2**30)
    listed = {name: limit["how"] for name, limit in process.limits.items()}
    assert listed["memory"] == "1.0 GiB in addition to PyTorch itself (RLIMIT_AS)"
    assert listed["files"] == "1 MiB each (RLIMIT_FSIZE)"
    if process.limits["reads"]["held"]:
        version = f"(Landlock {limits.landlock_version()})"
        assert listed["reads"] == f"the model and libraries alone {version}"
        assert listed["writes"] == f"none {version}"
    assert (listed["time_per_image"], listed["time"]) == ("120 s", "24 h in total")
    of, limits_ = Path(f"/proc/{process.pid}"), {}
    for line in (of / "limits").read_text().splitlines()[1:]:
        name, soft, hard, *_ = re.split(r"  +", line)
        limits_[name] = soft, hard
    assert limits_["Max file size"] == (str(2**20), str(2**20))
    assert limits_["Max core file size"] == ("0", "0")
    mapped = resource.getpagesize() * int((of / "statm").read_text().split()[0])
    soft, hard = map(int, limits_["Max address space"])
    assert soft == hard and 2**29 < soft - mapped < 2**31
    assert (of / "oom_score_adj").read_text() == "1000\n"
    assert "NoNewPrivs:\t1" in (of / "status").read_text() or not limits.landlock_version()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone")
def test_a_process_ends_with_the_one_that_started_it(opened):
    process = opened(MeanColour())
    process.server.process.kill()
    process.server.process.wait()
    stat = Path(f"/proc/{process.pid}/stat")
    until = time.monotonic() + 60
    while stat.exists() and " Z " not in stat.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert time.monotonic() < until
    with pytest.raises(UserError, match="the process that starts models ended, usually for lack"):
        process.end()
    assert ask(opened(MeanColour()))[0].count == 48  # another one is started


@pytest.mark.slow
def test_a_scorer_that_ends_during_a_request_leaves_no_traceback(tmp_path, capfd):
    alone, (ours, theirs) = Server(), socket.socketpair()
    request = {"model": "", "scratch": str(tmp_path), "memory_bytes": 2**30, "threads": 1}
    with ours, theirs, tempfile.TemporaryFile() as errors:
        lines = [theirs.fileno(), errors.fileno()]
        socket.send_fds(alone.control, [json.dumps(request).encode()], lines)
        alone.control.close()
        assert alone.process.wait(60) == 0
    assert capfd.readouterr().err == ""


def test_a_process_that_is_killed_is_a_verdict(opened):
    process = opened(MeanColour())
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Violation, match="SIGKILL") as caught:
        ask(process)
    assert caught.value.verdict == "out_of_memory"


def listening() -> tuple[ModelProcess, socket.socket]:
    """The scorer's side without a process: the test says what one would."""
    process = ModelProcess.__new__(ModelProcess)
    process.line, theirs = socket.socketpair()
    process.allowance, process.deadline = Allowance(threads=1), time.monotonic() + 60
    process.is_running, process.peak_bytes, process.pid = True, 0, 0
    process.stderr = tempfile.TemporaryFile()
    process.server = SimpleNamespace(end=lambda pid: 0)
    return process, theirs


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(payload)) + header + payload


def describe(**words) -> bytes:
    return json.dumps({"type": "torch.float32", "numbers": [3], "seconds": 0.1} | words).encode()


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<II", 2**31, 0),
        struct.pack("<II", 2, 2**31) + b"{}",
        frame(b"[]"),
        frame(b"{"),
        frame(b"[" * 60000),
        frame(b"\xff\xff"),
        frame(b"{}"),
        frame(describe(numbers=[3, 3]), bytes(12)),
        frame(describe(numbers=["x"]), bytes(12)),
        frame(describe(numbers=[-3]), bytes(12)),
        frame(describe(numbers=[True]), bytes(4)),
        frame(describe(numbers=[10**30]), bytes(12)),
        frame(describe(numbers=[4]), bytes(12)),
        frame(describe(), bytes(13)),
        b"",
    ],
    ids=range(15),
)
def test_a_hostile_answer_is_a_crash_and_no_more(said):
    process, theirs = listening()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(Violation) as caught:
        ask(process)
    assert caught.value.verdict == "crash" and not process.is_running
    theirs.close()


@pytest.mark.parametrize("made_up", [-1, "much", True, 10**400, float("nan"), float("inf")])
def test_numbers_that_a_hostile_answer_makes_up_are_harmless(made_up):
    process, theirs = listening()
    words = describe(seconds=made_up, peak_bytes=made_up, type=["?"])
    theirs.sendall(frame(words.replace(b"Infinity", b"1e999"), bytes(12)))
    (answer,) = ask(process)
    assert (answer.type, answer.count, answer.seconds) == ("['?']", 3, 0.0)
    assert process.peak_bytes == 0
    theirs.close()


def test_a_process_that_has_done_nothing_has_used_nothing(opened):
    process = opened(MeanColour())
    assert (process.weight_bytes, process.peak_bytes) == (0, 0)
    assert ask(process)[0].seconds > 0 and process.peak_bytes > 2**24
    assert opened(torch.nn.Conv2d(3, 4, 1)).weight_bytes == 4 * (3 * 4 + 4)
    assert process.end() < 0 and process.end() == 0  # the second time it is not running any more


def test_who_does_not_read_is_not_waited_for():
    ours, theirs = socket.socketpair()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.send(ours, {}, bytes(2**24), 0.2)
    assert time.monotonic() - began < 60
    theirs.close()
    with pytest.raises(wire.Broken):
        wire.receive(ours, 1)


def test_limits_are_told_where_the_system_refuses(monkeypatch, tmp_path):
    binding = Binding(tmp_path, 2**30, 1)
    monkeypatch.setattr(limits, "landlock_version", lambda: 0)
    binding._try("reads", binding._bind_paths)
    assert binding.described()["reads"] == {
        "held": False,
        "how": "refused by the system: the system has no Landlock",
    }


def test_an_operation_is_counted_and_memory_measured(opened):
    class Product(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            table = images.float().mean() + torch.ones([4096, 1024])
            return (table @ torch.ones([1024, 3])).mean(0, keepdim=True)

    measured = opened(Product()).measure(np.zeros((8, 8, 3), np.uint8))
    assert measured["flops"] == 2 * 4096 * 1024 * 3
    assert 2**24 <= measured["activation_bytes"] < 2**26
    assert measured["machine_flops"] > 1e8 and measured["seconds"] > 0


def test_the_rate_is_operations_by_seconds(monkeypatch):
    """Three products until the time is over, and what the last look at the clock says."""
    clock = iter([5.0, 5.0, 5.04, 5.08, 5.12, 5.25])
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert measuring.matmul_rate(torch.device("cpu")) == 3 * 2 * 256 * 1024 * 1024 / 0.25


class Holds(torch.nn.Module):
    """Attributes of many kinds, of which a call changes one, or none."""

    maybe: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.maybe = None
        self.table = {"a": torch.ones(1)}
        self.pair = (1, torch.ones(2))
        self.numbers: list[float] = [1.0]
        self.inner = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height = images.size(2)
        if height == 1:
            self.maybe = torch.ones(3)
        elif height == 2:
            self.table["a"] += 1
        elif height == 3:
            self.pair[1].add_(1)
        elif height == 4:
            self.numbers.append(2.0)
        elif height == 5:
            for layer in self.inner:
                layer.weight.add_(1)
        return images.float().mean([2, 3])


def test_any_attribute_is_part_of_the_state(opened):
    process = opened(Holds())
    states = [process.state()]
    assert process.state() == states[0]
    for height in range(1, 7):
        ask(process, height)
        states.append(process.state())
    assert len(set(states[:6])) == 6 and states[6] == states[5]


class ChangesOneOfMany(torch.nn.Module):
    """In the middle of a large tensor, whose printed form leaves the middle out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(5000))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.table[2500] += 1
        return images.float().mean([2, 3])


def test_every_number_of_a_tensor_is_part_of_the_state(opened):
    process = opened(ChangesOneOfMany())
    before = process.state()
    ask(process)
    assert process.state() != before
