"""Load a YAML file into a typed config, with `key.sub=value` overrides, and explain its faults.

Every error is one line: the key, the value, what is allowed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from guie.base.errors import UserError
from guie.config.reading import (
    Place,
    SourcedValue,
    apply_defaults,
    as_place,
    merged,
    override,
    parsed,
    read_yaml,
)

Model = type[BaseModel]

SHOWN = 200  # characters of a value in an error message
NUMBER = "number"  # tag of the union branch that is a number


class ConfigError(ValueError):
    """Report a fault of one key below the model that a validator checks."""

    def __init__(self, key: str, said: str):
        super().__init__(f"{key}: {said}")
        self.place, self.said = as_place(key), said


def explained(error: ValidationError, model: Model, values: SourcedValue) -> list[str]:
    """Return one line per fault, without duplicates: its place in the source, and what is wrong.

    Args:
        values: the validated values.
    """
    lines = [
        f"{_where(fault, model, values)}: {_said(fault, model)}"
        for fault in error.errors(include_url=False)
    ]
    return list(dict.fromkeys(lines))


def _where(fault: ErrorDetails, model: Model, values: SourcedValue) -> str:
    """Return the source and the key; for a missing key, the place of the mapping that lacks it."""
    place = fault["loc"]
    if fault["type"] == "union_tag_invalid":
        place = (*place, fault["ctx"]["discriminator"].strip("'"))
    elif isinstance(own := fault.get("ctx", {}).get("error"), ConfigError):
        place = (*place, *own.place)
    node = values
    missing: Place = ()
    for number, part in enumerate(place):
        if not missing and (below := node.get(part)):
            node = below
        elif part in _keys_at(place[:number], model):
            missing = (*missing, part)
        # Any other part is a tag: pydantic names the branch of a union
    return node.description(missing)


def _said(fault: ErrorDetails, model: Model) -> str:
    """Return what is wrong and what is allowed."""
    place = fault["loc"]
    match fault["type"]:
        case "extra_forbidden":
            return f"unknown key{remedy(place[-1], _keys_at(place[:-1], model))}"
        case "missing":
            return "missing, and it has no default"
        case "union_tag_invalid":
            tag, key = fault["ctx"]["tag"], fault["ctx"]["discriminator"].strip("'")
            return f"unknown {key} {tag!r}{remedy(tag, _names_at(place, model), always=True)}"
        case "union_tag_not_found":
            return f"has no name; allowed: {', '.join(_names_at(place, model))}"
        case "model_type" | "model_attributes_type":
            names = _names_at(place, model)
            keys = f"name: {' | '.join(names)}" if names else ", ".join(_keys_at(place, model))
            return f"must be a mapping of {keys} (found {_shown(fault['input'])})"
        case "float_type" if place[-1] == NUMBER:
            keys = ", ".join(_keys_at(place[:-1], model))
            return f"must be a number, or a mapping of {keys} (found {_shown(fault['input'])})"
    own = fault.get("ctx", {}).get("error")
    message = (
        own.said if isinstance(own, ConfigError) else fault["msg"].removeprefix("Value error, ")
    )
    of_key = "a key: " if place[-1:] == ("[key]",) else ""
    found = "" if isinstance(fault["input"], dict) else f" (found {_shown(fault['input'])})"
    return f"{of_key}{message}{found}"


def _shown(value: Any) -> str:
    """Return the value as text, cut to SHOWN characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def remedy(given: int | str, allowed: Sequence[str], always: bool = False) -> str:
    """Return the nearest allowed value, or all of them if none is near; with `always`, both."""
    near = difflib.get_close_matches(str(given), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    if not allowed or (near and not always):
        return meant
    return f"{meant} Allowed: {', '.join(allowed)}" if near else f"; allowed: {', '.join(allowed)}"


def _keys_at(place: Place, model: Model) -> list[str]:
    """Return the field names of the models allowed at a place."""
    models = _models_at(place, model)
    return sorted({name for m in models for name in (*m.model_fields, *getattr(m, "SUCH_AS", ()))})


def _names_at(place: Place, model: Model) -> list[str]:
    """Return the values of `name` in the models allowed at a place."""
    return [name for m in _models_at(place, model) for name in _tags(m)]


def _models_at(place: Place, model: Model) -> list[Model]:
    """Return the models at a place, through lists, optional types and unions."""
    models: list[Model] = [model]
    for part in place:
        if isinstance(part, str) and any(part in m.model_fields for m in models):
            types = [m.model_fields[part].annotation for m in models if part in m.model_fields]
            models = [inner for kind in types for inner in _models_in(kind)]
        elif isinstance(part, str):
            # A tag: the class or the `name` of the union branch that pydantic chose
            models = [m for m in models if part == m.__name__ or part in _tags(m)] or models
    return models


def _tags(model: Model) -> tuple[str, ...]:
    field = model.model_fields.get("name") or model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def _models_in(annotation: Any) -> list[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    # A block of defaults, and the list whose entries inherit them
    COMMON: ClassVar[tuple[str, str] | None] = None


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _names_a_folder(name: str) -> str:
    # `.` and `..` would be the folder of all runs, and its parent.
    if not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise ValueError(
            "a name may hold letters, digits, '_', '-' and '.', and must not be dots alone"
        )
    return name


Name = Annotated[str, AfterValidator(_names_a_folder)]  # of a run, an ensemble or a mix
# In a manifest `|` joins two labels, and a line break ends a row
Domain = Annotated[str, Field(pattern=r"^[^|\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Seed = Annotated[int, Field(ge=0, lt=2**64)]  # torch takes 64 bits
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]  # lengths and indices are 32-bit
Pixels = Annotated[int, Field(gt=0, le=2**14)]  # side length
BatchSize = Annotated[int, Field(gt=0, le=2**20)]  # images
Workers = Annotated[int, Field(ge=0, le=1024)]  # processes that load images
Width = Annotated[int, Field(gt=0, le=2**16)]  # dimension of an embedding, or outputs of a layer


def load_config(
    path: str | Path, model: type[AnyConfig], overrides: Iterable[str] = ()
) -> AnyConfig:
    """Read `path`, apply overrides such as `train.epochs=2` or `stages.0.epochs=1`, validate.

    A key `base: other.yaml` inherits from that file, relative to this one. Mappings merge; lists and
    {} replace. `${NAME}` in a string is an environment variable; `${GUIE_REAL}` defaults to ../shared.
    Raises UserError with one line per fault: its place, its value, what is allowed.
    """
    values = read_written(Path(path))
    for words in overrides:
        key, equals, text = words.partition("=")
        if not equals:
            raise UserError(f"--set {words}: expected key=value, for example train.epochs=2")
        override(values, key, parsed(text, f"--set {words}"), f"--set {words}")
    return validated(values, model)


def config_from(values: dict, model: type[AnyConfig], source: str = "config") -> AnyConfig:
    """Validate values as a file would hold them; use `model.model_validate` for resolved values.

    Raises UserError like `load_config`.
    """
    return validated(SourcedValue.of(values, source), model)


def validated(values: SourcedValue, model: type[AnyConfig], variables: bool = True) -> AnyConfig:
    """Validate sourced values and return the config.

    Args:
        variables: replace each `${NAME}`; if False, the config is the same on every machine.

    Raises UserError like `load_config`.
    """
    if model.COMMON:
        values = apply_defaults(values, *model.COMMON)
    try:
        return model.model_validate(plain(values, variables))
    except ValidationError as error:
        raise UserError("\n".join(explained(error, model, values))) from None


def read_written(path: Path, below: tuple[Path, ...] = ()) -> SourcedValue:
    """Read a file and merge it over its `base`. Raises UserError."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a config must be a mapping of keys to values")
    return resolve_base(SourcedValue.of(values, str(path)), below)


def resolve_base(own: SourcedValue, below: tuple[Path, ...] = ()) -> SourcedValue:
    """Merge a mapping over the file that its `base` names, relative to its own file.

    Args:
        below: the chain of files that led here.

    Raises UserError.
    """
    base = own.get("base")
    rest = replace(own, value={key: item for key, item in own.value.items() if key != "base"})
    if base is None or base.value is None:
        return rest
    path = Path(base.source)
    if path in below:
        raise UserError(f"{path}: base leads back to this file; remove one base of the cycle")
    return merged(read_written(path.parent / str(base.value), (*below, path)), rest)


def real_root() -> Path | None:
    """Return the folder with real images (`data/`) and weights (`weights/`): $GUIE_REAL or ../shared."""
    named = os.environ.get("GUIE_REAL")
    if named:
        return Path(named)
    default = Path("..") / "shared"
    return default if (default / "weights").is_dir() else None


def plain(written: SourcedValue, variables: bool = True) -> Any:
    """Return the plain YAML value; with `variables`, replace each `${NAME}`. Raises UserError."""
    value = written.value
    if isinstance(value, dict):
        return {key: plain(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, variables) for item in value]
    return expanded(value, written.description()) if variables and isinstance(value, str) else value


def expanded(text: str, where: str) -> str:
    """Replace each `${NAME}` in a string. Raises a UserError that starts with `where`."""
    return re.sub(r"\$\{(\w+)\}", lambda match: _variable(match[1], where), text)


def _variable(name: str, where: str) -> str:
    found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
    if found is None:
        raise UserError(f"{where}: environment variable {name} is not set; set it to a folder")
    return str(found)
