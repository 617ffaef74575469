"""Embeddings under a protocol: the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation.embeddings import unit_vectors
from guie.evaluation.kept import KeptBlocks
from guie.evaluation.protocols.base import Options, Part, Protocol, members
from guie.evaluation.protocols.catalogue import INDEXES, PROTOCOLS
from guie.evaluation.protocols.certainty import DRAWS, intervals
from guie.evaluation.protocols.challenge import public_and_private
from guie.evaluation.protocols.clusters import cluster_scores
from guie.evaluation.protocols.ranked import ranked_scores
from guie.evaluation.protocols.recognising import recognition_scores
from guie.evaluation.protocols.retrieval import (
    PLAIN,
    Scores,
    groups_of,
    images_of,
    plain,
    report_of,
    retrieve,
    search_part,
)
from guie.evaluation.rankings import Rankings
from guie.evaluation.searching import Embedded, searches

Given = np.ndarray | Mapping[str, np.ndarray]  # embeddings, as `score_part` takes them

QUICK = Part("quick", "merged", ("r_at_1", "mmp_at_5"))


def evaluate(embeddings_TD: Given, table: pd.DataFrame, index: str = "merged") -> dict[str, Any]:
    """Score one split by every metric over one index: `score_part`, without intervals.

    Raises ValueError for another index than merged and separate.
    """
    if index not in INDEXES:
        raise ValueError(f"index is {index!r}, not one of {INDEXES}")
    return score_part(PROTOCOLS[index].parts[0], embeddings_TD, table)[0]


def quick_scores(embeddings_TD: np.ndarray, table: pd.DataFrame) -> dict[str, Any]:
    """R@1 and mMP@5 over the merged index, cheap enough for validation during training.

    Returns {"r_at_1", "mmp_at_5", "domains": {name: {"r_at_1", "mmp_at_5"}}}; the first two are
    means over the domains, equal to `evaluate(...)["mean"]`. Arguments and errors as there.
    """
    report, _ = score_part(QUICK, embeddings_TD, table)
    names = QUICK.metrics
    domains = {
        name: {key: values[key] for key in names} for name, values in report["domains"].items()
    }
    return {key: report["mean"][key] for key in names} | {"domains": domains}


def score_part(
    part: Part,
    embeddings_TD: Given | Rankings,
    table: pd.DataFrame,
    options: Options = PLAIN,
) -> tuple[dict[str, Any], Scores]:
    """Score one split as a part of a protocol says.

    Args:
        embeddings_TD: float32 or float16, row t for row t of the table, compared by cosine; or, by
            domain, those of its specialist, which embeds that domain's queries and the whole index;
            or rankings in place of embeddings, which have no dimension.
        table: the manifest's rows of one split: image_path, label, domain, role.

    Returns the content of `report.json`, and what each query scores. `mean` is over domains (UnED's
    headline), `pooled` over queries (the challenge's number); each of `domains` counts all `queries`
    and `queries_without_positive`, those among them that no metric includes. A domain in which none
    is left has None for every metric, and no part in the mean.

    Raises:
        UserError: no query has a positive, or an embedding is not finite.
        ValueError: not one embedding for each row.
    """
    if isinstance(embeddings_TD, Rankings):
        scores = ranked_scores(part, table, embeddings_TD)
        report = report_of(scores)
    else:
        embedded = as_units(embeddings_TD, table)
        if part.graded and options.grades is None:
            raise UserError(
                "--protocol: needs relevance.csv beside the manifest, with columns query, image, grade"
            )
        scores = retrieve(part, table, embedded, options)
        report = report_of(scores, options.quirks) | {"dimension": _dimension(embedded)}
        _add(report, _beside(part, table, embedded))
    if part.public_and_private:
        report |= public_and_private(scores)
    if options.draws:
        report["intervals"] = intervals(scores, options.draws)
    return report, scores


def share_protocol(
    protocol: Protocol,
    embeddings_TD: Given,
    table: pd.DataFrame,
    kept: KeptBlocks,
    quirks: Iterable[str] = (),
) -> None:
    """Search and keep this process's blocks of `run_protocol`."""
    embedded = as_units(embeddings_TD, table)
    options = Options(_quirks(protocol, quirks), kept=kept)
    for part in protocol.parts:
        if not part.graded:  # which keeps no blocks
            search_part(part, table, embedded, options.within(f"{protocol.name} {part.name}"))


def run_protocol(
    protocol: Protocol,
    embeddings_TD: Given | Rankings,
    table: pd.DataFrame,
    *,
    quirks: Iterable[str] = (),
    draws: int = DRAWS,
    kept: KeptBlocks | None = None,
    grades: pd.DataFrame | None = None,
) -> tuple[dict[str, Any], dict[str, Scores]]:
    """Score one split under a protocol.

    Returns the report (`protocol`, `source`, `quirks`, `headline` and, by name, `parts` as of
    `score_part`) and each part's scores of queries. Arguments as there and as of `Options`; errors as
    there, and UserError for a quirk that is not of the protocol.
    """
    options = Options(_quirks(protocol, quirks), draws, kept, grades)
    found = {
        part.name: score_part(
            part, embeddings_TD, table, options.within(f"{protocol.name} {part.name}")
        )
        for part in protocol.parts
    }
    parts = {name: report for name, (report, _) in found.items()}
    report = {
        "protocol": protocol.name,
        "source": protocol.source,
        "quirks": sorted(options.quirks),
        "headline": {h.title: h.of(parts[h.part]) for h in protocol.headlines},
        "parts": parts,
    }
    return report, {name: scores for name, (_, scores) in found.items()}


def protocol_of(name: str) -> Protocol:
    """The protocol of that name. Raises UserError for another."""
    if name not in PROTOCOLS:
        raise UserError(f"--protocol {name}: unknown; known: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def _beside(part: Part, table: pd.DataFrame, embedded: Embedded) -> dict[str, dict[str, float]]:
    """What a part tells of its groups besides means over queries."""
    found: dict[str, dict[str, float]] = {}
    if part.clusters:
        rows = table[members(table, part.subset)] if part.subset else table
        found = cluster_scores(part, rows, embedded)
    if part.recognition:
        images, group_T = images_of(part, table), groups_of(part, table)
        for search in searches(part.index, images, group_T):
            if len(search.query_Q):
                group = str(group_T[search.query_Q[0]])
                found[group] = recognition_scores(images, embedded, search)
    return found


def _add(report: dict[str, Any], beside: Mapping[str, Mapping[str, float]]) -> None:
    """Put it into the report's domains, and its mean over them."""
    for name, found in beside.items():
        if name in report["domains"]:
            report["domains"][name] |= plain(pd.Series(found))
    means = pd.DataFrame([found for name, found in beside.items() if name in report["domains"]])
    report["mean"] |= plain(means.mean())


def as_units(embeddings_TD: np.ndarray | Mapping[str, np.ndarray], table: pd.DataFrame) -> Embedded:
    """Vectors of unit length, of one model or of each domain's specialist. Errors as of `score_part`."""
    if isinstance(embeddings_TD, np.ndarray):
        if len(embeddings_TD) != len(table):
            raise ValueError(f"{len(embeddings_TD)} embeddings for {len(table)} rows")
        return unit_vectors(embeddings_TD, table["image_path"].to_numpy())
    missing = sorted(set(table["domain"]) - set(embeddings_TD))
    if missing:
        raise UserError(f"no specialist for {', '.join(missing)}; give one for every domain")
    units = {name: as_units(values, table) for name, values in embeddings_TD.items()}
    return {name: value for name, value in units.items() if isinstance(value, np.ndarray)}


def _dimension(embedded: Embedded) -> int:
    one = embedded if isinstance(embedded, np.ndarray) else next(iter(embedded.values()))
    return one.shape[1]


def _quirks(protocol: Protocol, wanted: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(wanted)
    other = sorted(chosen - set(protocol.quirks))
    if other:
        known = ", ".join(protocol.quirks) or "none"
        raise UserError(f"--quirk {other[0]}: not of protocol {protocol.name}, which has: {known}")
    return chosen
