"""One training step: gradients in micro-batches, within memory, under watch.

Shapes: B images of this process's batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie.checkpoint import TrainState
from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.errors import UserError

Batch = Mapping[str, Any]


def train_mode(task: nn.Module, stage: StageConfig) -> None:
    """Train mode; a frozen backbone stays as it is scored, without dropout."""
    task.train()
    if not stage.lr.trains_backbone:
        task.embedder.backbone.eval()


def to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """The batch with its tensors on the device."""
    return {
        key: value.to(device, non_blocking=True) if torch.is_tensor(value) else value
        for key, value in batch.items()
    }


def gradients(
    accelerator: Accelerator, model: nn.Module, batch: Batch, pieces: int
) -> dict[str, Tensor]:
    """Leave the gradients of the batch's mean loss in the parameters; return the mean logs.

    The batch goes through the model in `pieces` micro-batches. What looks at a whole batch (batch
    normalisation, in-batch losses) sees a micro-batch instead.
    """
    size = len(batch["labels"])
    means: dict[str, Tensor] = {}
    done = 0
    for piece in _split(batch, pieces):
        count = len(piece["labels"])
        done += count
        # Processes exchange gradients once a step, with the last micro-batch.
        with nullcontext() if done == size else accelerator.no_sync(model):
            with accelerator.autocast():
                loss, logs = model(piece)
            accelerator.backward(loss * (count / size))
        for name, value in logs.items():
            means[name] = means.get(name, 0.0) + value * (count / size)
    return means


def gradients_within_memory(
    accelerator: Accelerator,
    model: nn.Module,
    batch: Batch,
    config: RunConfig,
    state: TrainState,
    draw: Sequence[int],
) -> dict[str, Tensor]:
    """`gradients`, and where memory runs out: halve the micro-batches, or say what to lower.

    Then running statistics, and whatever else a forward pass moves, are as they were before.

    Args:
        draw: integers from which dropout draws, whatever ran before: seed, stage, step, rank.

    Raises UserError if the config or the size of the batch allows no halving, or if other
    processes take part: they would wait for this one in the middle of a step.
    """
    stage = config.stages[state.stage]
    before = [buffer.clone() for buffer in model.buffers()]
    while True:
        pieces = stage.accumulate * 2**state.halvings
        torch.manual_seed(int(np.random.SeedSequence(draw).generate_state(1, np.uint64)[0]) >> 1)
        try:
            return gradients(accelerator, model, batch, pieces)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            model.zero_grad(set_to_none=True)
            _restore(model, before)
            alone = accelerator.num_processes == 1
            small = pieces * 2 > len(batch["labels"])
            if config.on_out_of_memory == "stop" or small or not alone:
                raise UserError(_advice(stage, state, pieces, small)) from None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state.halvings += 1
        print(f"out of memory: {pieces * 2} micro-batches a step from here on", file=sys.stderr)


@torch.no_grad()
def _restore(model: nn.Module, buffers: list[Tensor]) -> None:
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def sharpen(model: nn.Module, rho: float) -> list[tuple[nn.Parameter, Tensor]]:
    """Climb by `rho` along the gradient, to where SAM takes it anew; returns what to step back.

    Foret et al., Sharpness-Aware Minimization, ICLR 2021, eq. 2.
    """
    trained = [p for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in trained])
    climbed = []
    with torch.no_grad():
        for parameter in trained:
            climb = parameter.grad * (rho / (norm + 1e-12)).to(parameter.grad.device)
            parameter.add_(climb)
            climbed.append((parameter, climb))
    model.zero_grad(set_to_none=True)
    return climbed


@torch.no_grad()
def step_back(climbed: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Undo `sharpen`."""
    for parameter, climb in climbed:
        parameter.sub_(climb)


class LossWatch:
    """Stops a run whose loss is not finite, without waiting for the device at every step."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, dict[str, float]]] = []

    def add(self, loss: Tensor, rows: Tensor, rates: dict[str, float]) -> None:
        """Note a step: its loss, its row numbers, its learning rates."""
        self.seen.append((loss.detach(), rows, rates))

    def check(self, accelerator: Accelerator, paths: Any, stage: StageConfig, step: int) -> None:
        """Raise UserError if a loss since the last check was not finite, in any process.

        Args:
            paths: image_path of every training row.
            step: steps of the stage that are done.
        """
        seen, self.seen = self.seen, []
        if not seen:
            return
        finite = torch.stack([loss for loss, _, _ in seen]).isfinite()
        everywhere = accelerator.reduce(finite.float().min(), "mean").item() == 1.0
        if everywhere:
            return
        if finite.all():
            raise UserError("the loss of another process is not finite")
        first = int((~finite).nonzero()[0])
        loss, rows, rates = seen[first]
        shown = ", ".join(paths[row] for row in rows.tolist()[:8])
        raise UserError(
            f"loss is {loss.item()} at step {step - len(seen) + first + 1} of stage {stage.name},"
            f" learning rates {rates}; lower them or set clip_grad_norm; the last checkpoint is"
            f" intact; images: {shown} ..."
        )


def _split(batch: Batch, pieces: int) -> Iterator[dict[str, Any]]:
    """`pieces` parts of nearly equal size, none empty but of generic images.

    Parts weigh by their labels in the mean; `generic_scale` makes that right for generic images.
    """
    size = len(batch["labels"])
    pieces = min(pieces, size)
    for number in range(pieces):
        piece = {key: _part(value, number, pieces) for key, value in batch.items()}
        if "generic_images" in batch:
            share = len(piece["generic_images"]) / len(batch["generic_images"])
            piece["generic_scale"] = share * size / len(piece["labels"])
        yield piece


def _part(values: Any, number: int, pieces: int) -> Any:
    return values[len(values) * number // pieces : len(values) * (number + 1) // pieces]


def _out_of_memory(error: RuntimeError) -> bool:
    # The CPU's allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _advice(stage: StageConfig, state: TrainState, pieces: int, small: bool) -> str:
    more = f"raise train.accumulate to {pieces * 2} (or on_out_of_memory: halve), lower batch_size"
    return (
        f"out of memory at step {state.step + 1} of stage {stage.name}, batch_size"
        f" {stage.batch_size} in {pieces} micro-batches;"
        f" {'lower the image size' if small else more} or take a smaller backbone, and --resume"
    )
