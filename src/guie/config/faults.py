"""What pydantic found wrong in a config, one line a fault: the key, the fault, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from guie.config.written import Place, Written, as_place

Model = type[BaseModel]

SHOWN = 200  # characters of a value
NUMBER = "number"  # tag of a union's branch that is a number


class FaultAt(ValueError):
    """What a validator finds wrong with one key below the model that it validates."""

    def __init__(self, key: str, said: str):
        super().__init__(f"{key}: {said}")
        self.place, self.said = as_place(key), said


def explained(error: ValidationError, model: Model, values: Written) -> list[str]:
    """A line for every fault, none twice: where it is written, and what it is.

    Args:
        values: what was validated.
    """
    lines = [
        f"{_where(fault, model, values)}: {_said(fault, model)}"
        for fault in error.errors(include_url=False)
    ]
    return list(dict.fromkeys(lines))


def _where(fault: ErrorDetails, model: Model, values: Written) -> str:
    """The source and the key there; of a key that is missing, where the mapping is that lacks it."""
    place = fault["loc"]
    if fault["type"] == "union_tag_invalid":
        place = (*place, fault["ctx"]["discriminator"].strip("'"))
    elif isinstance(own := fault.get("ctx", {}).get("error"), FaultAt):
        place = (*place, *own.place)
    node = values
    missing: Place = ()
    for number, part in enumerate(place):
        if not missing and (below := node.get(part)):
            node = below
        elif part in _keys_at(place[:number], model):
            missing = (*missing, part)
        # Anything else is a tag: pydantic names a union's branch
    return node.told(missing)


def _said(fault: ErrorDetails, model: Model) -> str:
    """What is wrong, and what is allowed."""
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
            return f"is to be a mapping of {keys} (found {_shown(fault['input'])})"
        case "float_type" if place[-1] == NUMBER:
            keys = ", ".join(_keys_at(place[:-1], model))
            return f"is to be a number, or a mapping of {keys} (found {_shown(fault['input'])})"
    own = fault.get("ctx", {}).get("error")
    message = own.said if isinstance(own, FaultAt) else fault["msg"].removeprefix("Value error, ")
    of_key = "a key: " if place[-1:] == ("[key]",) else ""
    found = "" if isinstance(fault["input"], dict) else f" (found {_shown(fault['input'])})"
    return f"{of_key}{message}{found}"


def _shown(value: Any) -> str:
    """The value, or as much of it as a line has room for."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def remedy(given: int | str, allowed: Sequence[str], always: bool = False) -> str:
    """The nearest of what is allowed, or all of it; `always` both."""
    near = difflib.get_close_matches(str(given), allowed, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    if not allowed or (near and not always):
        return meant
    return f"{meant} Allowed: {', '.join(allowed)}" if near else f"; allowed: {', '.join(allowed)}"


def _keys_at(place: Place, model: Model) -> list[str]:
    """Field names of the models that may stand there."""
    models = _models_at(place, model)
    return sorted({name for m in models for name in (*m.model_fields, *getattr(m, "SUCH_AS", ()))})


def _names_at(place: Place, model: Model) -> list[str]:
    """What `name` may be in the models that may stand there."""
    return [name for m in _models_at(place, model) for name in _tags(m)]


def _models_at(place: Place, model: Model) -> list[Model]:
    """The models reachable at a place, through lists, options and unions."""
    models: list[Model] = [model]
    for part in place:
        if isinstance(part, str) and any(part in m.model_fields for m in models):
            types = [m.model_fields[part].annotation for m in models if part in m.model_fields]
            models = [inner for kind in types for inner in _models_in(kind)]
        elif isinstance(part, str):
            # A tag, by which pydantic chose a model from a union: its class or its `name`
            models = [m for m in models if part == m.__name__ or part in _tags(m)] or models
    return models


def _tags(model: Model) -> tuple[str, ...]:
    field = model.model_fields.get("name") or model.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def _models_in(annotation: Any) -> list[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]
