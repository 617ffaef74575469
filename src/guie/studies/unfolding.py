"""From what a study's file says of a row to the run's config of each row that it stands for."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from guie.base.errors import UserError
from guie.config.base import based, plain
from guie.config.study import RowConfig
from guie.config.written import Written, merged, override

# The study gives each run its own
OF_THE_STUDY = {"name": "rows", "out": "--out", "seed": "seeds"}
IN_BRACES = re.compile(r"\{([\w.]+)\}")


def run_of(study: Written) -> Written:
    """The config of every run, over its base. Raises UserError."""
    own = study.value["run"]
    _refuse_own(own)
    only_base = {key: item for key, item in own.value.items() if key == "base"}
    rest = {key: item for key, item in own.value.items() if key != "base"}
    base = based(replace(own, value=only_base))
    named = Written.of("study", base.source, ("name",))  # stands in for those of the runs
    begun = replace(base, value={**base.value, "name": named})
    return overridden(begun, replace(own, value=rest))


def points(
    name: str, row: Written, grid: dict[str, list[Any]], common: Written
) -> Iterator[tuple[str, Written]]:
    """Name and config of each row that this one unfolds to. Raises UserError."""
    own = row if row.value else replace(row, value={})
    settings = {k: v for k, v in own.value.items() if k not in RowConfig.model_fields}
    own = replace(own, value=settings)
    _refuse_own(own)
    values = overridden(common, own)
    for chosen in product(*grid.values()):
        point = dict(zip(grid, chosen, strict=True))
        told = _named(name, point, grid, row.told())
        yield told, _set(values, point, f"{row.told()}.grid") if point else values


def overridden(common: Written, own: Written) -> Written:
    """`own` over `common`; keys with dots are set as `--set` does."""
    dotted = {key: item for key, item in own.value.items() if "." in str(key)}
    rest = {key: item for key, item in own.value.items() if key not in dotted}
    result = merged(common, replace(own, value=rest))
    flat = {key: plain(item, variables=False) for key, item in dotted.items()}
    return _set(result, flat, own.told())


def _set(values: Written, settings: dict[str, Any], source: str) -> Written:
    changed = copy.deepcopy(values)  # other rows have parts of it too
    for key, value in settings.items():
        override(changed, key, value, source)
    return changed


def _refuse_own(written: Written) -> None:
    for key, instead in OF_THE_STUDY.items():
        if isinstance(written.value, dict) and key in written.value:
            raise UserError(f"{written.told((key,))}: is the study's to give, by {instead}")


def _named(name: str, point: dict[str, Any], grid: dict[str, list[Any]], where: str) -> str:
    """The row's name with the values in it. Raises UserError where a key that varies is not in it."""
    told: set[str] = set()

    def value_of(braces: re.Match[str]) -> str:
        meant = [key for key in grid if f".{key}".endswith(f".{braces[1]}")]
        if len(meant) != 1:
            raise UserError(f"{where}: {braces[0]} in its name is no key of its grid, or several")
        told.add(meant[0])
        return _shown(point[meant[0]])

    filled = IN_BRACES.sub(value_of, name) if grid else name
    silent = next((key for key in grid if key not in told and len(grid[key]) > 1), None)
    if silent is not None:
        short = silent.rpartition(".")[2]
        raise UserError(f"{where}: its grid varies {silent}; name the rows by it: {{{short}}}")
    return filled


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        return str(value["name"])
    return f"{value:g}" if isinstance(value, float) else str(value)
