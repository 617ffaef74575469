"""Evaluate embeddings under a protocol: report, intervals, and a comparison of several models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.bootstrap import (
    LEVEL,
    Comparison,
    harmonic_headline,
    mean_headline,
    paired,
    percentiles,
    resample,
    verdict,
)
from guie.evaluation.embeddings import Embeddings, arrays_of, as_units
from guie.evaluation.graded import Rankings
from guie.evaluation.protocols.base import HARMONIC, Headline, Part, Protocol, members
from guie.evaluation.protocols.catalogue import DRAWS, INDEXES, PROTOCOLS
from guie.evaluation.protocols.retrieval import (
    PLAIN,
    Options,
    Scores,
    cluster_scores,
    groups_of,
    images_of,
    ranked_scores,
    recognition_scores,
    report_of,
    retrieve,
    search_part,
)
from guie.evaluation.rerank.ranking import NO_RERANK, Rerank
from guie.evaluation.search import Kept, searches

PUBLIC_SHARE = 0.3


def public_and_private(scores: Scores) -> dict[str, dict[str, float | None]]:
    """Return means over the 30 % of the queries that are public, and over the rest."""
    public_Q = np.array([is_public(path) for path in scores.path_Q], dtype=bool)
    return {
        name: metrics.plain(scores.values[own_Q].mean())
        for name, own_Q in (("public", public_Q), ("private", ~public_Q))
    }


def is_public(image_path: str) -> bool:
    """Tell whether a query belongs to the public 30 %, by a hash of its path, as score.py does."""
    digest = hashlib.sha256(image_path.encode()).digest()
    return int.from_bytes(digest[:8], "big") < PUBLIC_SHARE * 2**64


HEADLINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_headline,
    "harmonic": harmonic_headline,
}


def intervals(scores: Scores, draws: int = DRAWS) -> dict[str, Any]:
    """Return bootstrap intervals of all values of `report_of`, over queries clustered by class.

    Returns {"level", "draws", "mean": {metric: [low, high]}, "pooled": .., "domains": {name: ..}}. A
    group with a single class has no interval; if every group is such, nor has the mean.
    """
    common = scores.common
    mean: dict[str, Any] = {}
    pooled: dict[str, Any] = {}
    for keys in _alike(scores.values[common]):
        values_QM = scores.values[keys].to_numpy()
        by_group = resample(values_QM, scores.cluster_Q, scores.group_Q, draws, 0)
        alone = by_group.lone_groups == len(by_group.mean_GM)  # nothing is drawn, the width is zero
        for m, key in enumerate(() if alone else keys):
            drawn_DG = by_group.mean_DGM[:, :, m]
            mean[key] = percentiles(mean_headline(drawn_DG))
            if key in HARMONIC:
                mean[f"harmonic_{key}"] = percentiles(harmonic_headline(drawn_DG))
        drawn = resample(values_QM, scores.cluster_Q, None, draws, 0)
        if not drawn.lone_groups:
            pooled |= _of_each(drawn.mean_DGM[:, 0], keys)
    return {
        "level": LEVEL,
        "draws": draws,
        "mean": mean,
        "pooled": pooled,
        "domains": {name: _of_group(scores, name, draws) for name in _scored(scores)},
    }


def compare(a: Scores, b: Scores, headline: Headline) -> Comparison:
    """Return the lead of b over a in a headline. Raises UserError if the queries differ."""
    if not np.array_equal(a.path_Q, b.path_Q):
        raise UserError("the two embeddings have different queries; use one manifest and split")
    key = headline.metric
    group_Q = None if headline.statistic not in HEADLINES else a.group_Q
    return paired(
        a.values[key].to_numpy(),
        b.values[key].to_numpy(),
        a.cluster_Q,
        group_Q,
        headline=HEADLINES.get(headline.statistic, mean_headline),
        draws=DRAWS,
    )


def against(
    protocol: Protocol,
    ours: Mapping[str, Scores],
    theirs: Mapping[str, Scores],
    names: tuple[str, str],
) -> dict[str, Any]:
    """Compare this model with another, headline by headline.

    Args:
        ours, theirs: scores of the queries, by part.
        names: names of this model and of the other.

    Returns {"embeddings": the other's name, "differences": {headline: ..}, "verdicts": [sentence]},
    without headlines that are not a mean over queries (GAP, NMI), or that no query has a value of.
    """
    found = {
        headline.title: compare(theirs[headline.part], ours[headline.part], headline)
        for headline in protocol.headlines
        if headline.statistic in ("mean", "pooled", "harmonic")
        and headline.metric in ours[headline.part].values
        and ours[headline.part].values[headline.metric].notna().any()
    }
    mine, other = names
    return {
        "embeddings": other,
        "differences": {title: asdict(one) for title, one in found.items()},
        "verdicts": [verdict(one, (other, mine), title) for title, one in found.items()],
    }


def _scored(scores: Scores) -> list[str]:
    """Return the groups in which a query has a value."""
    scored_Q = scores.values[scores.common].notna().any(axis=1).to_numpy()
    return sorted(pd.unique(scores.group_Q[scored_Q]))


def _of_group(scores: Scores, name: str, draws: int) -> dict[str, tuple[float, float] | None]:
    own_Q = scores.group_Q == name
    values = scores.values.loc[own_Q, [k for k in scores.values if k in scores.part.keys(name)]]
    found: dict[str, tuple[float, float] | None] = {}
    for keys in _alike(values):
        drawn = resample(values[keys].to_numpy(), scores.cluster_Q[own_Q], None, draws, 0)
        found |= _of_each(drawn.mean_DGM[:, 0], keys)
        if drawn.lone_groups:
            found |= dict.fromkeys(keys)
    return found


def _alike(values: pd.DataFrame) -> list[list[str]]:
    """Group metrics by the queries that have them: one group for labels, one per level for grades."""
    sets: dict[bytes, list[str]] = {}
    for key in values:
        has_Q = values[key].notna().to_numpy()
        if has_Q.any():
            sets.setdefault(has_Q.tobytes(), []).append(str(key))
    return list(sets.values())


def _of_each(mean_DM: np.ndarray, keys: list[str]) -> dict[str, Any]:
    return {key: percentiles(mean_DM[:, m]) for m, key in enumerate(keys)}


def evaluate(
    embeddings_TD: Embeddings, table: pd.DataFrame, index: str = "merged"
) -> dict[str, Any]:
    """Score one split by every metric over one index: `score_part` without intervals.

    Raises ValueError unless the index is merged or separate.
    """
    if index not in INDEXES:
        raise ValueError(f"index is {index!r}; it must be one of {INDEXES}")
    return score_part(PROTOCOLS[index].parts[0], embeddings_TD, table)[0]


def score_part(
    part: Part,
    embeddings_TD: Embeddings | Rankings,
    table: pd.DataFrame,
    options: Options = PLAIN,
) -> tuple[dict[str, Any], Scores]:
    """Score one split under a part of a protocol.

    Args:
        embeddings_TD: float32 or float16, row t for row t of the table, compared by cosine. Or, by
            domain, those of its specialist, which embeds that domain's queries and the whole index.
            Or rankings in place of embeddings, which have no dimension.
        table: the manifest's rows of one split: image_path, label, domain, role.

    Returns the content of `report.json`, and the scores of each query. `mean` is over domains (UnED's
    headline), `pooled` over queries (the challenge's number). Each of `domains` counts all `queries`
    and `queries_without_positive`, which no metric includes. A domain without any positive has None
    for every metric and is left out of the mean.

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
                "--protocol: needs relevance.csv next to the manifest, with columns query, image, grade"
            )
        scores = retrieve(part, table, embedded, options)
        report = report_of(scores, options.quirks) | {"dimension": arrays_of(embedded)[0].shape[1]}
        _add(report, _beside(part, table, embedded, options.rerank))
    if part.public_and_private:
        report |= public_and_private(scores)
    if options.draws:
        report["intervals"] = intervals(scores, options.draws)
    return report, scores


def run_protocol(
    protocol: Protocol,
    embeddings_TD: Embeddings | Rankings,
    table: pd.DataFrame,
    *,
    quirks: Iterable[str] = (),
    draws: int = DRAWS,
    kept: Kept | None = None,
    grades: pd.DataFrame | None = None,
    rerank: Rerank = NO_RERANK,
) -> tuple[dict[str, Any], dict[str, Scores]]:
    """Score one split under a protocol.

    Returns the report (`protocol`, `source`, `quirks`, `headline` and, by name, the `parts` of
    `score_part`) and each part's query scores. For arguments and errors see `score_part` and
    `Options`. Also raises UserError for a quirk that the protocol does not have.
    """
    options = Options(_quirks(protocol, quirks), draws, kept, grades, rerank)
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


def _beside(
    part: Part, table: pd.DataFrame, embedded: Embeddings, rerank: Rerank
) -> dict[str, dict[str, float]]:
    """Return each group's scores that are not means over queries (NMI, GAP)."""
    found: dict[str, dict[str, float]] = {}
    if part.clusters:
        rows = table[members(table, part.subset)] if part.subset else table
        found = cluster_scores(part, rows, embedded)
    if part.recognition:
        images, group_T = images_of(part, table), groups_of(part, table)
        for search in searches(part.index, images, group_T):
            if len(search.query_Q):
                group = str(group_T[search.query_Q[0]])
                found[group] = recognition_scores(images, embedded, search, rerank)
    return found


def _add(report: dict[str, Any], beside: Mapping[str, Mapping[str, float]]) -> None:
    """Add the scores to the report's domains, and their mean over the domains."""
    for name, found in beside.items():
        if name in report["domains"]:
            report["domains"][name] |= metrics.plain(pd.Series(found))
    means = pd.DataFrame([found for name, found in beside.items() if name in report["domains"]])
    report["mean"] |= metrics.plain(means.mean())


def _quirks(protocol: Protocol, wanted: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(wanted)
    other = sorted(chosen - set(protocol.quirks))
    if other:
        known = ", ".join(protocol.quirks) or "none"
        raise UserError(f"--quirk {other[0]}: unknown to protocol {protocol.name}; known: {known}")
    return chosen


def share_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    kept: Kept,
    quirks: Iterable[str] = (),
    rerank: Rerank = NO_RERANK,
) -> None:
    """Search and store this process's part of `run_models`."""
    for protocol in protocols:
        for _, given, prefixed in _each(models, kept):
            embedded = as_units(given, table)
            options = Options(_quirks(protocol, quirks), kept=prefixed, rerank=rerank)
            for part in protocol.parts:
                if not part.graded:  # graded parts store nothing
                    within = options.within(f"{protocol.name} {part.name}")
                    search_part(part, table, embedded, within)


def run_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    *,
    quirks: Iterable[str] = (),
    draws: int = DRAWS,
    draws_of_others: int = 0,
    kept: Kept | None = None,
    grades: pd.DataFrame | None = None,
    rerank: Rerank = NO_RERANK,
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Scores]]]:
    """Return the reports of each model by its name, one per protocol, from `run_protocol`.

    Also returns the first model's query scores by part, one mapping per protocol. With several models,
    each report of the first has `against`: the result of `against` for every other model. Arguments and
    errors are those of `run_protocol`.
    """
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    of_first = []
    for protocol in protocols:
        first, *others = found = [
            (name, *run_protocol(protocol, given, table, quirks=quirks, kept=prefixed,
                                 draws=draws_of_others if place else draws, grades=grades,
                                 rerank=rerank))
            for place, (name, given, prefixed) in enumerate(_each(models, kept))
        ]  # fmt: skip
        for name, report, _ in found:
            reports[name].append(report)
        mine, report, scores = first
        of_first.append(scores)
        if others:
            report["against"] = [
                against(protocol, scores, theirs, (mine, name)) for name, _, theirs in others
            ]
    return reports, of_first


def _each(
    models: Mapping[str, Embeddings], kept: Kept | None
) -> Iterator[tuple[str, Embeddings, Kept | None]]:
    """Yield each model with its own prefix in the store."""
    for place, (name, given) in enumerate(models.items()):
        yield name, given, kept and (kept.within(f"against {place}") if place else kept)
