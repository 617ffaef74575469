"""Several models under the same protocols: the first is judged, the others are what it is held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from guie.evaluation.kept import KeptBlocks
from guie.evaluation.protocols.base import Protocol
from guie.evaluation.protocols.certainty import DRAWS, against
from guie.evaluation.protocols.evaluating import Given, run_protocol, share_protocol


def share_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Given],
    table: pd.DataFrame,
    kept: KeptBlocks,
    quirks: Iterable[str] = (),
) -> None:
    """Search and keep this process's blocks of `run_models`."""
    for protocol in protocols:
        for _, given, prefixed in _each(models, kept):
            assert prefixed is not None
            share_protocol(protocol, given, table, prefixed, quirks)


def run_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Given],
    table: pd.DataFrame,
    *,
    quirks: Iterable[str] = (),
    draws: int = DRAWS,
    draws_of_others: int = 0,
    kept: KeptBlocks | None = None,
    grades: pd.DataFrame | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The reports of each model by its name, one a protocol, as of `run_protocol`.

    Where there are several, each report of the first has `against`: of every other, what
    `certainty.against` says of the two. Arguments and errors as of `run_protocol`.
    """
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for protocol in protocols:
        first, *others = found = [
            (name, *run_protocol(protocol, given, table, quirks=quirks, kept=prefixed,
                                 draws=draws_of_others if place else draws, grades=grades))
            for place, (name, given, prefixed) in enumerate(_each(models, kept))
        ]  # fmt: skip
        for name, report, _ in found:
            reports[name].append(report)
        mine, report, scores = first
        if others:
            report["against"] = [
                against(protocol, scores, theirs, (mine, name)) for name, _, theirs in others
            ]
    return reports


def _each(
    models: Mapping[str, Given], kept: KeptBlocks | None
) -> Iterator[tuple[str, Given, KeptBlocks | None]]:
    """Each model with its own blocks."""
    for place, (name, given) in enumerate(models.items()):
        yield name, given, kept and (kept.within(f"against {place}") if place else kept)
