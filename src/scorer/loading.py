"""Load the TorchScript file as the host does. Separate, as the scorer's main process has no torch."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from scorer.errors import Violation, one_line


def load(path: Path, device: torch.device) -> torch.jit.ScriptModule:
    """Load the TorchScript module as the host does: `torch.jit.load`, then `eval()`.

    Raises:
        Violation: PyTorch cannot load it.
        MemoryError: it exceeds this process's memory limit.
    """
    try:
        with warnings.catch_warnings():
            # TorchScript is deprecated, but the challenge demands it.
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            return torch.jit.load(str(path), map_location=device).eval()
    except Exception as error:  # PyTorch raises many types here; each means "does not load"
        if lacks_memory(error):
            raise MemoryError(one_line(error)) from error
        raise Violation(one_line(error)) from error


def lacks_memory(error: Exception) -> bool:
    """Return whether a PyTorch error means out of memory."""
    said = str(error).lower()
    signs = ("not enough memory", "out of memory", "can't allocate memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(sign in said for sign in signs)
