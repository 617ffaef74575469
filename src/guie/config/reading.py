"""Read YAML and keep each value's source: a file or a `--set`. Reject YAML features no config needs."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from guie.base.errors import UserError, why_unreadable

Place = tuple[int | str, ...]  # keys and indices, from the outermost inwards

# Mappings whose `name` or `kind` decides their other keys.
BY_NAME = {"task", "loss", "sampler", "optimizer", "schedule", "adapters", "prompts"}


def as_place(key: str) -> Place:
    """`stages.0.lr` -> ("stages", 0, "lr"); a key of digits becomes a number, as in YAML."""
    return tuple(int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in key.split("."))


@dataclass(frozen=True)
class SourcedValue:
    """A value and its source; each item of a mapping or list is a SourcedValue too."""

    value: Any  # a dict or list of SourcedValue, or a YAML scalar
    source: str  # a file, or `--set key=value`
    place: Place = ()  # within the config of that source

    @classmethod
    def of(cls, value: Any, source: str, place: Place = ()) -> SourcedValue:
        """Wrap a value of one source, and all of its items."""
        if isinstance(value, dict):
            value = {key: cls.of(item, source, (*place, key)) for key, item in value.items()}
        elif isinstance(value, list):
            value = [cls.of(item, source, (*place, n)) for n, item in enumerate(value)]
        return cls(value, source, place)

    def get(self, key: int | str) -> SourcedValue | None:
        """Return the item of a mapping or list, None if absent; pydantic reports some keys as strings."""
        if isinstance(self.value, list):
            within = isinstance(key, int) and key in range(len(self.value))
            return self.value[int(key)] if within else None
        items = self.value.items() if isinstance(self.value, dict) else ()
        return next((item for own, item in items if str(own) == str(key)), None)

    def description(self, below: Place = ()) -> str:
        """`run.yaml: train.lr.head`, or `--set train.lr.head=1`; `below`: missing keys."""
        key = ".".join(map(str, (*self.place, *below)))
        said_already = not key or self.source.startswith(f"--set {key}=")
        return self.source if said_already else f"{self.source}: {key}"


def merged(common: SourcedValue, own: SourcedValue) -> SourcedValue:
    """Merge `own` over `common` recursively; {} and blocks (loss, sampler, ...) of other name replace."""
    result = {**common.value, **own.value}
    for key in common.value.keys() & own.value.keys():
        old, new = common.value[key], own.value[key]
        if isinstance(old.value, dict) and isinstance(new.value, dict) and new.value:
            another = key in BY_NAME and _name(new, old) != _name(old)
            result[key] = new if another else merged(old, new)
    return replace(own, value=result)


def _name(*written: SourcedValue) -> Any:
    """Return the first `name` or `kind` found."""
    names = (one.get(key) for one in written for key in ("name", "kind"))
    return next((name.value for name in names if name), None)


def apply_defaults(values: SourcedValue, block: str, to: str) -> SourcedValue:
    """Merge every entry of the list `to` over the block; without entries the block is the only one.

    Raises UserError if the block is not a mapping, or `to` is not a list.
    """
    common = values.get(block)
    if common is None:
        return values
    if not isinstance(common.value, dict):
        raise UserError(
            f"{common.description()}: must be a mapping, like each of {to} (found {common.value!r})"
        )
    rest = {key: item for key, item in values.value.items() if key != block}
    entries = values.get(to)
    if entries is None or not entries.value:
        entries = SourcedValue([common], common.source, common.place)
    elif isinstance(entries.value, list):
        filled = [merged(common, e) if isinstance(e.value, dict) else e for e in entries.value]
        entries = replace(entries, value=filled)
    else:
        raise UserError(
            f"{entries.description()}: must be a list; if {block} is the only stage, set"
            f" keys of {block}, such as {block}.epochs"
        )
    return replace(values, value={**rest, to: entries})


def override(values: SourcedValue, key: str, value: Any, source: str) -> None:
    """Set the value at `key`, such as stages.0.epochs, and create the mappings on the way to it.

    Raises UserError if a list or a single value is in the way.
    """
    place, node = as_place(key), values
    for depth, part in enumerate(place):
        inside: Any = node.value
        if not isinstance(node.value, dict | list):
            above = place[depth - 1]
            raise UserError(f"{source}: {above!r} is a single value and has no keys below it")
        if isinstance(node.value, list) and part not in range(len(node.value)):
            raise UserError(f"{source}: {str(part)!r} is not an index below {len(node.value)}")
        if depth < len(place) - 1:
            below = node.get(part)
            if below is None or below.value is None:
                below = inside[part] = SourcedValue({}, source, place[: depth + 1])
            node = below
        else:
            inside[part] = SourcedValue.of(value, source, place)


MAX_BYTES = 1_000_000
# No config needs more. Aliases count expanded: ten lines can expand to 10 ** 10 values.
MAX_VALUES = 100_000
MAX_DEPTH = 50
MAX_INT = 2**63 - 1

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
MERGE = "tag:yaml.org,2002:merge"
AS_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")  # 2026-01-02 and =


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that no config needs."""

    def __init__(self, problem: str, mark: Any):
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader with decimal numbers and without YAML 1.1 surprises.

    YAML 1.1 reads 010 as 8, 1:30 as 90 and 1e-4 as a string. Here 010 and 1:30 are strings, which no
    number key accepts. PyYAML keeps the last of two values of one key; here repeated keys are errors.
    """

    yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in (INT, FLOAT, *AS_TEXT)]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str):
        super().__init__(text)
        self.sizes: dict[yaml.Node, tuple[int, int]] = {}  # values and levels, itself included

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            problem = f"a tag, {event.tag}; write the value without it, a string in quotes"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        if "\0" in (getattr(event, "value", None) or ""):
            raise _Refused("a NUL in a string", event.start_mark)
        node = super().compose_node(parent, index)
        assert node is not None  # there is an event
        if node in self.sizes:  # an alias
            return node
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"*{event.anchor} is inside the value it names", event.start_mark)
        below: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            below = node.value
        elif isinstance(node, yaml.MappingNode):
            below = [one for pair in node.value for one in pair]
            self._refuse_repeated([key for key, _ in node.value])
        sizes = [self.sizes[one] for one in below]
        values = 1 + sum(values for values, _ in sizes)
        levels = 1 + max((levels for _, levels in sizes), default=0)
        if max(values, len(self.sizes)) > MAX_VALUES:
            raise _Refused(f"more than {MAX_VALUES:,} values, aliases expanded", node.start_mark)
        if levels > MAX_DEPTH:
            raise _Refused(f"more than {MAX_DEPTH} levels", node.start_mark)
        self.sizes[node] = values, levels
        return node

    def _refuse_repeated(self, keys: list[yaml.Node]) -> None:
        lines: dict[Any, int] = {}
        for key in keys:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                name, line = self.construct_object(key), key.start_mark.line + 1
                if name in lines:
                    problem = f"key {name!r} is already in line {lines[name]}; drop one"
                    raise _Refused(problem, key.start_mark)
                lines[name] = line

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "")
        if len(text) > 30 or abs(number := int(text, 0)) > MAX_INT:
            raise _Refused("a whole number beyond 64 bits", node.start_mark)
        return number


_Loader.add_constructor(INT, _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    INT, re.compile(r"^(?:[-+]?(?:0|[1-9][\d_]*)|0x[\da-fA-F]+)$", re.ASCII), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"^(?:[-+]?\d[\d_]*\.[\d_]*|\.\d[\d_]*|[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        re.ASCII,
    ),
    list("-+.0123456789"),
)


def read_yaml(path: str | Path) -> Any:
    """Parse a YAML file safely. Raises UserError naming the file and the line."""
    path = Path(path)
    if why := why_unreadable(path, "config file"):
        raise UserError(why)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes, the limit for a config")
        return parsed(text.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def parsed(text: str, source: str) -> Any:
    """Parse YAML text. Raises UserError naming the source and the line."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        said = textwrap.shorten(str(getattr(error, "problem", error)), 200, placeholder="...")
        fault = said if isinstance(error, _Refused) else f"not valid YAML: {said}"
        raise UserError(f"{source}: {line}{fault}") from None
    except RecursionError:
        raise UserError(f"{source}: more than {MAX_DEPTH} levels") from None


def parsed_line(text: str, source: str) -> Any:
    """Parse the value of a `--set`. Raises UserError as `parsed`, and for a comment, which cuts a path."""
    value = parsed(text, source)
    ends = (yaml.StreamEndToken, yaml.BlockEndToken)  # behind a comment
    tokens = [one for one in yaml.scan(text, Loader=yaml.SafeLoader) if not isinstance(one, ends)]
    if comment := text[tokens[-1].end_mark.index :].strip():
        raise UserError(
            f"{source}: {comment!r} is a YAML comment; put the value in quotes, '\"...\"'"
        )
    return value
