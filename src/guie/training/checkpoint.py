"""Checkpoints from which a run resumes bit-identically: weights, optimiser, counters.

A checkpoint is one file, `step_00000120-<hash>.pt`, written under another name, then renamed. The hash is
that of its content, so damage can be detected. Training goes on while a thread writes: it waits only
for a copy of the state in host memory.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.models.weights import read_frozen

FOLDER = "checkpoints"
UNNAMED = "new.pt"  # complete, and about to be renamed
HASH_CHARS = 16
VERSION = 2  # of what a checkpoint holds
# Prefix of the embedder's names in each state dict
EMBEDDER = {"task": "embedder.", "ema": "module.embedder."}
NAME = re.compile(r"step_\d{8}-[0-9a-f]{16}\.pt")


@dataclass
class TrainState:
    """Progress of a run. What is random is a function of these counters and the seed."""

    stage: int = 0
    step: int = 0  # of the stage
    global_step: int = 0
    best_score: float | None = None  # of the best model; None without a val split
    best_step: int = 0
    unscored: bool = False  # the validation after this step is still to run
    stale: int = 0  # validations of this stage without a better score
    halvings: int = 0  # of this stage's micro-batches, after running out of memory
    # Steps done of each stage that patience ended, by its name
    stopped_early: dict[str, int] = field(default_factory=dict)

    def next_stage(self) -> None:
        """Begin the next stage; the counters of the whole run continue."""
        self.stage, self.step, self.stale, self.halvings = self.stage + 1, 0, 0, 0


class Checkpoints:
    """The newest `keep` checkpoints of a run. With two, damage to the newest costs steps, not the run.

    As a context it ends when the last one is written, also on an exception.
    """

    def __init__(self, run: Path, keep: int):
        self.folder, self.keep = run / FOLDER, keep
        self._host = HostCopies()
        self._writer = ThreadPoolExecutor(1, "checkpoint")  # an exit waits for it
        self._writing: Future[Path] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        try:
            self.wait()
        except UserError as error:
            if raised is None:
                raise
            print(f"warning: {error}", file=sys.stderr)

    def save(self, parts: dict[str, Any], state: TrainState) -> None:
        """Start to write the state after `state.global_step`; `wait` returns when it is written.

        Tensors may change once this returns. Older checkpoints beyond `keep` are removed at the end. The
        parts are those of `Stage.save`. Raises UserError if the checkpoint before could not be written.
        """
        self.wait()
        saved = {"version": VERSION, "state": asdict(state), **parts}
        copied, wait_for_copies = self._host.of(saved)
        step = state.global_step

        def write() -> Path:
            wait_for_copies()
            return self._write(copied, step)

        self._writing = self._writer.submit(write)

    def wait(self) -> Path | None:
        """Wait until the checkpoint of the last `save` is written; return its path, None without any.

        Raises UserError, once, if it could not be written.
        """
        writing, self._writing = self._writing, None
        return writing.result() if writing else None

    @property
    def fault(self) -> UserError | None:
        """Why the last `save` has failed, if it has; does not wait."""
        if self._writing is None or not self._writing.done():
            return None
        error = self._writing.exception()
        return error if isinstance(error, UserError) else None

    def _write(self, saved: dict[str, Any], step: int) -> Path:
        new = self.folder / UNNAMED
        with replacing(new) as temporary, temporary.open("wb") as file:
            torch.save(saved, file)
        path = self.folder / f"step_{step:08d}-{_digest(new)}.pt"
        os.replace(new, path)
        self._remove_all_but(path)
        return path

    def load(self, warn: bool = True) -> dict[str, Any] | None:
        """Load the newest intact checkpoint, `state` as an object; None without any.

        Damaged ones are skipped with a message on stderr. Raises UserError if all are damaged.
        """
        found = self.paths()[::-1]
        for path in found:
            damage = _damage(path)
            if damage is None:
                if path != found[0] and warn:
                    print(f"resuming from step {_step(path)}, {path}", file=sys.stderr)
                return _load(path)
            if warn:
                print(f"{path}: {damage}; skipped", file=sys.stderr)
        if found:
            raise UserError(f"{self.folder}: all checkpoints are damaged; --overwrite the run")
        return None

    def frozen(self) -> set[str | None]:
        """Return the files of frozen weights that the intact checkpoints need."""
        intact = [path for path in self.paths() if _damage(path) is None]
        saved = (torch.load(path, mmap=True, weights_only=True) for path in intact)
        return {values["frozen"] for values in saved}

    def paths(self) -> list[Path]:
        """Return all checkpoints, damaged or not, the earliest step first."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path for path in files if NAME.fullmatch(path.name))

    def _remove_all_but(self, newest: Path) -> None:
        # A checkpoint of a later step was damaged, and the run resumed from before it. Another one of
        # this step is from before its validation.
        others = [path for path in self.paths() if path != newest]
        later = [path for path in others if _step(path) >= _step(newest)]
        older = [path for path in others if _step(path) < _step(newest)]
        too_old = older[::-1][self.keep - 1 :]
        for path in (*later, *too_old, *self.folder.glob(".*.tmp.pt")):
            path.unlink(missing_ok=True)  # hidden files: writes interrupted by a kill


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_").partition("-")[0])


def check_identity(
    saved: dict[str, str], now: dict[str, str], folder: Path, warn: bool = True
) -> None:
    """Raise UserError if the training data changed; print a note if the code changed.

    The config and the class list are compared earlier, by their files.
    """
    if saved["rows"] != now["rows"]:
        raise UserError(
            f"{folder}: the training images, their labels or the sidecar's decode changed since the run"
            " started; restore the old manifest, or --overwrite the run"
        )
    if warn and saved["commit"] != now["commit"]:
        print(
            f"{folder}: started with code {saved['commit']}, resumed with {now['commit']}; the result"
            " is the same only if both compute the same",
            file=sys.stderr,
        )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load one checkpoint, `state` as an object. Raises UserError if it is damaged."""
    if damage := _damage(path):
        raise UserError(f"{path}: {damage}; remove it to use the others")
    return _load(path)


def without_frozen(parts: dict[str, Any], frozen: Iterable[str]) -> dict[str, Any]:
    """Return the parts of a checkpoint without the embedder's `frozen_names`."""
    rest = dict(parts)
    for key, prefix in EMBEDDER.items():
        names = {prefix + name for name in frozen}
        if parts[key]:
            rest[key] = {name: value for name, value in parts[key].items() if name not in names}
    return rest


def embedder_weights(saved: dict[str, Any]) -> dict[str, Tensor]:
    """Return the embedder's weights that a checkpoint would score: the EMA if the stage keeps one."""
    key = "ema" if saved["ema"] else "task"
    prefix = EMBEDDER[key]
    return {k.removeprefix(prefix): v for k, v in saved[key].items() if k.startswith(prefix)}


class HostCopies:
    """Copies of a state in host memory, which is used again for the next state.

    Copies of a state on a GPU are in page-locked memory, and are made while the GPU computes.
    """

    def __init__(self) -> None:
        self._memory: list[Tensor] = []

    def of(self, state: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
        """Return a copy of a nested state, and a function that waits until it is complete.

        The copy is valid until the next call. Tensors that share memory share it in the copy.
        """
        memory, self._memory = iter(self._memory), []
        copies: dict[tuple, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            layout = tensor.dtype, tensor.shape, tensor.stride()
            key = tensor.data_ptr(), tensor.device, *layout
            if key not in copies:
                held = next(memory, None)
                if (
                    held is None
                    or (held.dtype, held.shape, held.stride()) != layout
                    or held.is_pinned() != tensor.is_cuda
                ):
                    held = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
                self._memory.append(held)
                copies[key] = held.copy_(tensor, non_blocking=tensor.is_cuda)
            return copies[key]

        copy = map_tensors(copied, state)
        devices = {device for _, device, *_ in copies if device.type == "cuda"}
        arrivals = [torch.cuda.current_stream(device).record_event() for device in devices]

        def wait() -> None:
            for arrival in arrivals:
                arrival.synchronize()

        return copy, wait


def _load(path: Path) -> dict[str, Any]:
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its hash is right, but another program wrote it
        raise UserError(f"{path}: not a checkpoint: {str(error).splitlines()[0]}") from None
    if saved.get("version") != VERSION:
        raise UserError(
            f"{path}: written by another version of the code; resume with that, or --overwrite the run"
        )
    frozen = read_frozen(path.parents[1], saved["frozen"])
    for key, prefix in EMBEDDER.items():
        if saved[key]:
            saved[key] |= {prefix + name: value for name, value in frozen.items()}
    return saved | {"state": TrainState(**saved["state"])}


def _damage(path: Path) -> str | None:
    """Return what is wrong with the file; None if its content matches the hash in its name."""
    try:
        intact = _digest(path) in path.name
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if intact else "damaged, its content does not match its hash"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:HASH_CHARS]


def map_tensors(make: Callable[[Tensor], Any], values: Any) -> Any:
    """Replace every tensor in nested dicts and lists by `make(tensor)`."""
    if isinstance(values, Tensor):
        return make(values)
    if isinstance(values, dict):
        return type(values)((key, map_tensors(make, value)) for key, value in values.items())
    if isinstance(values, list):
        return [map_tensors(make, value) for value in values]
    return values
