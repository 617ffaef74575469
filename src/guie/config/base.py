"""Load a YAML file into a typed config, with `key.sub=value` overrides, and explain its faults.

Every error is one line: the key, the value, what is allowed.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from guie.base.arguments import local_path
from guie.base.errors import UserError
from guie.config.reading import (
    Place,
    SourcedValue,
    apply_defaults,
    as_place,
    merged,
    override,
    parsed_line,
    read_yaml,
)

Model = type[BaseModel]
Fault = tuple[str, str]  # a key, and what is wrong with its value

SHOWN = 200  # characters of a value in an error message
VALUE, MAPPING = "a value", "a mapping"  # tags of `Either`


class ConfigError(ValueError):
    """Report a fault of one key below the model that is checked; an empty key is the model itself."""

    def __init__(self, key: str, said: str):
        super().__init__(f"{key}: {said}" if key else said)
        self.place, self.said = as_place(key) if key else (), said


class Config(BaseModel):
    """Base of every config model: frozen, strict about types, no unknown keys, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    # A block of defaults, and the list whose entries inherit them
    COMMON: ClassVar[tuple[str, str] | None] = None

    def faults(self) -> Iterator[Fault]:
        """Yield keys whose values do not fit the others, and what is wrong; the first is reported."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for key, said in self.faults():
            raise ConfigError(key, said)
        return self


def explained(error: ValidationError, model: Model, values: SourcedValue) -> list[str]:
    """Return one line per fault, without duplicates: its place in the source, and what is wrong."""
    faults = error.errors(include_url=False)
    lines = [f"{_where(fault, model, values)}: {_said(fault, model)}" for fault in faults]
    return list(dict.fromkeys(lines))


def _where(fault: ErrorDetails, model: Model, values: SourcedValue) -> str:
    """Return the source and the key; for a missing key, the place of the mapping that lacks it."""
    place, context = fault["loc"], fault.get("ctx", {})
    if fault["type"] == "union_tag_invalid":
        place = (*place, context["discriminator"].strip("'"))
    elif isinstance(own := context.get("error"), ConfigError):
        place = (*place, *own.place)
    node = values
    missing: Place = ()
    for number, part in enumerate(place):
        if not missing and (below := node.get(part)):
            node = below
        elif part in _keys_of(_models_at(place[:number], model)):
            missing = (*missing, part)
        # Any other part is a tag: pydantic names the branch of a union
    return node.description(missing)


def _said(fault: ErrorDetails, model: Model) -> str:
    """Return what is wrong and what is allowed."""
    place, context = fault["loc"], fault.get("ctx", {})
    shown = repr(fault["input"])
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    models = _models_at(place, model)
    names = [name for m in models for name in _names_of(m)]
    match fault["type"]:
        case "extra_forbidden":
            return f"unknown key{remedy(place[-1], _keys_of(_models_at(place[:-1], model)))}"
        case "missing":
            return "missing, and it has no default"
        case "union_tag_invalid":
            tag, key = context["tag"], context["discriminator"].strip("'")
            return f"unknown {key} {tag!r}{remedy(tag, names, always=True)}"
        case "union_tag_not_found":
            return f"has no name; allowed: {', '.join(names)}"
        case "model_type" | "model_attributes_type":
            keys = f"name: {' | '.join(names)}" if names else ", ".join(_keys_of(models))
            return f"must be a mapping of {keys} (found {shown})"
        case "string_type" if isinstance(fault["input"], int | float):
            return f"must be text; put it in quotes, in a shell in '\"...\"' (found {shown})"
        case "float_type" if place[-1] == VALUE:
            keys = ", ".join(_keys_of(_models_at(place[:-1], model)))
            return f"must be a number, or a mapping of {keys} (found {shown})"
    own = context.get("error")
    said = own.said if isinstance(own, ConfigError) else fault["msg"].removeprefix("Value error, ")
    of_key = "a key: " if place[-1:] == ("[key]",) else ""
    return f"{of_key}{said}" + ("" if isinstance(fault["input"], dict) else f" (found {shown})")


def remedy(given: int | str, allowed: Sequence[str], always: bool = False) -> str:
    """Return the nearest allowed value, or all of them if none is near; with `always`, both."""
    near = difflib.get_close_matches(str(given), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    if not allowed or (near and not always):
        return meant
    return f"{meant} Allowed: {', '.join(allowed)}" if near else f"; allowed: {', '.join(allowed)}"


def _keys_of(models: list[Model]) -> list[str]:
    return sorted({key for m in models for key in (*m.model_fields, *getattr(m, "SUCH_AS", ()))})


def _names_of(model: Model) -> tuple[str, ...]:
    """Return the values of `name` or `kind` that choose the model of a union."""
    field = model.model_fields.get("name") or model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def _models_at(place: Place, model: Model) -> list[Model]:
    """Return the models at a place, through lists, optional types and unions."""
    models: list[Model] = [model]
    for part in place:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = [inner for field in fields for inner in _models_in(field.annotation)]
        else:  # a tag: the class or the `name` of the branch that pydantic chose
            models = [m for m in models if part in (m.__name__, *_names_of(m))] or models
    return models


def _models_in(annotation: Any) -> list[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _names_a_folder(name: str) -> str:
    # `.` and `..` would be the folder of all runs, and its parent.
    if not re.fullmatch(r"[\w.-]+", name) or not name.strip("."):
        raise ValueError(
            "a name may hold letters, digits, '_', '-' and '.', and must not be dots alone"
        )
    return name


def _is_local(path: str) -> str:
    try:
        local_path(path)
    except UserError as error:
        raise ValueError(str(error).removeprefix(f"{path}: ")) from None
    return path


Name = Annotated[str, AfterValidator(_names_a_folder)]  # of a run, an ensemble or a mix
# In a manifest `|` joins two labels, and a line break ends a row
Domain = Annotated[str, Field(pattern=r"^[^|\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
Output = Annotated[str, AfterValidator(_is_local)]  # a path to write
Seed = Annotated[int, Field(ge=0, lt=2**64)]  # torch takes 64 bits
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]  # lengths and indices are 32-bit
Pixels = Annotated[int, Field(gt=0, le=2**14)]  # side length
BatchSize = Annotated[int, Field(gt=0, le=2**20)]  # images
Workers = Annotated[int, Field(ge=0, le=1024)]  # processes that load images
Width = Annotated[int, Field(gt=0, le=2**16)]  # dimension of an embedding, or outputs of a layer
Names = Annotated[list[str], Field(min_length=1)]

# A name alone is short for a mapping: `cosine` for {name: cosine}
ByName = BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)

# A value, such as a number, or a mapping. By the tags, only the faults of the chosen branch are reported.
Value = TypeVar("Value")
Mapping = TypeVar("Mapping")
Either = Annotated[
    Annotated[Value, Tag(VALUE)] | Annotated[Mapping, Tag(MAPPING)],
    Discriminator(lambda value: MAPPING if isinstance(value, dict | BaseModel) else VALUE),
]


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
        override(values, key, parsed_line(text, f"--set {words}"), f"--set {words}")
    return validated(values, model)


def config_from(values: dict, model: type[AnyConfig]) -> AnyConfig:
    """Validate values as a file would hold them; use `model.model_validate` for resolved values.

    Raises UserError like `load_config`.
    """
    return validated(SourcedValue.of(values, "config"), model)


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

    def value_of(variable: re.Match[str]) -> str:
        name = variable[1]
        found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
        if found is None:
            raise UserError(f"{where}: environment variable {name} is not set; set it to a folder")
        return str(found)

    return re.sub(r"\$\{(\w+)\}", value_of, text)
