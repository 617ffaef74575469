"""Which batch fits a GPU, stage by stage of a config, estimated without a GPU.

python tests/bench/memory.py --config configs/vit_h14.yaml [--card-gb 80 24] [--classes 100000]

A step runs on tensors that have shapes and no content. Each storage is counted while it exists: weights,
gradients, optimizer state, what the backward pass keeps, temporary results. Autocast and the foreach
optimizer are those of CUDA. Not counted: CUDA's context, workspaces of libraries, and the allocator's gaps;
RESERVE is held back for them. GB are 10^9 bytes, of a single process. With DDP each process holds its
gradients twice.
"""

import argparse
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from common import arguments, show
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from guie.base import errors
from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.stages import StageConfig
from guie.data.dataset import Classes
from guie.losses.streamed import BLOCK_LOGITS
from guie.training.optim import build_optimizer, freeze
from guie.training.tasks import build_task

GB = 1e9
RESERVE = 2 * GB
GRANULE = 512  # bytes: CUDA allocates memory in blocks of this size
# Operations of backbones that CUDA's autocast runs in fp32 and the CPU's does not
IN_FP32 = ("layer_norm", "group_norm", "softmax")
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Usage:
    """Bytes of one step with one micro-batch."""

    weights: int
    gradients: int
    optimizer: int
    peak: int  # of all, at the step's worst moment


class Frame:
    """A task without content, whose steps are counted.

    Args:
        task: with its embedder, and its loss as `classes`; its weights are released.
        cuda: count as on a GPU; else as on this machine's CPU.
    """

    def __init__(self, task: nn.Module, config: RunConfig, cuda: bool = True):
        self.task, self.config, self.cuda = task, config, cuda
        self.mode = FakeTensorMode()
        with self.mode:
            for module in task.modules():
                for name, value in module._parameters.items():
                    if value is not None:
                        module._parameters[name] = nn.Parameter(torch.empty(value.shape))
                for name, value in module._buffers.items():
                    if value is not None:
                        module._buffers[name] = torch.empty(value.shape, dtype=value.dtype)

    def usage(self, stage: StageConfig, micro_batch: int, checkpointing: bool) -> Usage:
        """Count the second step of a stage: the first has no optimizer state yet."""
        size_px = stage.size_px or self.config.model.image.size_px
        with self.mode, ExitStack() as counted:
            optimizer = set_up(self.task, self.config, stage, checkpointing)
            for group in optimizer.param_groups:
                group["foreach"] = self.cuda or None
            if self.cuda:
                counted.enter_context(cuda_autocast())
            tracker = counted.enter_context(Tracker(GRANULE if self.cuda else 1))
            shape = (micro_batch, 3, size_px, size_px)
            step(self.task, optimizer, shape, self.config.precision)
            tracker.peak = tracker.live
            step(self.task, optimizer, shape, self.config.precision)
        parameters = list(self.task.parameters())
        weights, gradients = bytes_of(parameters), bytes_of(trained(parameters))
        states = bytes_of(tree_leaves([list(s.values()) for s in optimizer.state.values()]))
        self.task.zero_grad()
        classes = max((len(p) for p in self.task.criterion.parameters()), default=0)
        extra = 3 * 4 * min(micro_batch * classes, BLOCK_LOGITS["cuda"])  # logits, and two copies
        extra += weights * bool(stage.ema_decay) + gradients * bool(stage.sam_rho)
        # The tracker does not see the weights, which were there before it
        return Usage(weights, gradients, states, weights + tracker.peak + extra)


class Tracker(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, as long as they live.

    Attributes: `live`, now; `peak`, the most since it was last set.
    """

    def __init__(self, granule: int = 1):
        super().__init__()
        self.granule, self.live, self.peak = granule, 0, 0
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        before = {id(storage) for storage in storages_of((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for storage in storages_of(out):
            if id(storage) not in before and id(storage) not in self.known:
                self._note(storage)
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), -(-storage.nbytes() // self.granule) * self.granule
        self.known[key] = weakref.ref(storage, lambda _: self._forget(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        del self.known[key]
        self.live -= size


def storages_of(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def bytes_of(tree: Any) -> int:
    return sum(storage.nbytes() for storage in storages_of(tree))


def trained(parameters: Any) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


def largest_batch(peak: Callable[[int], float], limit: float, most: int = 2**16) -> int:
    """The largest batch from 2 to `most` whose peak is within the limit; 0 if none is.

    Guesses along the line through the last two peaks, which is nearly exact.
    """
    peak = cache(peak)
    fits, too_many, tried = 1, most + 1, [2, 3]
    while fits + 1 < too_many:
        (a, b) = tried[-2:]
        slope = (peak(b) - peak(a)) / (b - a)
        guess = b + int((limit - peak(b)) // slope) if slope > 0 else too_many
        if guess in tried:
            guess += 1 if peak(guess) <= limit else -1
        guess = min(max(guess, fits + 1), too_many - 1)
        tried.append(guess)
        if peak(guess) <= limit:
            fits = guess
        else:
            too_many = guess
    return fits if fits > 1 else 0


def set_up(
    task: nn.Module, config: RunConfig, stage: StageConfig, checkpointing: bool
) -> torch.optim.Optimizer:
    """Set a stage as the training loop does."""
    backbone = task.embedder.backbone
    backbone.set_image_size(
        stage.size_px or config.model.image.size_px,
        stage.stride_px or config.model.backbone.stride_px,
    )
    if hasattr(backbone.tower, "set_grad_checkpointing"):
        backbone.tower.set_grad_checkpointing(checkpointing)
    freeze(task, stage.lr)
    task.train()
    if not stage.lr.trains_backbone:
        backbone.eval()
    return build_optimizer(task, stage)


def step(
    task: nn.Module, optimizer: torch.optim.Optimizer, shape: tuple[int, ...], precision: str
) -> None:
    """A step on the CPU, without the loss, which keeps no (B, C) matrix."""
    dtype = PRECISIONS.get(precision)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = task.embedder(torch.ones(shape), torch.ones(shape[0], 3)).sum()
    for weight in trained(task.criterion.parameters()):  # so that they get a gradient
        loss = loss + weight.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Within it the functions IN_FP32 compute in fp32 where autocast is on."""

    def in_fp32(function: Callable) -> Callable:
        def call(values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            on = torch.is_autocast_enabled("cpu")
            return function(values.float() if on else values, *args, **kwargs)

        return call

    with ExitStack() as patched:
        for name in IN_FP32:
            wider = in_fp32(getattr(functional, name))
            patched.enter_context(mock.patch.object(functional, name, wider))
        yield


def build(config: RunConfig, classes: int) -> nn.Module:
    """The task with random weights and this number of classes."""
    labels = [f"{number:08d}" for number in range(classes)]
    return build_task(config, Classes(labels, [10] * classes, ["one"] * classes), pretrained=False)


def fitting(config: RunConfig, args: argparse.Namespace) -> Iterator[list]:
    """A row for each stage, with gradient checkpointing too if it trains features."""
    frame = Frame(build(config, args.classes), config)
    for stage in config.stages:
        for checkpointing in (False, True) if stage.lr.trains_features else (False,):
            used: dict[int, Usage] = {}

            def peak(batch: int, stage=stage, checkpointing=checkpointing, used=used) -> int:
                used[batch] = frame.usage(stage, batch, checkpointing)
                return used[batch].peak

            fits = [largest_batch(peak, gb * GB - RESERVE) for gb in args.card_gb]
            states = (used[2].weights / GB, used[2].gradients / GB, used[2].optimizer / GB)
            a, b = sorted(used)[-2:]
            each_mb = (used[b].peak - used[a].peak) / (b - a) / 1e6
            size_px = stage.size_px or config.model.image.size_px
            words = [f"{n} (x{-(-stage.batch_size // n)})" if n else "none" for n in fits]
            yield [stage.name, size_px, *states, checkpointing, each_mb, *words]


def main(_: object = None) -> None:
    args = arguments(__doc__, config=str, set=[], card_gb=[80.0, 24.0], classes=100_000)
    config = load_config(args.config, RunConfig, args.set)
    if config.task.name != "classification":
        raise UserError(f"{args.config}: only task classification is counted")
    title = (
        f"{args.config}, precision {config.precision}, {args.classes} classes; GB; images that fit"
        f" a GPU at once, {RESERVE / GB:.0f} GB of it held back, and how often to accumulate"
    )
    heads = ["stage", "px", "weights", "grads", "states", "checkpointing", "MB/image"]
    show([*heads, *(f"{gb:g} GB" for gb in args.card_gb)], fitting(config, args), title)


if __name__ == "__main__":
    errors.run(main)
