"""Read YAML into typed configs, with `base:`, `${NAME}` and `--set`; a fault is one line with its place."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML, YAMLError
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.scalarbool import ScalarBoolean

from guie.base.errors import UserError, why_unreadable
from guie.config.types import VALUE, Config, ConfigError, remedy

Model = type[BaseModel]
AnyConfig = TypeVar("AnyConfig", bound=Config)
Keys = tuple[str, ...]  # keys and indices, the outermost first

# Mappings whose `name` or `kind` decides their other keys
BY_NAME = {"task", "loss", "sampler", "optimizer", "schedule", "adapters", "prompts"}
SHOWN = 200  # characters of a value in an error message
# No config needs more. Values count with aliases expanded: ten lines can expand to 10 ** 10
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1_000_000, 100_000, 50


class Place(NamedTuple):
    """Where a value was written: a line of a file (0: of none) or a `--set`, and its keys there."""

    source: str
    line: int
    keys: Keys

    def location(self, missing: Keys = ()) -> str:
        """Return `run.yaml:3: train.lr.head` or `--set train.lr.head=1`; `missing`: keys that it lacks."""
        key = ".".join([*self.keys, *missing])
        source = f"{self.source}:{self.line}" if self.line else self.source
        return source if not key or source.startswith(f"--set {key}=") else f"{source}: {key}"


@dataclass
class Values:
    """Plain YAML values, and the place of each by its keys."""

    plain: Any
    places: dict[Keys, Place]

    @classmethod
    def of(cls, written: Any, source: str, keys: Keys = (), line: int = 0) -> Values:
        """Copy the values that a source has at these keys. Raises UserError."""
        places: dict[Keys, Place] = {}

        def copied(value: Any, below: Keys, line: int) -> Any:
            place = places[below] = Place(source, line, (*keys, *below))
            if len(places) > MAX_VALUES or len(below) > MAX_DEPTH:
                limits = f"{MAX_VALUES:,} values, aliases expanded, or {MAX_DEPTH} levels"
                raise UserError(f"{places[()].location()}: more than {limits}")
            lines = (value.lc.data if line and hasattr(value, "lc") else None) or {}
            pairs = value.items() if isinstance(value, dict) else ()
            made = {}
            for key, item in enumerate(value) if isinstance(value, list) else pairs:
                own = lines[key][0] + 1 if key in lines else line
                made[_scalar(key)] = copied(item, (*below, str(key)), own)
            if isinstance(value, dict | list):
                return made if isinstance(value, dict) else list(made.values())
            value = _scalar(value)
            if isinstance(value, int) and abs(value) >= 2**63:
                raise UserError(f"{place.location()}: a whole number beyond 64 bits")
            return value

        return cls(copied(written, (), line), places)

    def at(self, *keys: Any) -> Values:
        """Return the value at keys that are there."""
        value, outer = self.plain, tuple(map(str, keys))
        for key in keys:
            value = value[key]
        own = {k[len(outer) :]: at for k, at in self.places.items() if k[: len(outer)] == outer}
        return Values(value, own)

    def location(self, *keys: Any) -> str:
        """Return the place of the value at these keys, of which the last may be missing."""
        wanted = there = tuple(map(str, keys))
        while there not in self.places:
            there = there[:-1]
        return self.places[there].location(wanted[len(there) :])

    def forget(self, keys: Keys) -> None:
        """Forget the places of a value that is replaced."""
        for old in [own for own in self.places if own[: len(keys)] == keys]:
            del self.places[old]


def _scalar(value: Any) -> Any:
    """Return a value without the style, such as hexadecimal, that ruamel keeps."""
    if isinstance(value, bool | ScalarBoolean):
        return bool(value)
    return next((kind(value) for kind in (str, int, float) if isinstance(value, kind)), value)


class _Composer(Composer):
    """Refuse tags, such as !!int: no config needs one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        if tag := getattr(event, "tag", None):
            problem = f"a tag, {tag}; write the value without it, a string in quotes"
            raise ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class _Constructor(RoundTripConstructor):
    """Read 2026-01-02 and = as text."""


for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_kind}", _Constructor.construct_yaml_str)


def parsed(text: str, source: str = "YAML", line: int = 1) -> Values:
    """Parse YAML 1.2, without tags and repeated keys, from this line on; 0: the text is of no file.

    Raises UserError naming the source and the line.
    """
    reader = YAML(typ="rt")
    reader.Composer, reader.Constructor = _Composer, _Constructor
    try:
        return Values.of(reader.load(text), source, line=line)
    except RecursionError:
        raise UserError(f"{source}: more than {MAX_DEPTH} levels") from None
    except (YAMLError, ValueError, IndexError) as error:  # the last two of odd numbers
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + line}" if mark and line else source
        problem = textwrap.shorten(str(getattr(error, "problem", error)), SHOWN, placeholder="...")
        raise UserError(f"{place}: not valid YAML: {problem}") from None


def to_yaml(values: Any, flow: bool = False) -> str:
    """Return plain values as YAML; `flow`: on one line, with braces."""
    writer: Any = YAML(typ="safe", pure=True)
    stream = StringIO()
    writer.default_flow_style, writer.sort_base_mapping_type_on_output = flow, False
    writer.width = 10**6 if flow else 100
    writer.dump(values, stream)
    return stream.getvalue()


def read_values(path: str | Path, below: tuple[Path, ...] = ()) -> Values:
    """Read a file and merge it over its `base`, if it has one; `below` are the files that led here.

    Raises UserError naming the file and the line.
    """
    if why := why_unreadable(path, "config file"):
        raise UserError(why)
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes, the limit for a config")
        values = parsed(text.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(values.plain, dict | None):
        raise UserError(f"{path}: must be a mapping of keys to values")
    return with_base(values, below) if values.plain else Values({}, values.places)


def with_base(own: Values, below: tuple[Path, ...] = ()) -> Values:
    """Merge a mapping over the file that its `base` names, relative to its own file. Raises UserError."""
    rest = Values({key: item for key, item in own.plain.items() if key != "base"}, own.places)
    if own.plain.get("base") is None:
        return rest
    path = Path(own.places["base",].source)
    if path in below:
        raise UserError(f"{path}: base leads back to this file; remove one base of the cycle")
    return merged(read_values(path.parent / str(own.plain["base"]), (*below, path)), rest)


def merged(base: Values, own: Values) -> Values:
    """Merge `own` over `base`; {} and lists replace, and so do blocks (loss, sampler, ...) of other name."""
    result = Values(base.plain, dict(base.places))

    def over(old: dict, new: dict, keys: Keys) -> dict:
        both = {**old, **new}
        for key in old.keys() & new.keys():
            mappings = isinstance(old[key], dict) and isinstance(new[key], dict) and new[key]
            another = key in BY_NAME and mappings and _name(new[key], old[key]) != _name(old[key])
            if mappings and not another:
                both[key] = over(old[key], new[key], (*keys, str(key)))
            else:
                result.forget((*keys, str(key)))
        return both

    result.plain = over(base.plain, own.plain, ())
    result.places |= own.places
    return result


def _name(*blocks: dict) -> Any:
    """Return the first `name` or `kind` found."""
    return next((block[key] for block in blocks for key in ("name", "kind") if key in block), None)


def override(values: Values, key: str, value: Any, source: str) -> None:
    """Set the value at `key`, such as stages.0.epochs, and create the mappings on the way to it.

    Raises UserError if a list or a single value is in the way.
    """
    node: Any = values.plain
    keys = tuple(key.split("."))
    own = Values.of(value, source, keys)
    values.forget(keys)
    for n, part in enumerate(keys):
        name: Any = int(part) if re.fullmatch("[0-9]{1,9}", part) else part  # as in YAML
        if not isinstance(node, dict | list):
            raise UserError(f"{source}: {keys[n - 1]!r} is a single value and has no keys below it")
        if isinstance(node, list) and name not in range(len(node)):
            raise UserError(f"{source}: {part!r} is not an index below {len(node)}")
        if n + 1 == len(keys):
            node[name] = own.plain
        elif (node[name] if isinstance(node, list) else node.get(name)) is None:
            node[name] = {}
            values.places[keys[: n + 1]] = Place(source, 0, keys[: n + 1])
        node = node[name]
    values.places |= {(*keys, *below): place for below, place in own.places.items()}


def load_config(
    path: str | Path, model: type[AnyConfig], overrides: Iterable[str] = ()
) -> AnyConfig:
    """Read `path`, apply overrides such as `train.epochs=2` or `stages.0.epochs=1`, validate.

    A key `base: other.yaml` inherits from that file, relative to this one. Mappings merge; lists and
    {} replace. `${NAME}` in a string is an environment variable; `${GUIE_REAL}` defaults to ../shared.
    Raises UserError with one line per fault: its place, its value, what is allowed.
    """
    values = read_values(path)
    for words in overrides:
        key, equals, text = words.partition("=")
        source = f"--set {words}"
        if not equals:
            raise UserError(f"{source}: expected key=value, for example train.epochs=2")
        value = parsed(text, source, line=0).plain
        if text.count("#") > repr(value).count("#"):
            cut = "a # after a space begins a YAML comment"
            raise UserError(f"{source}: {cut}; put the value in quotes, '\"...\"'")
        override(values, key, value, source)
    return validated(values, model)


def config_from(values: dict, model: type[AnyConfig]) -> AnyConfig:
    """Validate values as a file would hold them; use `model.model_validate` for resolved values.

    Raises UserError like `load_config`.
    """
    return validated(Values.of(values, "config"), model)


def validated(values: Values, model: type[AnyConfig], variables: bool = True) -> AnyConfig:
    """Validate values and return the config; without `variables` no `${NAME}` is replaced.

    Raises UserError like `load_config`.
    """

    def replaced(value: Any, keys: Keys) -> Any:
        if isinstance(value, dict):
            return {key: replaced(item, (*keys, str(key))) for key, item in value.items()}
        if isinstance(value, list):
            return [replaced(item, (*keys, str(n))) for n, item in enumerate(value)]
        if variables and isinstance(value, str) and "${" in value:
            return expanded(value, values.location(*keys))
        return value

    if model.COMMON and model.COMMON[0] in values.plain:
        values = _with_defaults(values, *model.COMMON)
    try:
        return model.model_validate(replaced(values.plain, ()))
    except ValidationError as error:
        lines = [_line(fault, model, values) for fault in error.errors(include_url=False)]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def _with_defaults(values: Values, block: str, to: str) -> Values:
    """Merge every entry of the list `to` over the block; without entries the block is the only one."""
    common, entries = values.at(block), values.plain.get(to) or []
    if not isinstance(common.plain, dict):
        text = f"must be a mapping, like each of {to} (found {common.plain!r})"
        raise UserError(f"{values.location(block)}: {text}")
    if not isinstance(entries, list):
        text = f"must be a list; if {block} is the only stage, set keys of {block}, such as {block}.epochs"
        raise UserError(f"{values.location(to)}: {text}")
    own = [values.at(to, n) for n in range(len(entries))]
    own = [merged(common, one) if isinstance(one.plain, dict) else one for one in own] or [common]
    filled = {key: item for key, item in values.plain.items() if key != block}
    result = Values({**filled, to: [one.plain for one in own]}, dict(values.places))
    for n, one in enumerate(own):
        result.places |= {(to, str(n), *keys): place for keys, place in one.places.items()}
    return result


def real_root() -> Path | None:
    """Return the folder with real images (`data/`) and weights (`weights/`): $GUIE_REAL or ../shared."""
    if named := os.environ.get("GUIE_REAL"):
        return Path(named)
    default = Path("..") / "shared"
    return default if (default / "weights").is_dir() else None


def expanded(text: str, where: str) -> str:
    """Replace each `${NAME}` in a string. Raises a UserError that starts with `where`."""

    def value_of(variable: re.Match[str]) -> str:
        name = variable[1]
        found = real_root() if name == "GUIE_REAL" else os.environ.get(name)
        if found is None:
            raise UserError(f"{where}: environment variable {name} is not set; set it to a folder")
        return str(found)

    return re.sub(r"\$\{(\w+)\}", value_of, text)


def _line(fault: ErrorDetails, model: Model, values: Values) -> str:
    """Return the line of a fault: its place, what is wrong and what is allowed."""
    loc, kind, context = fault["loc"], fault["type"], fault.get("ctx", {})
    own, discriminator = context.get("error"), context.get("discriminator", "").strip("'")
    there: Keys = ()
    for key in map(str, loc):  # pydantic puts the tags of unions between the keys
        there = (*there, key) if (*there, key) in values.places else there
    below = own.keys if isinstance(own, ConfigError) else loc[-1:] if kind == "missing" else ()
    place = values.location(*there, *((discriminator,) if kind == "union_tag_invalid" else below))
    shown = repr(fault["input"])
    found = f" (found {shown if len(shown) <= SHOWN else shown[:SHOWN] + '...'})"
    models = _models_at(loc, model)
    names = [name for m in models for name in _names_of(m)]
    match kind:
        case "extra_forbidden":
            text = f"unknown key{remedy(loc[-1], _keys_of(_models_at(loc[:-1], model)))}"
        case "missing":
            text = "missing, and it has no default"
        case "union_tag_invalid":
            tag = context["tag"]
            text = f"unknown {discriminator} {tag!r}{remedy(tag, names, always=True)}"
        case "union_tag_not_found":
            text = f"has no name; allowed: {', '.join(names)}"
        case "model_type" | "model_attributes_type":
            keys = f"name: {' | '.join(names)}" if names else ", ".join(_keys_of(models))
            text = f"must be a mapping of {keys}{found}"
        case "string_type" if isinstance(fault["input"], int | float):
            text = f"must be text; put it in quotes, in a shell in '\"...\"'{found}"
        case "bool_type":
            text = f"must be true or false{found}"
        case "float_type" if loc[-1] == VALUE:
            keys = ", ".join(_keys_of(_models_at(loc[:-1], model)))
            text = f"must be a number, or a mapping of {keys}{found}"
        case _:
            of_key = "a key: " if loc[-1:] == ("[key]",) else ""
            text = fault["msg"].removeprefix("Value error, ")
            text = f"{of_key}{own.fault if isinstance(own, ConfigError) else text}"
            text += "" if isinstance(fault["input"], dict) else found
    return f"{place}: {text}"


def _models_at(loc: tuple[int | str, ...], model: Model) -> list[Model]:
    """Return the models at a place, through lists, optional types and unions."""
    models: list[Model] = [model]
    for key in loc:
        fields = [m.model_fields[key] for m in models if key in m.model_fields]
        if fields:
            models = [inner for field in fields for inner in _models_in(field.annotation)]
        else:  # a tag: the class or the `name` of the branch that pydantic chose
            models = [m for m in models if key in (m.__name__, *_names_of(m))] or models
    return models


def _models_in(annotation: Any) -> list[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in get_args(annotation) for m in _models_in(part)]


def _keys_of(models: list[Model]) -> list[str]:
    return sorted({key for m in models for key in (*m.model_fields, *getattr(m, "SUCH_AS", ()))})


def _names_of(model: Model) -> tuple[str, ...]:
    """Return the values of `name` or `kind` that choose the model of a union."""
    field = model.model_fields.get("name") or model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
