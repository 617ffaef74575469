"""How pages are put together: templates that escape whatever they are given, in one file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from guie.base.files import write_text


def write_page(path: str | Path, template: str, values: Mapping[str, Any]) -> None:
    """Render a template of `pages/templates` and write it as one file that needs nothing beside it.

    Raises UserError: the file cannot be written.
    """
    page = _environment().get_template(template).render(values)
    # a file's name may hold bytes that are no UTF-8
    write_text(path, page.encode("utf-8", "backslashreplace").decode("utf-8"))


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("guie.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
