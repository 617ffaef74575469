"""What a training step holds in a GPU's memory, counted without a GPU and without the memory.

A step runs on tensors that have shapes and no content; each storage is counted while it lives:
weights, gradients, optimiser state, what the backward pass keeps, what comes and goes. Autocast
and the foreach optimiser are those of CUDA. Not counted: CUDA's context, the libraries' workspaces
and what the allocator loses between blocks, for all of which RESERVE is held back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from guie.config import RunConfig
from guie.config.stages import StageConfig
from guie.losses.streamed import BLOCK_LOGITS
from guie.training.optim import build_optimizer, freeze

GB = 1e9
RESERVE = 2 * GB
# CUDA hands out memory in blocks of this many bytes.
GRANULE = 512
# Of the operations that CUDA's autocast runs in fp32 and the CPU's does not, those of the towers.
IN_FP32 = ("layer_norm", "group_norm", "softmax")
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Usage:
    """Bytes of one step with one micro-batch."""

    weights: int
    gradients: int
    optimizer: int
    extra: int  # the moving average, SAM's way back, the loss's blocks
    peak: int  # of all, at the step's worst moment

    @property
    def activations(self) -> int:
        """The peak, but for what stays between two steps and the gradients."""
        return self.peak - self.weights - self.gradients - self.optimizer - self.extra


class Frame:
    """A task without content, of which steps are counted.

    Args:
        task: with its embedder, and its loss as `classes`; its weights are let go.
        cuda: count as on a GPU; else as on this machine's CPU.
    """

    def __init__(self, task: nn.Module, config: RunConfig, cuda: bool = True):
        self.task, self.config, self.cuda = task, config, cuda
        self.mode = FakeTensorMode()
        _let_go(task, self.mode)

    def usage(self, stage: StageConfig, micro_batch: int, checkpointing: bool) -> Usage:
        """Count the second step of a stage: the first has no optimiser state yet."""
        size_px = stage.size_px or self.config.model.image.size_px
        with self.mode, ExitStack() as counted:
            optimizer = set_up(self.task, self.config, stage, checkpointing)
            for group in optimizer.param_groups:
                group["foreach"] = self.cuda or None
            if self.cuda:
                counted.enter_context(_cuda_autocast())
            tracker = counted.enter_context(Tracker(GRANULE if self.cuda else 1))
            shape = (micro_batch, 3, size_px, size_px)
            step(self.task, optimizer, shape, self.config.precision)
            tracker.peak = tracker.live
            step(self.task, optimizer, shape, self.config.precision)
        parameters = list(self.task.parameters())
        weights, gradients = _bytes(parameters), _bytes(_trained(parameters))
        states = _bytes(tree_leaves([list(s.values()) for s in optimizer.state.values()]))
        extra = self._extra(stage, micro_batch, weights, gradients)
        self.task.zero_grad()
        # The weights were there before the tracker was.
        return Usage(weights, gradients, states, extra, weights + tracker.peak + extra)

    def _extra(self, stage: StageConfig, batch: int, weights: int, gradients: int) -> int:
        classes = max((len(p) for p in self.task.criterion.parameters()), default=0)
        block = 3 * 4 * min(batch * classes, BLOCK_LOGITS["cuda"])  # logits, and copies of them
        return block + weights * bool(stage.ema_decay) + gradients * bool(stage.sam_rho)


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
        before = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if _is(leaf)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if _is(leaf) and id(leaf.untyped_storage()) not in before:
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self.known:
            return
        size = -(-storage.nbytes() // self.granule) * self.granule
        self.known[key] = weakref.ref(storage, lambda _: self._forget(key, size))
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, size: int) -> None:
        del self.known[key]
        self.live -= size


def largest_batch(peak: Callable[[int], float], limit: float, most: int = 2**16) -> int:
    """The largest batch from 2 to `most` whose peak is within the limit; 0 where none is.

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
    """As the training loop sets a stage."""
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
    """Forward pass, backward pass and optimiser on the CPU, the loss left out: see below."""
    dtype = PRECISIONS.get(precision)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        loss = task.embedder(torch.ones(shape), torch.ones(shape[0], 3)).sum()
    # The loss itself keeps no (B, C) matrix; its weights get their gradient.
    for weight in _trained(task.criterion.parameters()):
        loss = loss + weight.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    """Within it the functions IN_FP32 take fp32 where autocast is on."""

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


def _let_go(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace parameters and buffers by such without content."""
    with mode:
        for child in module.modules():
            for name, value in child._parameters.items():
                if value is not None:
                    child._parameters[name] = nn.Parameter(torch.empty(value.shape))
            for name, value in child._buffers.items():
                if value is not None:
                    child._buffers[name] = torch.empty(value.shape, dtype=value.dtype)


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _trained(parameters: Any) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad]


def _bytes(tensors: Any) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors if _is(t))
