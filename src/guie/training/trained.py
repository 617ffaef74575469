"""What a stage trains, and all of it that a checkpoint holds: saved here, restored here."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from guie.config.stages import StageConfig
from guie.training.optim import averaged, build_optimizer
from guie.training.sharding import Shards, gathered, load_optimizer
from guie.training.tasks import Task


class Parameters(NamedTuple):
    """How many the embedder has, and how many of them a stage trains; class weights are not counted."""

    trainable: int
    total: int

    @classmethod
    def of(cls, embedder: nn.Module) -> Parameters:
        """Of an embedder that is whole, what trains of it settled."""
        sizes = [(one.numel(), one.requires_grad) for one in embedder.parameters()]
        return cls(sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes))


class Trained:
    """The task, its optimiser, and its running average if the stage keeps one.

    Attributes: `task`, whole, or this process's shards of it; `model`, the task as accelerate wraps
    it, once `prepare` was called; `parameters`, of the whole embedder.

    Args:
        task: whole, and what is trained of it settled.
        saved: what `state_dict` gave in this stage, to go on from.

    Raises UserError if nothing is left to train.
    """

    model: nn.Module
    optimizer: Optimizer

    def __init__(
        self,
        accelerator: Accelerator,
        task: Task,
        stage: StageConfig,
        saved: dict[str, Any] | None = None,
    ):
        self.accelerator, self.task, self.stage, self._saved = accelerator, task, stage, saved
        self._plain = build_optimizer(task, stage)
        self.parameters = Parameters.of(task.embedder)
        if saved:
            task.load_state_dict(saved["task"])
        self.ema: AveragedModel | None = None
        if stage.ema_decay:
            self.ema = averaged(task, stage.ema_decay)
            if saved:
                self.ema.load_state_dict(saved["ema"])

    def prepare(self) -> Trained:
        """Wrap, or take apart, what is trained, as accelerate has it; the task was whole so far."""
        self.shards = Shards(self.accelerator, self.task)
        if self.ema:
            self.shards.shard(self.ema.module)
        self.model, self.optimizer = self.accelerator.prepare(self.task, self._plain)
        if self._saved:
            load_optimizer(self.optimizer, self._saved["optimizer"])
            if self.accelerator.scaler:
                self.accelerator.scaler.load_state_dict(self._saved["scaler"])
        self._saved = None
        return self

    def state_dict(self) -> dict[str, Any]:
        """Whole state dicts by name, of use in the main process alone; all processes call it."""
        scaler = self.accelerator.scaler
        state = {
            "task": self.task.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "scaler": scaler.state_dict() if scaler else None,
        }
        return gathered(self.accelerator, state)

    def scored(self) -> Task:
        """What is validated and saved, whole; all processes call it."""
        if self.ema is None:
            return self.shards.whole(self.task)
        return self.shards.whole(cast(Task, self.ema.module))  # a copy of the task

    def release(self) -> tuple[Task, Task]:
        """What the next stage goes on from, whole again, and what of this one is scored."""
        scored = self.scored()
        unwrapped = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        averaged_on = self.ema is not None and self.stage.ema_goes_on == "averaged"
        task = scored if averaged_on else self.shards.whole(unwrapped)
        self.accelerator.free_memory(self.model, self.optimizer)
        return task, scored


def embedder_weights(saved: dict[str, Any]) -> dict[str, Tensor]:
    """What a checkpoint would have scored: the embedder's weights, averaged where a stage averages.

    Args:
        saved: what `Trained.state_dict` gave.
    """
    prefix, state = "embedder.", saved["task"]
    if saved["ema"]:
        prefix, state = "module.embedder.", saved["ema"]
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
