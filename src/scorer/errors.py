"""The two errors that end a scoring without a score."""

from __future__ import annotations


class UserError(Exception):
    """A fault in the input; the message names file, row and remedy in one line."""


class Violation(Exception):
    """The submission breaks the contract; the message says in one line what was found.

    `verdict`: overrides the verdict of the failed check.
    """

    def __init__(self, message: str, verdict: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict


def printable(text: str, most: int = 300) -> str:
    """Remove terminal controls from untrusted text: escapes, line breaks, direction marks."""
    return "".join(c for c in text if c.isprintable())[:most]


def one_line(error: object) -> str:
    """Return the line with the cause: PyTorch's first line, TorchScript's last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0][:200]
