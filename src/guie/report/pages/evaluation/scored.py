"""What a page of scores is made of: models, and what their queries were answered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from guie.evaluation.diagnosis import Gaps, Nearest, gaps, nearest
from guie.evaluation.protocols import Given, Part, Protocol, as_units
from guie.evaluation.searching import Embedded


@dataclass(frozen=True)
class Scored:
    """One model under the protocols of the page.

    Attributes:
        name: what the page calls it.
        reports: of `run_protocol`, one a protocol; those of the first model hold `against`.
        embedded: unit vectors [T, D], or those of each domain's specialist.
    """

    name: str
    reports: Sequence[Mapping[str, Any]]
    embedded: Embedded


@dataclass(frozen=True)
class Look:
    """A model's answers in the part that the page looks into."""

    name: str
    near: Nearest
    gaps: Gaps


def short_names(names: Sequence[str]) -> list[str]:
    """Files as a page calls them: their ends, as short as tells them apart, without `.npz`.

    One file alone keeps its folder, which is mostly the run's name.
    """
    parts = [
        Path(name).with_suffix("").parts if name.endswith(".npz") else (name,) for name in names
    ]
    if len(parts) == 1:
        return ["/".join(parts[0][-2:]).replace("//", "/")]
    for count in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(own[-count:]) for own in parts]
        if len(set(ends)) == len(ends):
            return ends
    return list(names)


def judged_models(
    models: Mapping[str, Given],
    reports: Mapping[str, Sequence[Mapping[str, Any]]],
    table: pd.DataFrame,
) -> list[Scored]:
    """Models by their files, with the reports of `run_models`, under short names."""
    names = short_names(list(models))
    return [
        Scored(name, reports[file], as_units(given, table))
        for name, (file, given) in zip(names, models.items(), strict=True)
    ]


def looked_into(protocols: Sequence[Protocol]) -> Part | None:
    """The first part whose answers are right or wrong by labels, over an index that stays as it is."""
    parts = (part for protocol in protocols for part in protocol.parts)
    return next((part for part in parts if not (part.graded or part.gallery_draws)), None)


def looks(models: Sequence[Scored], part: Part, table: pd.DataFrame) -> list[Look]:
    """Ask all models again, and keep who answered."""
    found = []
    for model in models:
        near = nearest(part, table, model.embedded)
        found.append(Look(model.name, near, gaps(part, table, model.embedded, near)))
    return found


def asked_domains(near: Nearest, table: pd.DataFrame) -> np.ndarray:
    """The domain of each query, [Q]."""
    return table["domain"].to_numpy()[near.query_Q]
