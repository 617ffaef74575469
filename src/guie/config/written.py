"""Values as they are written: each knows the file that it stands in and where, or the words of --set."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from guie.base.errors import UserError
from guie.config.durations import named_now

Place = tuple[int | str, ...]  # keys and indices, from the outermost inwards

# Mappings whose `name` or `kind` says which other keys there are.
BY_NAME = {"task", "loss", "sampler", "optimizer", "schedule", "adapters", "prompts"}


def as_place(key: str) -> Place:
    """`stages.0.lr` -> ("stages", 0, "lr"); as YAML has it, a key of digits is a number."""
    return tuple(int(part) if re.fullmatch("[0-9]{1,9}", part) else part for part in key.split("."))


@dataclass(frozen=True)
class Written:
    """A value and where it is written; what a mapping or a list holds is written each for itself."""

    value: Any  # a dict or list of Written, or what YAML has there
    source: str  # a file, or `--set key=value`
    place: Place = ()  # in the whole that the source is, or sets something of

    @classmethod
    def of(cls, value: Any, source: str, place: Place = ()) -> Written:
        """All of what one source says at a place."""
        if isinstance(value, dict):
            value = cls._of_mapping(value, source, place)
        elif isinstance(value, list):
            value = [cls.of(item, source, (*place, n)) for n, item in enumerate(value)]
        return cls(value, source, place)

    @classmethod
    def _of_mapping(cls, values: dict, source: str, place: Place) -> dict[Any, Written]:
        """Under the keys' names of today, though told by those that they are written with."""
        found: dict[Any, Written] = {}
        for written_as, item in values.items():
            key, item = named_now(written_as, item)
            new, old = cls.of(item, source, (*place, written_as)), found.get(key)
            if old and old.value is not None and new.value is not None:
                raise UserError(f"{new.told()}: is {key}, which {old.told()} sets too; drop one")
            if not old or new.value is not None:
                found[key] = new
        return found

    def get(self, key: int | str) -> Written | None:
        """What a mapping or a list has there."""
        if isinstance(self.value, list):
            within = range(len(self.value))
            return self.value[key] if isinstance(key, int) and key in within else None
        if not isinstance(self.value, dict):
            return None
        # pydantic tells some keys as strings
        return next((item for own, item in self.value.items() if str(own) == str(key)), None)

    def told(self, below: Place = ()) -> str:
        """`run.yaml: train.lr.head`, or `--set train.lr.head=1`; `below`: keys that are not written."""
        key = ".".join(map(str, (*self.place, *below)))
        said_already = not key or self.source.startswith(f"--set {key}=")
        return self.source if said_already else f"{self.source}: {key}"


def merged(common: Written, own: Written) -> Written:
    """`own` over `common`, mapping by mapping; {} and a loss, sampler, ... of another name replace."""
    result = {**common.value, **own.value}
    for key in common.value.keys() & own.value.keys():
        old, new = common.value[key], own.value[key]
        if isinstance(old.value, dict) and isinstance(new.value, dict) and new.value:
            another = key in BY_NAME and _name(new, old) != _name(old)
            result[key] = new if another else merged(old, new)
    return replace(own, value=result)


def _name(*written: Written) -> Any:
    """The first `name` or `kind` that there is."""
    names = (one.get(key) for one in written for key in ("name", "kind"))
    return next((name.value for name in names if name), None)


def handed_down(values: Written, block: str, to: str) -> Written:
    """Every entry of the list `to` over the block, which is its one entry where there is none.

    Raises UserError for a block that is no mapping.
    """
    common = values.get(block)
    if common is None:
        return values
    if not isinstance(common.value, dict):
        raise UserError(
            f"{common.told()}: is to be a mapping, as each of {to} is (found {common.value!r})"
        )
    rest = {key: item for key, item in values.value.items() if key != block}
    entries = values.get(to)
    if entries is None or not entries.value:
        entries = Written([common], common.source, common.place)
    elif isinstance(entries.value, list):
        filled = [merged(common, e) if isinstance(e.value, dict) else e for e in entries.value]
        entries = replace(entries, value=filled)
    return replace(values, value={**rest, to: entries})


def override(values: Written, key: str, value: Any, source: str) -> None:
    """Set what `key`, such as stages.0.epochs, leads to. Raises UserError where it leads nowhere."""
    *outer, last = as_place(key)
    node = values
    for depth, part in enumerate(outer, 1):
        node = _entered(node, part, source, tuple(outer[:depth]))
    _check_index(node, last, source)
    if isinstance(node.value, dict):
        node.value.update(Written.of({last: value}, source, tuple(outer)).value)
    else:
        node.value[last] = Written.of(value, source, (*outer, last))


def _entered(node: Written, part: int | str, source: str, place: Place) -> Written:
    """The mapping or list there; a mapping that is not there yet is begun."""
    _check_index(node, part, source)
    below = node.get(part)
    if below is None or below.value is None:
        below = node.value[part] = Written({}, source, place)
    if not isinstance(below.value, dict | list):
        raise UserError(f"{source}: {part!r} is a value, it has no keys below it")
    return below


def _check_index(node: Written, part: int | str, source: str) -> None:
    if isinstance(node.value, list) and part not in range(len(node.value)):
        raise UserError(f"{source}: {str(part)!r} is not an index below {len(node.value)}")
