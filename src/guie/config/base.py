"""Load a YAML file into a typed model, with `key.sub=value` overrides and errors a person can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from guie.base.errors import UserError
from guie.config.faults import Place, explained


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def written_at(cls, place: Place, values: dict) -> Place:
        """Where in a file's values that stands which the model has at `place`."""
        return place


AnyConfig = TypeVar("AnyConfig", bound=Config)


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-4 as a number; YAML 1.1 wants 1.0e-4 and would give a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_yaml(path: str | Path) -> Any:
    """Parse a YAML file safely. Raises UserError naming the file and the line."""
    path = Path(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(
            f"{path}: {line}not valid YAML: {getattr(error, 'problem', error)}"
        ) from None


def load_config(
    path: str | Path, model: type[AnyConfig], overrides: Iterable[str] = ()
) -> AnyConfig:
    """Read `path`, apply overrides such as `train.epochs=2` or `stages.0.epochs=1`, validate.

    A key `base: other.yaml` starts from that file beside it; mappings merge, lists and {} replace.
    `${NAME}` in a string is taken from the environment; `${GUIE_REAL}` falls back to ../shared.
    Raises UserError with one line per fault: file, key, value, what is allowed.
    """
    values = _read_with_base(Path(path))
    for override in overrides:
        _apply(values, override)
    try:
        return model.model_validate(_expand(values, str(path)))
    except ValidationError as error:
        faults = explained(error, model, lambda place: model.written_at(place, values))
        raise UserError("\n".join(f"{path}: {fault}" for fault in faults)) from None


# Mappings whose `name` says which other keys there are.
BY_NAME = {"task", "loss", "sampler", "optimizer", "schedule"}


def merged(common: dict, own: dict) -> dict:
    """`own` over `common`, mapping by mapping; {} and a loss, sampler, ... of another name replace."""
    result = {**common, **own}
    for key in common.keys() & own.keys():
        old, new = common[key], own[key]
        if isinstance(old, dict) and isinstance(new, dict) and new:
            another = key in BY_NAME and new.get("name", old.get("name")) != old.get("name")
            result[key] = new if another else merged(old, new)
    return result


def _read_with_base(path: Path, below: tuple[Path, ...] = ()) -> dict:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    base = values.pop("base", None)
    if base is None:
        return values
    if path in below:
        raise UserError(f"{path}: base leads back to this file")
    return merged(_read_with_base(path.parent / str(base), (*below, path)), values)


def real_root() -> Path | None:
    """The folder with real images (`data/`) and weights (`weights/`): $GUIE_REAL, else ../shared."""
    named = os.environ.get("GUIE_REAL")
    if named:
        return Path(named)
    beside = Path("..") / "shared"
    return beside if (beside / "weights").is_dir() else None


def _expand(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, f"{where}: {key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, where) for item in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], where), value)
    return value


def _variable(name: str, where: str) -> str:
    found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
    if found is None:
        raise UserError(f"{where}: environment variable {name} is not set; set it to a folder")
    return str(found)


def _apply(values: dict, override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--set {override}: expected key=value, for example train.epochs=2")
    *parents, last = key.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part, override)
    if isinstance(node, list):
        _child(node, last, override)
    # As YAML has it: a key of digits is a number
    node[int(last) if last.isdigit() else last] = yaml.load(text, Loader=_Loader)  # noqa: S506


def _child(node: Any, part: str, override: str) -> Any:
    if isinstance(node, list):
        if not part.isdigit() or int(part) >= len(node):
            raise UserError(f"--set {override}: {part!r} is not an index below {len(node)}")
        return node[int(part)]
    if node.get(part) is None:
        node[part] = {}
    if not isinstance(node[part], dict | list):
        raise UserError(f"--set {override}: {part!r} is a value, it has no keys below it")
    return node[part]
