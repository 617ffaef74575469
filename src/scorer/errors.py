"""The two ways in which a scoring ends without a score."""

from __future__ import annotations


class UserError(Exception):
    """A fault in the input; the message names file, row and remedy in one line."""


class Violation(Exception):
    """The submission breaks the contract; the message says in one line what was found.

    `verdict`: what it is, in a word, where that is another than the failed check tells.
    """

    def __init__(self, message: str, verdict: str = "") -> None:
        super().__init__(message)
        self.verdict = verdict


def printable(text: str, most: int = 300) -> str:
    """Foreign words without what a terminal would obey: escapes, line breaks, marks of direction."""
    return "".join(c for c in text if c.isprintable())[:most]


def one_line(error: object) -> str:
    """One line of an error: PyTorch names the cause in the first, TorchScript in the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if "TorchScript interpreter" in lines[0] else 0][:200]
