"""Load a YAML file into a typed model, with `key.sub=value` overrides and errors a person can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from guie.base.errors import UserError
from guie.config.faults import explained
from guie.config.reading import parsed, read_yaml
from guie.config.written import Written, handed_down, merged, override


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # A block, and the list whose entries take from it what they do not say
    COMMON: ClassVar[tuple[str, str] | None] = None


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _names_a_folder(name: str) -> str:
    # `.` and `..` are the folder of all runs, and the one above it.
    if not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise ValueError(
            "a name is made of letters, digits, '_', '-' and '.', and not of dots alone"
        )
    return name


Name = Annotated[str, AfterValidator(_names_a_folder)]  # of a run, a composition, a mix
# Of a manifest: `|` would join two labels, a line break end a row
Domain = Annotated[str, Field(pattern=r"^[^|\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**64)]  # torch takes 64 bits
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]  # as lengths and indices are held
Pixels = Annotated[int, Field(gt=0, le=2**14)]  # a side
BatchSize = Annotated[int, Field(gt=0, le=2**20)]  # images
Workers = Annotated[int, Field(ge=0, le=1024)]  # processes that load images
Width = Annotated[int, Field(gt=0, le=2**16)]  # numbers of an embedding, or outputs of a layer


def load_config(
    path: str | Path, model: type[AnyConfig], overrides: Iterable[str] = ()
) -> AnyConfig:
    """Read `path`, apply overrides such as `train.epochs=2` or `stages.0.epochs=1`, validate.

    A key `base: other.yaml` starts from that file beside it; mappings merge, lists and {} replace.
    `${NAME}` in a string is taken from the environment; `${GUIE_REAL}` falls back to ../shared.
    Raises UserError with one line per fault: where it is written, value, what is allowed.
    """
    values = read_written(Path(path))
    for words in overrides:
        key, equals, text = words.partition("=")
        if not equals:
            raise UserError(f"--set {words}: expected key=value, for example train.epochs=2")
        override(values, key, parsed(text, f"--set {words}"), f"--set {words}")
    return validated(values, model)


def config_from(values: dict, model: type[AnyConfig], source: str = "config") -> AnyConfig:
    """The config of what could stand in a file; `model.model_validate` takes what is resolved.

    Raises UserError as `load_config`.
    """
    return validated(Written.of(values, source), model)


def validated(values: Written, model: type[AnyConfig], variables: bool = True) -> AnyConfig:
    """The config of what is written.

    Args:
        variables: replace each `${NAME}`; without, the config is the same on every machine.

    Raises UserError as `load_config`.
    """
    if model.COMMON:
        values = handed_down(values, *model.COMMON)
    try:
        return model.model_validate(plain(values, variables))
    except ValidationError as error:
        raise UserError("\n".join(explained(error, model, values))) from None


def read_written(path: Path, below: tuple[Path, ...] = ()) -> Written:
    """What a file says, over what its `base` says. Raises UserError."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config is a mapping of keys to values")
    return based(Written.of(values, str(path)), below)


def based(own: Written, below: tuple[Path, ...] = ()) -> Written:
    """A mapping over the file that its `base` names, beside the one that it stands in itself.

    Args:
        below: the files that have led here.

    Raises UserError.
    """
    base = own.get("base")
    rest = replace(own, value={key: item for key, item in own.value.items() if key != "base"})
    if base is None or base.value is None:
        return rest
    path = Path(base.source)
    if path in below:
        raise UserError(f"{path}: base leads back to this file")
    return merged(read_written(path.parent / str(base.value), (*below, path)), rest)


def real_root() -> Path | None:
    """The folder with real images (`data/`) and weights (`weights/`): $GUIE_REAL, else ../shared."""
    named = os.environ.get("GUIE_REAL")
    if named:
        return Path(named)
    beside = Path("..") / "shared"
    return beside if (beside / "weights").is_dir() else None


def plain(written: Written, variables: bool = True) -> Any:
    """What YAML has there; with `variables`, each `${NAME}` is replaced. Raises UserError."""
    value = written.value
    if isinstance(value, dict):
        return {key: plain(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, variables) for item in value]
    return expanded(value, written.told()) if variables and isinstance(value, str) else value


def expanded(text: str, where: str) -> str:
    """A string with each `${NAME}` replaced. Raises UserError that begins with `where`."""
    return re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], where), text)


def _variable(name: str, where: str) -> str:
    found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
    if found is None:
        raise UserError(f"{where}: environment variable {name} is not set; set it to a folder")
    return str(found)
