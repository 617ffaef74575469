"""What a student looks at and nobody trains."""

from __future__ import annotations

from typing import Self, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Apart:
    """Stands apart of the task that holds it, and is one for it and its moving averages.

    It is no module: no checkpoint, optimiser, reducer or `train()` reaches it.
    """

    def __deepcopy__(self, memo: dict) -> Self:
        return self


def frozen(model: M) -> M:
    """The model in eval mode, without gradients of its own; changed in place."""
    return model.eval().requires_grad_(False)
