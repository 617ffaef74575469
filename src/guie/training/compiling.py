"""torch.compile and the memory format, both of the image tower: nearly all of a step's time.

The loss stays as it is: it is a loop over blocks of classes whose number changes by the batch.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager

import torch
from torch import nn

from guie.base.errors import UserError
from guie.config import RunConfig


def set_up_tower(tower: nn.Module, config: RunConfig) -> None:
    """Lay out and compile a tower for a stage, in place; names in its state dict stay.

    Raises UserError if there is no C++ compiler.
    """
    if config.channels_last:
        tower.to(memory_format=torch.channels_last)  # images follow at the first convolution
    if config.compile:
        _find_compiler()
        # Static shapes, and none from an earlier stage: a resumed run then compiles what the
        # uninterrupted one did, and computes the same bits.
        torch.compiler.reset()
        tower.compile(dynamic=False)


def uncompiled() -> AbstractContextManager[None]:
    """Within it nothing runs compiled: a validation would compile its last, short batch too."""
    return torch.compiler.set_stance("force_eager")


def _find_compiler() -> None:
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise UserError(
            f"compile: torch.compile needs a C++ compiler, {name} is not on PATH; install it, name"
            " another by $CXX, or set compile to false"
        )
