"""Tables of a card."""

from __future__ import annotations

from typing import Any


def table(*rows: tuple[Any, ...], header: tuple[str, ...] = ("", "")) -> str:
    """A line a row, in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def cell(text: Any) -> str:
    """What somebody else wrote, without what would end a cell or be taken for a tag."""
    words = " ".join(str(text).split())
    return words.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
