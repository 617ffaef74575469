"""Load a YAML file into a typed model, with `key.sub=value` overrides and errors a person can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from guie.base.errors import UserError
from guie.config.faults import explained
from guie.config.written import Written, handed_down, merged, override


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # A block, and the list whose entries take from it what they do not say
    COMMON: ClassVar[tuple[str, str] | None] = None


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
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def _parsed(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(
            f"{source}: {line}not valid YAML: {getattr(error, 'problem', error)}"
        ) from None


def load_config(
    path: str | Path, model: type[AnyConfig], overrides: Iterable[str] = ()
) -> AnyConfig:
    """Read `path`, apply overrides such as `train.epochs=2` or `stages.0.epochs=1`, validate.

    A key `base: other.yaml` starts from that file beside it; mappings merge, lists and {} replace.
    `${NAME}` in a string is taken from the environment; `${GUIE_REAL}` falls back to ../shared.
    Raises UserError with one line per fault: where it is written, value, what is allowed.
    """
    values = _read_with_base(Path(path))
    for words in overrides:
        key, equals, text = words.partition("=")
        if not equals:
            raise UserError(f"--set {words}: expected key=value, for example train.epochs=2")
        override(values, key, _parsed(text, f"--set {words}"), f"--set {words}")
    return _validated(values, model)


def config_from(values: dict, model: type[AnyConfig], source: str = "config") -> AnyConfig:
    """The config of what could stand in a file; `model.model_validate` takes what is resolved.

    Raises UserError as `load_config`.
    """
    return _validated(Written.of(values, source), model)


def _validated(values: Written, model: type[AnyConfig]) -> AnyConfig:
    if model.COMMON:
        values = handed_down(values, *model.COMMON)
    try:
        return model.model_validate(_plain(values))
    except ValidationError as error:
        raise UserError("\n".join(explained(error, model, values))) from None


def _read_with_base(path: Path, below: tuple[Path, ...] = ()) -> Written:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    base = values.pop("base", None)
    own = Written.of(values, str(path))
    if base is None:
        return own
    if path in below:
        raise UserError(f"{path}: base leads back to this file")
    return merged(_read_with_base(path.parent / str(base), (*below, path)), own)


def real_root() -> Path | None:
    """The folder with real images (`data/`) and weights (`weights/`): $GUIE_REAL, else ../shared."""
    named = os.environ.get("GUIE_REAL")
    if named:
        return Path(named)
    beside = Path("..") / "shared"
    return beside if (beside / "weights").is_dir() else None


def _plain(written: Written) -> Any:
    """What YAML has there, with `${NAME}` replaced."""
    value = written.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], written), value)
    return value


def _variable(name: str, written: Written) -> str:
    found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
    if found is None:
        raise UserError(
            f"{written.told()}: environment variable {name} is not set; set it to a folder"
        )
    return str(found)
