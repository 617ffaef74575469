"""Write the reference of all config keys, the end of configs/README.md, from src/guie/config.

python configs/keys.py

A key's description is its comment in the source; a block's is the docstring of its class.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainValidator
from pydantic.fields import FieldInfo

from guie.config import MixConfig, RunConfig, to_yaml
from guie.config.durations import Duration
from guie.config.ensemble import ComposeConfig
from guie.config.study import StudyConfig

README = Path(__file__).with_name("README.md")
MARK = "<!-- The rest is written by: python configs/keys.py -->\n"
ROOTS = {
    "A training run (`train.py`)": RunConfig,
    "A mix (`curate.py`)": MixConfig,
    "An ensemble (`compose.py`)": ComposeConfig,
    "A study (`study.py`)": StudyConfig,
}
NAMES = {int: "integer", float: "number", bool: "`true` or `false`", str: "text", Any: "any"}
NAMES |= {NoneType: "`null`", Duration: "duration", dict: "mapping"}
TOO_MUCH = 2**31 - 1  # limits of integers say nothing to a reader

Model = type[BaseModel]


def reference() -> str:
    """Return the reference as Markdown."""
    seen: set[Model] = set()
    lines = [line for title, root in ROOTS.items() for line in section(title, root, seen)]
    return "\n".join(lines) + "\n"


def section(title: str, root: Model, seen: set[Model]) -> Iterator[str]:
    """Yield the lines of a config and of the blocks in it that no earlier section has."""
    yield f"\n## {title}"
    for model, path in blocks(root, seen):
        place = f"`{path}`: " if path else ""
        yield f"\n### {model.__name__}\n\n{place}{cell(inspect.getdoc(model) or '')}"
        rows = list(rows_of(model))
        if rows:
            yield "\n| key | type | default | |\n|---|---|---|---|"
            yield from rows


def blocks(root: Model, seen: set[Model]) -> Iterator[tuple[Model, str]]:
    """Yield a config and the blocks in it that were not seen yet, each with the path of its key."""
    found = [(root, "")]
    while found:
        model, path = found.pop(0)
        if model not in seen:
            seen.add(model)
            yield model, path
            for key, field in model.model_fields.items():
                inner = f"{path}.{key}" if path else key
                found += [(block, inner) for block in models_in(field.annotation)]


def rows_of(model: Model) -> Iterator[str]:
    """Yield a table row for each key."""
    for key, field in model.model_fields.items():
        kind = type_of(field.annotation, field.metadata)
        yield f"| `{key}` | {kind} | {default_of(field)} | {cell(description(model, key))} |"
    if common := getattr(model, "COMMON", None):
        block, entries = common
        yield f"| `{block}` | mapping | `{{}}` | defaults for each entry of `{entries}` |"
    if parts := getattr(model, "SUCH_AS", ()):
        yield f"| `{'`, `'.join(parts)}`, ... | number ≥ 0 | `0` | the value of this part |"


def cell(text: str) -> str:
    """Return text on one line, without characters that would end a table cell."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def models_in(annotation: Any) -> list[Model]:
    """Return the blocks that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def type_of(annotation: Any, metadata: Any = ()) -> str:
    """Return an annotation in words, with the allowed range."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_of(inner[0], [*inner[1:], *metadata])
    if any(isinstance(one, PlainValidator) for one in metadata):
        return "steps"
    if origin is Literal:
        return either(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(type_of(part, metadata) for part in inner if part is not NoneType)
        return either([*kinds, *(["`null`"] if NoneType in inner else [])])
    if origin is list:
        return f"list{limits(annotation, metadata)} of {type_of(inner[0])}"
    if origin is dict:
        return f"mapping of {type_of(inner[0])} to {type_of(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        names = [f"`{name}`" for name in names_of(annotation)]
        shown = ", ".join(names) if 0 < len(names) < 5 else annotation.__name__
        return f"[{shown}](#{annotation.__name__.lower()})"
    return NAMES[annotation] + limits(annotation, metadata)


def either(words: Iterable[str]) -> str:
    """Return `a or b`; of many, `a, b, c or d`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def names_of(model: Model) -> tuple[str, ...]:
    """Return the values of `name` or `kind` by which a config chooses a block."""
    field = model.model_fields.get("name") or model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def limits(annotation: Any, metadata: Any) -> str:
    """Return the allowed range, from the constraints of pydantic."""
    found: dict[str, Any] = {}
    for one in metadata:
        for part in getattr(one, "metadata", [one]):  # a FieldInfo holds several
            for name in ("gt", "ge", "lt", "le", "min_length", "max_length"):
                if getattr(part, name, None) is not None:
                    found[name] = getattr(part, name)
    least, most = found.get("min_length", 0), found.get("max_length", 0)
    if most or least > 1:
        return f" ({least})" if least == most else f" ({least} or more)"
    if least:
        return " (1 or more)"
    if annotation is int and "gt" in found:
        found["ge"] = found.pop("gt") + 1
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    words = [
        f"{sign} {number(found[key])}"
        for key, sign in signs.items()
        if found.get(key, TOO_MUCH) < TOO_MUCH
    ]
    return f" {', '.join(words)}" if words else ""


def number(value: float) -> str:
    """Return a limit without an exponent: 1,000,000."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def default_of(field: FieldInfo) -> str:
    """Return a key's default as YAML."""
    if field.is_required():
        return "required"
    value = plain(field.get_default(call_default_factory=True))
    if type_of(field.annotation, field.metadata) == "steps":
        value = f"{value} steps"
    text = to_yaml(value, flow=True)
    return f"`{cell(text.partition('...')[0] if text.endswith('...' + chr(10)) else text).strip()}`"


def plain(value: Any) -> Any:
    """Return a default as YAML values, without the keys that are defaults themselves."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, list):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Duration) else value


def description(model: Model, key: str) -> str:
    """Return the comment of a key in the source: above it, or at the end of its line."""
    owner = next(cls for cls in model.__mro__ if key in cls.__dict__.get("__annotations__", {}))
    if said := comments(owner).get(key):
        return said
    annotation = model.model_fields[key].annotation
    if get_origin(annotation) is Literal and key in ("name", "kind"):
        return "the choice of this block"
    blocks = models_in(annotation)
    about = inspect.getdoc(blocks[0]) or "" if len(blocks) == 1 else ""
    return "one of these blocks" if len(blocks) > 1 else about.partition("\n")[0]


@cache
def comments(owner: type) -> dict[str, str]:
    """Return the comment of each key that a class declares."""
    text = Path(inspect.getfile(owner)).read_text(encoding="utf-8")
    lines = text.splitlines()
    body = next(
        node.body
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            before = (line.strip() for line in reversed(lines[: node.lineno - 1]))
            above = reversed(list(takewhile(lambda line: line.startswith("#"), before)))
            end = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode().strip()
            said = [*above, *([end] if end.startswith("#") else [])]
            if said:
                found[node.target.id] = " ".join(line.removeprefix("#").strip() for line in said)
    return found


def main() -> None:
    """Renew the reference in configs/README.md."""
    written, _, _ = README.read_text(encoding="utf-8").partition(MARK)
    README.write_text(written + MARK + reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
