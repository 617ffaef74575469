"""One training step: gradients in micro-batches, out-of-memory handling, SAM, loss checks.

Shapes: B images of this process's batch.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

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

# torch's batch normalisation, for one image
NO_STATISTICS = "Expected more than 1 value per channel"


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
    run in micro-batches. Before a retry, running statistics and all other state of a forward pass are
    restored. `draw` has integers that seed dropout: seed, stage, step, rank.

    Raises UserError if the config or the batch size allows no halving, or if there are other processes:
    they would wait for this one in the middle of a step.
    """
    stage, alone = config.stages[state.stage], accelerator.num_processes == 1
    restore = forward_state(model) if alone else None  # several processes stop at once
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
            raise UserError(
                f"stage {stage.name}: batch_size {stage.batch_size} in {pieces} micro-batches leaves one"
                " image for batch normalisation, which needs two; raise batch_size, or lower accumulate"
            ) from None
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            model.zero_grad(set_to_none=True)
            if restore:
                restore()
            small = pieces * 2 > len(batch)
            if config.on_out_of_memory == "stop" or small or not alone:
                more = f"raise train.accumulate to {pieces * 2} (or on_out_of_memory: halve)"
                advice = "lower the image size" if small else f"{more}, lower batch_size"
                raise UserError(
                    f"out of memory at step {state.step + 1} of stage {stage.name}, batch_size"
                    f" {stage.batch_size} in {pieces} micro-batches; {advice} or take a smaller"
                    " backbone, and --resume"
                ) from None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state.halvings += 1
        print(f"out of memory: {pieces * 2} micro-batches a step from now on", file=sys.stderr)


def forward_state(model: nn.Module) -> Callable[[], None]:
    """Copy the state that forward passes change; return a function that restores it.

    That is: running statistics, CurricularFace's t, a memory's queue.
    """
    modules = [*model.modules()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    plain = nn.Module.get_extra_state
    extra = [(m, m.get_extra_state()) for m in modules if type(m).get_extra_state is not plain]
    counts = [(one, dict(one.counts)) for one in modules if isinstance(one, HostCounters)]

    @torch.no_grad()
    def restore() -> None:
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        for module, state in extra:
            module.set_extra_state(state)
        for counter, before_counts in counts:
            counter.counts = dict(before_counts)

    return restore


def sam_step(
    model: nn.Module, gradients: Callable[[], dict[str, Tensor]], rho: float
) -> dict[str, Tensor]:
    """Leave SAM's gradients in the parameters; return the logs at the unperturbed weights.

    Foret et al., Sharpness-Aware Minimization, ICLR 2021, eq. 2. Running state changes only in the pass
    at the unperturbed weights. If the norm is not finite, weights are not perturbed: the second pass then
    overflows like the first, and a scaler skips the step as it would without SAM. `gradients` leaves the
    gradients of the batch in the parameters, and returns logs.
    """
    restore_before = forward_state(model)
    logs = gradients()
    restore_after = forward_state(model)
    parameters = [one for one in model.parameters() if one.grad is not None]
    unperturbed = [one.detach().clone() for one in parameters]
    _move_along_gradient(parameters, rho)
    model.zero_grad(set_to_none=True)
    try:
        restore_before()
        gradients()
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, unperturbed, strict=True):
                parameter.copy_(value)
    restore_after()
    return logs


@torch.no_grad()
def _move_along_gradient(parameters: Sequence[nn.Parameter], length: float) -> None:
    grads = [one.grad for one in parameters if one.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    for parameter, grad in zip(parameters, grads, strict=True):
        by = grad * (length / (norm + 1e-12)).to(grad.device)
        parameter.add_(by.nan_to_num(0.0, 0.0, 0.0))  # an infinite gradient gives 0 * inf


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


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or the CPU's allocator, ran out of memory."""
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
