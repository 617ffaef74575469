"""The submission's TorchScript file: written by today's PyTorch, read by the challenge's 1.11.

`package` traces the encoder with operators that 1.11 has and scripts the preprocessing; `downgrade`
rewrites the archive in the format that 1.11 reads; `check_operators` names what 1.11 still could
not run; `parity` measures the saved file against the eager model.
"""

from guie.export.formats import FORMATS, check_format, write_format
from guie.export.operators import check_operators
from guie.export.parity import differences, odd_sizes, parity, remembered
from guie.export.torchscript import (
    RUNTIME_FORMAT,
    downgrade,
    format_version,
    package,
    portable_operators,
)

__all__ = [
    "FORMATS",
    "RUNTIME_FORMAT",
    "check_format",
    "check_operators",
    "differences",
    "downgrade",
    "format_version",
    "odd_sizes",
    "package",
    "parity",
    "portable_operators",
    "remembered",
    "write_format",
]
