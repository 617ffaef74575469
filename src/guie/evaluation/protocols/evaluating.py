"""Evaluate embeddings under a protocol: report, intervals, and a comparison of several models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
from guie.evaluation.files import Embeddings, arrays_of, as_units
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
from guie.evaluation.search import Kept, Rerank, searches

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


HEADLINES = {"mean": mean_headline, "harmonic": harmonic_headline}


def intervals(scores: Scores, draws: int = DRAWS) -> dict[str, Any]:
    """Return bootstrap intervals of all values of `report_of`, over queries clustered by class.

    Returns {"level", "draws", "mean": {metric: [low, high]}, "pooled": .., "domains": {name: ..}}. A
    group with a single class has no interval; if every group is such, nor has the mean.
    """
    common = scores.common
    has_value_Q = scores.values[common].notna().any(axis=1).to_numpy()
    scored = pd.unique(scores.group_Q[has_value_Q])
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
        "domains": {name: _of_group(scores, name, draws) for name in sorted(scored)},
    }


def compare(a: Scores, b: Scores, headline: Headline) -> Comparison:
    """Return the lead of b over a in a headline. Raises UserError if the queries differ."""
    if not np.array_equal(a.path_Q, b.path_Q):
        raise UserError("the two embeddings have different queries; use one manifest and split")
    a_Q, b_Q = (one.values[headline.metric].to_numpy() for one in (a, b))
    over_groups = HEADLINES.get(headline.statistic)
    group_Q = a.group_Q if over_groups else None
    over_groups = over_groups or mean_headline
    return paired(a_Q, b_Q, a.cluster_Q, group_Q, headline=over_groups, draws=DRAWS)


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
    found = {}
    for line in protocol.headlines:
        own = ours[line.part].values
        means = line.statistic in ("mean", "pooled", "harmonic") and line.metric in own
        if means and own[line.metric].notna().any():
            found[line.title] = compare(theirs[line.part], ours[line.part], line)
    mine, other = names
    return {
        "embeddings": other,
        "differences": {title: asdict(one) for title, one in found.items()},
        "verdicts": [verdict(one, (other, mine), title) for title, one in found.items()],
    }


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
        _add_beside(report, part, table, embedded, options.rerank)
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
    draws: int = DRAWS,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, Scores]]:
    """Score one split under a protocol.

    Returns the report (`protocol`, `source`, `quirks`, `headline` and, by name, the `parts` of
    `score_part`) and each part's query scores. Other arguments and errors are those of `score_part` and
    `Options`. Also raises UserError for a quirk that the protocol does not have.
    """
    chosen = Options(draws=draws, **options).of_protocol(protocol)
    found = {
        part.name: score_part(part, embeddings_TD, table, chosen.within(part.name))
        for part in protocol.parts
    }
    parts = {name: report for name, (report, _) in found.items()}
    report = {
        "protocol": protocol.name,
        "source": protocol.source,
        "quirks": sorted(chosen.quirks),
        "headline": {h.title: h.of(parts[h.part]) for h in protocol.headlines},
        "parts": parts,
    }
    return report, {name: scores for name, (_, scores) in found.items()}


def _add_beside(
    report: dict[str, Any], part: Part, table: pd.DataFrame, embedded: Embeddings, rerank: Rerank
) -> None:
    """Add each group's scores that are not means over queries (NMI, GAP), and their means over groups."""
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
    found = {name: scores for name, scores in found.items() if name in report["domains"]}
    for name, scores in found.items():
        report["domains"][name] |= metrics.plain(pd.Series(scores))
    report["mean"] |= metrics.plain(pd.DataFrame(list(found.values())).mean())


def share_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    kept: Kept,
    **options: Any,
) -> None:
    """Search and store this process's part of `run_models`."""
    for protocol in protocols:
        for place, given in enumerate(models.values()):
            embedded = as_units(given, table)
            chosen = Options(kept=kept.within(f"model {place}"), **options).of_protocol(protocol)
            for part in protocol.parts:
                if not part.graded:  # graded parts store nothing
                    search_part(part, table, embedded, chosen.within(part.name))


def run_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    *,
    draws: int = DRAWS,
    draws_of_others: int = 0,
    kept: Kept | None = None,
    **options: Any,
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Scores]]]:
    """Return the reports of each model by its name, one per protocol, from `run_protocol`.

    Also returns the first model's query scores by part, one mapping per protocol. With several models,
    each report of the first has `against`: the result of `against` for every other model. Arguments and
    errors are those of `run_protocol`.
    """
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    of_first = []
    for protocol in protocols:
        found = {}
        for place, (name, given) in enumerate(models.items()):
            own = kept and kept.within(f"model {place}")
            count = draws_of_others if place else draws
            settings = {"kept": own, **options}
            report, found[name] = run_protocol(protocol, given, table, draws=count, **settings)
            reports[name].append(report)
        (mine, scores), *others = found.items()
        of_first.append(scores)
        if others:
            reports[mine][-1]["against"] = [
                against(protocol, scores, theirs, (mine, name)) for name, theirs in others
            ]
    return reports, of_first
