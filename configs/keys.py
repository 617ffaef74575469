"""Write the reference of all config keys, the end of configs/README.md, from src/guie/config.

python configs/keys.py

A key's description is its comment in the source; a block's is the docstring of its class.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainValidator
from pydantic.fields import FieldInfo

from guie.config import RunConfig, to_yaml
from guie.config.data import MixConfig
from guie.config.durations import Duration
from guie.config.ensemble import ComposeConfig
from guie.config.study import StudyConfig

README = Path(__file__).with_name("README.md")
MARK = "<!-- The rest is written by: python configs/keys.py -->\n"
NAMES = {int: "integer", float: "number", bool: "`true` or `false`", str: "text", Any: "any"}
NAMES |= {NoneType: "`null`", Duration: "duration", dict: "mapping"}
TOO_MUCH = 1000  # such limits only catch mistakes

LINKS = re.compile(r"\[[^\]]*\]\(#\w+\)(?:(?:, | or )\[[^\]]*\]\(#\w+\))*")  # as type_of gives them

Model = type[BaseModel]
Entry = tuple[str, str, str]

ROOTS: dict[str, Model] = {
    "A training run (`train.py`)": RunConfig,
    "A mix (`curate.py`)": MixConfig,
    "An ensemble (`compose.py`)": ComposeConfig,
    "A study (`study.py`)": StudyConfig,
}


@dataclass(frozen=True)
class Section:
    """The blocks that one key may hold, at the first place where a config can name them."""

    path: str
    models: list[Model]


def reference() -> str:
    """Return the reference as Markdown."""
    seen: set[Model] = set()
    parts = [(title, sections(root, seen)) for title, root in ROOTS.items()]
    place = {model: one.path for _, part in parts for one in part for model in one.models}
    lines = []
    for title, (root, *inner) in parts:
        lines += [f"\n## {title}\n", cell(inspect.getdoc(root.models[0]) or ""), ""]
        own = list(entries(root.models[0], place))
        lines += (bullet(*entry) for entry in own)
        for one in inner:
            lines += [f"\n### `{one.path}`\n", *block(one, place, own)]
    return "\n".join(lines) + "\n"


def sections(root: Model, seen: set[Model]) -> list[Section]:
    """Return a config and the blocks in it that no earlier section has, outer ones first."""
    found, todo = [], [Section("", [root])]
    while todo:
        one = todo.pop(0)
        models = [model for model in one.models if model not in seen]
        if models:
            seen.update(models)
            found.append(Section(one.path, models))
        for model in models:
            for key, field in model.model_fields.items():
                inner = f"{one.path}.{key}" if one.path else key
                todo.append(Section(inner, models_in(field.annotation)))
    return found


def block(section: Section, place: dict[Model, str], above: list[Entry]) -> Iterator[str]:
    """Yield the lines of a section: of one block its keys; of several the common keys once.

    A block that has several keys of the whole config, `above`, refers to them.
    """
    if len(section.models) == 1 and not names_of(section.models[0]):
        yield f"{cell(inspect.getdoc(section.models[0]) or '')}\n"
        yield from (bullet(*entry) for entry in entries(section.models[0], place))
        return
    owners: dict[Entry, list[Model]] = defaultdict(list)
    for model in section.models:
        for entry in entries(model, place):
            owners[entry].append(model)
    common = {entry: of for entry, of in owners.items() if len(of) > 1}
    for model in section.models:
        listed = [f"`{name}`" for name in names_of(model)] or [model.__name__]
        names = ", ".join(listed if len(listed) < 9 else [*listed[:2], "...", listed[-1]])
        choice = choice_of(model)
        default = f" (default `{choice.default}`)" if choice and not choice.is_required() else ""
        yield f"* **{names}**{default}: {cell(inspect.getdoc(model) or '')}"
        own = [entry for entry in entries(model, place) if entry not in common]
        again = [entry for entry in own if entry in above]
        if len(again) > 2:
            names = (f"`{key.removesuffix('*')}`" for key, *_ in again)
            yield f"  * {', '.join(names)}: as of the whole"
            own = [entry for entry in own if entry not in again]
        yield from (f"  {bullet(*entry)}" for entry in own)
    if common:
        yield "\nCommon keys:\n"
        for entry, of in common.items():
            others = [model for model in section.models if model not in of]
            few = len(others) < len(of) and all(len(names_of(one)) < 5 for one in others)
            words = f"not {title(others)}" if few else title(of)
            yield bullet(*entry) + (f" ({words})" if others else "")


def title(models: Iterable[Model]) -> str:
    """Return the names of blocks."""
    return ", ".join(next(iter(names_of(model)), model.__name__) for model in models)


def entries(model: Model, place: dict[Model, str]) -> Iterator[Entry]:
    """Yield each key with its type and default in words, and its description."""
    for key, kind, default, text in rows_of(model):
        field = model.model_fields.get(key)
        if field and key in ("name", "kind") and names_of(model):
            continue  # the block's title
        if field and (models := models_in(field.annotation)):
            link = place[models[0]].replace(".", "")
            kind = LINKS.sub(f"[block](#{link})", kind)
        if default == "`null`":
            kind, default = kind.removesuffix(" or `null`"), ""
        kind = re.sub(r"number (?=[≥>≤<]|-?[0-9])", "", re.sub(r"integer ≥ 1(?!,)", "count", kind))
        if kind == NAMES[bool]:
            kind = ""
        elif kind.startswith(f"{default}"):  # the first choice
            default = ""
        key, default = (f"{key}*", "") if default == "required" else (key, default)
        yield key, "; ".join(filter(None, (kind, default))), text


def bullet(key: str, kind: str, text: str) -> str:
    """Return a list item; a required key has a star."""
    star = "\\*" if key.endswith("*") else ""
    return f"* `{key.removesuffix('*')}`{star} ({kind}){text and ': '}{text}"


def rows_of(model: Model) -> Iterator[tuple[str, str, str, str]]:
    """Yield each key, its type, its default and its description."""
    for key, field in model.model_fields.items():
        kind = type_of(field.annotation, field.metadata)
        yield key, kind, default_of(field), cell(description(model, key))
    if common := getattr(model, "COMMON", None):
        yield common[0], "mapping", "`{}`", f"defaults for each entry of `{common[1]}`"
    if parts := getattr(model, "SUCH_AS", ()):
        yield "`, `".join(parts) + "`, `...", "number ≥ 0", "`0`", "the value of this part"


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
    field = choice_of(model)
    return get_args(field.annotation) if field else ()


def choice_of(model: Model) -> FieldInfo | None:
    """Return the key by which a config chooses a block."""
    return model.model_fields.get("name") or model.model_fields.get("kind")


def limits(annotation: Any, metadata: Any) -> str:
    """Return the allowed range, from the constraints of pydantic."""
    found: dict[str, Any] = {}
    for one in metadata:
        for part in getattr(one, "metadata", [one]):  # a FieldInfo holds several
            for name in ("gt", "ge", "lt", "le", "min_length", "max_length"):
                if getattr(part, name, None) is not None:
                    found[name] = getattr(part, name)
    if "min_length" in found:
        least, most = found["min_length"], found.get("max_length")
        return f" ({least})" if least == most else f" ({least} or more)" if least > 1 else ""
    if annotation is int and "gt" in found:
        found["ge"] = found.pop("gt") + 1
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    if {"ge", "le"} <= found.keys() and found["le"] < TOO_MUCH:
        return f" {found['ge']:g} to {found['le']:g}"
    words = [
        f"{sign} {found[key]:g}"
        for key, sign in signs.items()
        if found.get(key, TOO_MUCH) < TOO_MUCH
    ]
    return f" {', '.join(words)}" if words else ""


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
    return comments(owner).get(key, "")  # a block is described in its own section


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
            lines_of_key = [*above, *([end] if end.startswith("#") else [])]
            text = " ".join(line.removeprefix("#").strip() for line in lines_of_key)
            if text:
                found[node.target.id] = text
    return found


def main() -> None:
    """Renew the reference in configs/README.md."""
    written, _, _ = README.read_text(encoding="utf-8").partition(MARK)
    README.write_text(written + MARK + reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
