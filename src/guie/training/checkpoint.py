"""Checkpoints from which a run resumes bit-identically: weights, optimiser, counters.

A checkpoint is one file, `step_00000120-<hash>.pt`, written under another name, then renamed. Its name
holds the hash of its content, so one rename publishes both, and damage can be detected.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from guie.base.errors import UserError
from guie.base.files import replacing
from guie.models.weights import Base, keep_frozen, read_frozen

FOLDER = "checkpoints"
UNNAMED = "new.pt"  # complete, and about to be renamed
VERSION = 2  # of what a checkpoint holds
# Prefix of the embedder's names in each state dict
EMBEDDER = {"task": "embedder.", "ema": "module.embedder."}
NAME = re.compile(r"step_(\d{8})-([0-9a-f]{16})\.pt")


@dataclass
class TrainState:
    """Progress of a run. Everything random is a function of these counters and the seed."""

    stage: int = 0
    step: int = 0  # of the stage
    global_step: int = 0
    best_score: float | None = None  # of the best model; None without a val split
    best_step: int = 0
    unscored: bool = False  # the validation after this step is still to run
    stale: int = 0  # validations of this stage without a better score
    halvings: int = 0  # of this stage's micro-batches, after running out of memory

    def best(self) -> dict[str, float | int] | None:
        """Return step and score of the best model; None without validation."""
        if self.best_score is None:
            return None
        return {"val_r_at_1": self.best_score, "step": self.best_step}

    def next_stage(self) -> None:
        """Begin the next stage; the counters of the whole run continue."""
        self.stage, self.step, self.stale, self.halvings = self.stage + 1, 0, 0, 0


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to; see `check_identity`."""

    rows: str  # hash of the training rows
    commit: str  # of the code


class Checkpoints:
    """The checkpoints of one run; the newest `keep` are kept.

    Args:
        run: the run's folder.
        keep: how many to keep. With more than one, damage to the newest costs steps, not the run.
    """

    def __init__(self, run: Path, keep: int):
        self.folder, self.keep = run / FOLDER, keep

    def save(
        self,
        parts: dict[str, Any],
        frozen: set[str],
        state: TrainState,
        identity: Identity,
        base: Base | None = None,
    ) -> Path:
        """Write the state after `state.global_step`, then remove checkpoints beyond `keep`.

        Args:
            parts: `Stage.state_dict`.
            frozen: `frozen_names` of the embedder, which are kept once in the run's folder.
            base: as in `keep_frozen`.
        """
        saved = {"version": VERSION, "state": asdict(state)}
        saved |= _apart(parts, frozen, self.folder.parent, base)
        saved["identity"] = asdict(identity)
        new = self.folder / UNNAMED
        with replacing(new) as temporary:
            torch.save(saved, temporary)
        path = self.folder / f"step_{state.global_step:08d}-{_hash(new)}.pt"
        os.replace(new, path)
        self._remove_all_but(path, state.global_step)
        return path

    def load(self, warn: bool = True) -> dict[str, Any] | None:
        """Load the newest intact checkpoint, `state` and `identity` as objects; None without any.

        Damaged ones are skipped with a message on stderr. Raises UserError if all are damaged.
        """
        found = sorted(self._all(), reverse=True)
        for number, (step, path) in enumerate(found):
            damage = _damage(path)
            if damage is None:
                if number and warn:
                    print(f"resuming from step {step}, {path}", file=sys.stderr)
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
        return {values.get("frozen") for values in saved}  # none in those written until 2026-11

    def paths(self) -> list[Path]:
        """Return all checkpoints, damaged or not, the earliest step first."""
        return [path for _, path in sorted(self._all())]

    def _all(self) -> Iterator[tuple[int, Path]]:
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        for path in files:
            match = NAME.fullmatch(path.name)
            if match:
                yield int(match[1]), path

    def _remove_all_but(self, newest: Path, step: int) -> None:
        # A checkpoint of a later step was damaged, and the run resumed from before it. Another one of
        # this step is from before its validation.
        others = [(s, path) for s, path in self._all() if path != newest]
        later = [path for s, path in others if s >= step]
        older = [path for s, path in sorted(others, reverse=True) if s < step]
        for path in (*later, *older[self.keep - 1 :], *self.folder.glob(".*.tmp.pt")):
            path.unlink(missing_ok=True)  # hidden files: writes interrupted by a kill


def check_identity(saved: Identity, now: Identity, folder: Path, warn: bool = True) -> None:
    """Raise UserError if the training data changed; print a note if the code changed.

    The config and the class list are compared earlier, by their files.
    """
    if saved.rows != now.rows:
        raise UserError(
            f"{folder}: the training images or labels changed since the run started; restore the old"
            " manifest, or --overwrite the run"
        )
    if warn and saved.commit != now.commit:
        print(
            f"{folder}: started with code {saved.commit}, resumed with {now.commit}; the result is the"
            " same only if both compute the same",
            file=sys.stderr,
        )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load one checkpoint, `state` and `identity` as objects. Raises UserError if it is damaged."""
    damage = _damage(path)
    if damage:
        raise UserError(f"{path}: {damage}; remove it to use the others")
    return _load(path)


def _apart(parts: dict[str, Any], frozen: set[str], run: Path, base: Base | None) -> dict[str, Any]:
    """Return the parts without frozen weights, and the name of the file that holds these."""
    names = {key: {prefix + name: name for name in frozen} for key, prefix in EMBEDDER.items()}
    apart = {name: parts["task"][full] for full, name in names["task"].items()}
    rest = {
        key: {full: value for full, value in parts[key].items() if full not in names[key]}
        for key in names
        if parts[key]
    }
    return {**parts, **rest, "frozen": keep_frozen(run, apart, base)}


def _whole(saved: dict[str, Any], run: Path) -> dict[str, Any]:
    """Undo `_apart`."""
    frozen = read_frozen(run, saved.get("frozen"))
    for key, prefix in EMBEDDER.items():
        if saved[key]:
            saved[key] |= {prefix + name: value for name, value in frozen.items()}
    return saved


def _load(path: Path) -> dict[str, Any]:
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its hash is right, but another program wrote it
        raise UserError(f"{path}: not a checkpoint: {str(error).splitlines()[0]}") from None
    if saved.get("version") != VERSION:
        raise UserError(
            f"{path}: written by another version of the code; resume with that, or --overwrite the run"
        )
    state, identity = TrainState(**saved["state"]), Identity(**saved["identity"])
    return {**_whole(saved, path.parents[1]), "state": state, "identity": identity}


def _damage(path: Path) -> str | None:
    """Return what is wrong with the file; None if its content matches the hash in its name."""
    try:
        hashed = _hash(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if hashed in path.name else "damaged, its content does not match its hash"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
