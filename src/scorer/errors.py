"""The two errors that end a scoring without a score."""


class UserError(Exception):
    """A fault in the input; the message names file, row and remedy in one line."""


class Violation(Exception):
    """The submission breaks the contract; `verdict` overrides that of the failed check."""

    def __init__(self, message: str, verdict: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict


def one_line(error: object) -> str:
    """Return the line with the cause: PyTorch's first, TorchScript's last; without control characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    line = lines[-1 if "TorchScript interpreter" in lines[0] else 0]
    return "".join(c for c in line if c.isprintable())[:200]
