"""One training step: gradients in micro-batches, out-of-memory handling, SAM, loss checks.

Shapes: B images of this process's batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.data.dataset import Batch
from guie.losses.base import HostCounters
from guie.training.checkpoint import TrainState
from guie.training.tasks.base import Task

# torch's batch normalisation, for one image
NO_STATISTICS = "Expected more than 1 value per channel"


def refuse_lone_images(accelerator: Accelerator, config: RunConfig) -> None:
    """Raise UserError if a micro-batch has one image and the head has batch normalisation."""
    if not config.model.head or config.model.head.norm not in ("bn", "bn_plain"):
        return
    for number, stage in enumerate(config.stages):
        own = max(1, stage.batch_size // accelerator.num_processes)
        pieces = 1 if config.task.compares_images else min(stage.accumulate, own)
        if own // pieces * accelerator.num_processes < 2:
            raise UserError(f"stages.{number}.batch_size: {_lone(stage, pieces)}")


def refuse_unsynced(accelerator: Accelerator, config: RunConfig) -> None:
    """Raise UserError for `batch_norm: synced` in several processes on CPUs."""
    synced = any("synced" in stage.batch_norm_modes for stage in config.stages)
    if synced and accelerator.num_processes > 1 and accelerator.device.type == "cpu":
        raise UserError(
            "batch_norm: synced: torch.nn.SyncBatchNorm needs GPUs; set it to train, or use one process"
        )


def train_mode(task: Task, stage: StageConfig) -> None:
    """Set train mode; a wholly frozen backbone, adapters or prompts stay in eval mode, without randomness.

    BatchNorm layers that the stage's `batch_norm` trains do so in a frozen backbone too.
    """
    task.train()
    backbone = task.embedder.backbone
    if not stage.lr.trains_backbone:
        backbone.tower.eval()
        for norm in backbone.trained_batch_norms().values():
            norm.train()
    for part, added in (("adapters", backbone.adapters), ("prompts", backbone.prompts)):
        if added and not stage.lr.of(part):
            added.eval()


def gradients(
    accelerator: Accelerator, model: nn.Module, batch: Batch, pieces: int
) -> dict[str, Tensor]:
    """Leave the gradients of the batch's mean loss in the parameters; return the mean logs.

    The batch goes through the model in `pieces` micro-batches, for a loss that is a mean over images.
    Batch normalisation sees a micro-batch instead of the batch.
    """
    means: dict[str, Tensor] = {}
    done = 0
    for piece in batch.split(pieces):
        done, share = done + len(piece), len(piece) / len(batch)
        # Processes exchange gradients once a step, with the last micro-batch.
        with nullcontext() if done == len(batch) else accelerator.no_sync(model):
            with accelerator.autocast():
                loss, logs = model(piece)
            accelerator.backward(loss * share)
        for name, value in logs.items():
            means[name] = means.get(name, 0.0) + value * share
    return means


def gradients_within_memory(
    accelerator: Accelerator,
    model: nn.Module,
    batch: Batch,
    config: RunConfig,
    state: TrainState,
    draw: Sequence[int],
) -> dict[str, Tensor]:
    """Compute `gradients`; when out of memory, halve the micro-batches or raise with advice.

    A loss that compares images sees the whole batch, as do head and criterion; the backbone and teachers
    run `in_micro_batches`. Before a retry, running statistics and all other state of a forward pass are
    restored.

    Args:
        draw: integers that seed dropout, independent of earlier steps: seed, stage, step, rank.

    Raises UserError if the config or the batch size allows no halving, or if there are other processes:
    they would wait for this one in the middle of a step.
    """
    stage, alone = config.stages[state.stage], accelerator.num_processes == 1
    before = moving_state(model) if alone else None  # several processes stop at once
    while True:
        pieces = stage.accumulate * 2**state.halvings
        torch.manual_seed(int(np.random.SeedSequence(draw).generate_state(1, np.uint64)[0]) >> 1)
        try:
            if config.task.compares_images:
                return gradients(accelerator, model, replace(batch, pieces=pieces), 1)
            return gradients(accelerator, model, batch, pieces)
        except ValueError as error:
            if NO_STATISTICS not in str(error):
                raise
            raise UserError(f"stage {stage.name}: {_lone(stage, pieces)}") from None
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            model.zero_grad(set_to_none=True)
            if before:
                restore(model, before)
            small = pieces * 2 > len(batch)
            if config.on_out_of_memory == "stop" or small or not alone:
                raise UserError(_advice(stage, state, pieces, small)) from None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state.halvings += 1
        print(f"out of memory: {pieces * 2} micro-batches a step from now on", file=sys.stderr)


class ForwardState(NamedTuple):
    """State that a forward pass changes: running statistics, CurricularFace's t, a memory's queue."""

    buffers: list[Tensor]
    extra: dict[str, Any]
    counts: dict[str, dict[str, int]]


def moving_state(model: nn.Module) -> ForwardState:
    """Copy the state that forward passes change, for `restore`."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    counts = {name: dict(one.counts) for name, one in _counting(model)}
    return ForwardState(buffers, dict(_extra_states(model)), counts)


@torch.no_grad()
def restore(model: nn.Module, state: ForwardState) -> None:
    """Restore the state from `moving_state`."""
    for buffer, before in zip(model.buffers(), state.buffers, strict=True):
        buffer.copy_(before)
    for name, extra in state.extra.items():
        model.get_submodule(name).set_extra_state(extra)
    for name, module in _counting(model):
        module.counts = dict(state.counts[name])


def _counting(model: nn.Module) -> Iterator[tuple[str, HostCounters]]:
    for name, module in model.named_modules():
        if isinstance(module, HostCounters):
            yield name, module


def _extra_states(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield name, module.get_extra_state()


def sam_step(
    model: nn.Module, gradients: Callable[[], dict[str, Tensor]], rho: float
) -> dict[str, Tensor]:
    """Leave SAM's gradients in the parameters; return the logs at the unperturbed weights.

    Foret et al., Sharpness-Aware Minimization, ICLR 2021, eq. 2. Running state changes only in the pass
    at the unperturbed weights. If the norm is not finite, weights are not perturbed: the second pass then
    overflows like the first, and a scaler skips the step as it would without SAM.

    Args:
        gradients: leaves the gradients of the batch in the parameters, and returns logs.
    """
    before = moving_state(model)
    logs = gradients()
    after = moving_state(model)
    with sam_perturbation(model, rho):
        restore(model, before)
        gradients()
    restore(model, after)
    return logs


@contextmanager
def sam_perturbation(model: nn.Module, rho: float) -> Iterator[None]:
    """Context with the weights moved by `rho` along their gradient; the gradient is cleared."""
    here = _perturb(model, rho)
    model.zero_grad(set_to_none=True)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in here:
                parameter.copy_(value)


@torch.no_grad()
def _perturb(model: nn.Module, rho: float) -> list[tuple[nn.Parameter, Tensor]]:
    """Move parameters along their gradients; return them with their old values. Keeps no gradient alive."""
    moved = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([grad for _, grad in moved])
    here = [(parameter, parameter.clone()) for parameter, _ in moved]
    for parameter, grad in moved:
        by = grad * (rho / (norm + 1e-12)).to(grad.device)
        parameter.add_(by.nan_to_num(0.0, 0.0, 0.0))  # an infinite gradient gives 0 * inf
    return here


def clip_gradients(accelerator: Accelerator, model: nn.Module, stage: StageConfig) -> None:
    """Clip the gradients' norm, then each gradient, where the stage says so; fp16's are unscaled first."""
    if stage.clip_grad_norm:
        accelerator.clip_grad_norm_(model.parameters(), stage.clip_grad_norm)
    if stage.clip_grad_value:
        if not stage.clip_grad_norm:  # which has unscaled them
            accelerator.unscale_gradients()
        nn.utils.clip_grad_value_(model.parameters(), stage.clip_grad_value)


class LossWatch:
    """Stop a run whose loss is not finite, without synchronising with the device at every step."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, dict[str, float]]] = []

    def add(self, loss: Tensor, rows: Tensor, rates: dict[str, float]) -> None:
        """Record a step: its loss, row numbers and learning rates."""
        self.seen.append((loss.detach(), rows, rates))

    def check(self, accelerator: Accelerator, paths: Any, stage: StageConfig, step: int) -> None:
        """Raise UserError if a loss since the last check was not finite, in any process.

        Args:
            paths: image_path of every training row.
            step: number of finished steps of the stage.
        """
        seen, self.seen = self.seen, []
        if not seen:
            return
        finite = torch.stack([loss for loss, _, _ in seen]).isfinite()
        everywhere = accelerator.reduce(finite.float().min(), "mean").item() == 1.0
        if everywhere:
            return
        if finite.all():
            raise UserError("the loss of another process is not finite; see that process's message")
        first = int((~finite).nonzero()[0])
        loss, rows, rates = seen[first]
        shown = ", ".join(paths[row] for row in rows.tolist()[:8])
        raise UserError(
            f"loss is {loss.item()} at step {step - len(seen) + first + 1} of stage {stage.name},"
            f" learning rates {rates}; lower them or set clip_grad_norm; the last checkpoint is"
            f" intact; images: {shown} ..."
        )


def _lone(stage: StageConfig, pieces: int) -> str:
    return (
        f"batch_size {stage.batch_size} in {pieces} micro-batches leaves one image for batch"
        " normalisation, which needs two; raise batch_size, or lower accumulate"
    )


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the CPU's allocator, ran out of memory."""
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _advice(stage: StageConfig, state: TrainState, pieces: int, small: bool) -> str:
    more = f"raise train.accumulate to {pieces * 2} (or on_out_of_memory: halve), lower batch_size"
    return (
        f"out of memory at step {state.step + 1} of stage {stage.name}, batch_size"
        f" {stage.batch_size} in {pieces} micro-batches;"
        f" {'lower the image size' if small else more} or take a smaller backbone, and --resume"
    )
