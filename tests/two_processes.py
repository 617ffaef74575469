"""A script of src/ in two processes, each a fork of a server that has imported it."""

import importlib
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import kills

PATIENCE_S = 300
# What `accelerate launch --use_fsdp` leaves in the environment
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
}


def start(
    script: str, words: list[str], said: Path | None = None, **environment: str
) -> list[multiprocessing.Process]:
    """Both processes of `script.main(words)`, started as a launcher does; what they say in a file."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    common |= {"LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true", **environment}
    ranks = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    processes = [
        kills.SERVER.Process(target=_run, args=(script, words, rank, said)) for rank in ranks
    ]
    for process in processes:
        process.start()
    return processes


def run(script: str, words: list[str], **environment: str) -> None:
    """Run it to its end; a failure of either fails the test."""
    codes = end(start(script, words, **environment))
    assert codes == [0, 0], f"{script} {' '.join(words)}: {described(codes)}"


def saved_by(work: Callable[..., None], folder: Path, *more: Any) -> list[Any]:
    """Call `work(rank, folder, *more)` in two processes; return what each saved as `<rank>.pt`, if it did."""
    torch.multiprocessing.start_processes(
        work, args=(str(folder), *more), nprocs=2, start_method="forkserver"
    )
    return [torch.load(file, weights_only=True) for file in sorted(folder.glob("[01].pt"))]


def join(rank: int, folder: str, **environment: str) -> None:
    """Let this process join a group of two, in the environment that a launcher leaves."""
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "WORLD_SIZE": "2"}
    common |= {"LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= common | {"OMP_NUM_THREADS": "1"} | environment
    torch.set_num_threads(1)
    file = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=file, rank=rank, world_size=2)


def leave() -> None:
    """Leave the process group, as each process that joined must at its end.

    The destructor holds the GIL while it joins gloo's threads. In PyTorch 2.7 one of these may still wait
    for the GIL to free a tensor of the last collective; a barrier lets it have it first.
    """
    distributed.barrier()
    distributed.destroy_process_group()


def begin(log: Path, lines: int, words: list[str], **environment: str) -> int:
    """Train until the log has so many lines, then SIGTERM to both; returns its lines."""
    processes = start("train", words, **environment)
    while all(process.is_alive() for process in processes) and kills.count_lines(log) < lines:
        time.sleep(0.01)
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    codes = end(processes)
    assert codes == [128 + signal.SIGTERM] * 2, described(codes)
    return kills.count_lines(log)


def end(processes: list[multiprocessing.Process]) -> list[int | None]:
    """Their exit codes; None for one that does not end, and is killed."""
    for process in processes:
        process.join(PATIENCE_S)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


def described(codes: list[int | None]) -> str:
    late = f"did not end in {PATIENCE_S} s"
    return "; ".join(
        f"process {rank}: {late if code is None else f'exit code {code}'}"
        for rank, code in enumerate(codes)
    )


def _run(script: str, words: list[str], environment: dict[str, str], said: Path | None) -> None:
    os.environ |= environment
    if said:
        kills.say_into(said)
    torch.set_num_threads(1)
    # As under torchrun; else their workers were the server's, and imported all of it anew.
    multiprocessing.set_start_method("fork", force=True)
    importlib.import_module("guie.base.errors").run(
        lambda _: importlib.import_module(script).main(words)
    )
