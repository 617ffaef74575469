"""Write a submission's TorchScript file with current PyTorch, for the challenge's PyTorch 1.11.

`package` traces the encoder with operators of 1.11, and scripts the preprocessing. `downgrade` rewrites
the archive in the format of 1.11. `check_operators` lists the operators that 1.11 cannot run. `parity`
compares the saved file with the eager model.
"""

from guie.export.operators import check_operators
from guie.export.parity import odd_sizes, parity
from guie.export.torchscript import (
    RUNTIME_FORMAT,
    downgrade,
    format_version,
    package,
    portable_operators,
)

__all__ = [
    "RUNTIME_FORMAT",
    "check_operators",
    "downgrade",
    "format_version",
    "odd_sizes",
    "package",
    "parity",
    "portable_operators",
]
