"""Evaluate embeddings under a protocol: report, intervals, and a comparison of several models.

For each part of a protocol: unit vectors are searched (`search_part`), which gives the metrics of each query.
Their means are the report (`report_of`); classes are resampled for its `intervals`. `against` compares the
queries of two models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.evaluation import metrics
from guie.evaluation.bootstrap import (
    LEVEL,
    harmonic_headline,
    mean_headline,
    paired,
    percentiles,
    resample,
    verdict,
)
from guie.evaluation.files import arrays_of, as_units
from guie.evaluation.knn import Embeddings
from guie.evaluation.protocols.base import HARMONIC, Part, Protocol
from guie.evaluation.protocols.catalogue import DRAWS, PROTOCOLS
from guie.evaluation.protocols.retrieval import (
    PLAIN,
    Options,
    Scores,
    group_scores,
    ranked_scores,
    retrieve,
    search_part,
)
from guie.evaluation.ranking_files import Rankings
from guie.evaluation.search import ScoreStore
from scorer.retrieval import is_public

ROUNDED = 3  # decimals, for the quirk `round`


def evaluate(
    embeddings_TD: Embeddings, table: pd.DataFrame, index: str = "merged"
) -> dict[str, Any]:
    """Score one split by every metric, `index` merged or separate: `score_part` without intervals."""
    return score_part(PROTOCOLS[index].parts[0], embeddings_TD, table)[0]


def score_part(
    part: Part,
    embeddings_TD: Embeddings | Rankings,
    table: pd.DataFrame,
    options: Options = PLAIN,
) -> tuple[dict[str, Any], Scores]:
    """Score one split under a part of a protocol.

    Args:
        embeddings_TD: float32 or float16, row t for row t of the table, compared by cosine. Or rankings,
            which have no dimension.
        table: the manifest's rows of one split: image_path, label, domain, role.

    Returns the content of `report.json`, and the scores of each query. `mean` is over domains (UnED's
    headline), `pooled` over queries (the challenge's number). No metric includes a query without positive.
    A domain without any positive has None for every metric and is left out of the mean.

    Raises UserError if no query has a positive, or an embedding is not finite.
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
        of_groups = group_scores(part, table, embedded, options.rerank)
        of_groups = {name: own for name, own in of_groups.items() if name in report["domains"]}
        for name, own in of_groups.items():
            report["domains"][name] |= metrics.plain(pd.Series(own))
        report["mean"] |= metrics.plain(pd.DataFrame(list(of_groups.values())).mean())
    if part.public_and_private:
        public_Q = np.array([is_public(path) for path in scores.path_Q], dtype=bool)
        report["public"] = metrics.plain(scores.values[public_Q].mean())
        report["private"] = metrics.plain(scores.values[~public_Q].mean())
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
    """Return the report of one split, and each part's query scores; see `score_part` and `Options`."""
    chosen = Options(draws=draws, **options).of_protocol(protocol)
    parts, scores = {}, {}
    for part in protocol.parts:
        found = score_part(part, embeddings_TD, table, chosen)
        parts[part.name], scores[part.name] = found
    report = {
        "protocol": protocol.name,
        "source": protocol.source,
        "quirks": sorted(chosen.quirks),
        "headline": {h.title: h.of(parts[h.part]) for h in protocol.headlines},
        "parts": parts,
    }
    return report, scores


def run_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    *,
    draws: int = DRAWS,
    draws_of_others: int = 0,
    store: ScoreStore | None = None,
    **options: Any,
) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Scores]]]:
    """Return the reports of `run_protocol` by model and protocol, and the first model's scores by protocol.

    With several models, each report of the first has `against`: its comparison with every other model.
    """
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    of_first = []
    for protocol in protocols:
        found = {}
        for place, (name, given) in enumerate(models.items()):
            report, found[name] = run_protocol(
                protocol,
                given,
                table,
                draws=draws_of_others if place else draws,
                store=store and store.within(f"model {place}"),
                **options,
            )
            reports[name].append(report)
        (mine, scores), *others = found.items()
        of_first.append(scores)
        if others:
            reports[mine][-1]["against"] = [
                against(protocol, scores, theirs, (mine, name)) for name, theirs in others
            ]
    return reports, of_first


def share_models(
    protocols: Sequence[Protocol],
    models: Mapping[str, Embeddings],
    table: pd.DataFrame,
    store: ScoreStore,
    **options: Any,
) -> None:
    """Search and store this process's share of `run_models`."""
    for protocol in protocols:
        for place, given in enumerate(models.values()):
            embedded = as_units(given, table)
            chosen = Options(store=store.within(f"model {place}"), **options).of_protocol(protocol)
            for part in protocol.parts:
                if not part.graded:  # graded parts store nothing
                    search_part(part, table, embedded, chosen)


def report_of(scores: Scores, quirks: Iterable[str] = ()) -> dict[str, Any]:
    """Return `mean` over groups, `pooled` over queries, and `domains` with counts, as in `report.json`."""
    values, common = scores.values, scores.common
    groups = values.groupby(scores.group_Q)
    by_group = groups.mean().round(ROUNDED) if "round" in quirks else groups.mean()
    mean = by_group[common].mean()
    for key in HARMONIC:
        if key in common:
            (mean[f"harmonic_{key}"],) = harmonic_headline(by_group[key].dropna().to_numpy()[None])
    without = values[common].isna().all(axis=1).groupby(scores.group_Q).sum()
    each = scores.part.gallery_draws or 1  # every draw has the same number of queries
    domains = {}
    for name, means in by_group.iterrows():
        domains[name] = metrics.plain(means[[k for k in values if k in scores.part.keys(name)]])
        domains[name]["queries"] = int(groups.size()[name]) // each
        domains[name]["queries_without_positive"] = int(without[name]) // each
    return {
        "mean": metrics.plain(mean),
        "pooled": metrics.plain(values[common].mean()),
        "domains": domains,
        "index": scores.part.index,
    }


def intervals(scores: Scores, draws: int = DRAWS) -> dict[str, Any]:
    """Return bootstrap intervals of `report_of`, over queries clustered by class."""
    values, cluster_Q, group_Q = scores.values[scores.common], scores.cluster_Q, scores.group_Q
    mean = _intervals(values, cluster_Q, group_Q, draws)
    pooled = _intervals(values, cluster_Q, None, draws)
    domains = {}
    for name in sorted(pd.unique(group_Q[values.notna().any(axis=1).to_numpy()])):
        own_Q = group_Q == name
        own = scores.values.loc[own_Q, [k for k in scores.values if k in scores.part.keys(name)]]
        domains[name] = _intervals(own, cluster_Q[own_Q], None, draws)
    return {
        "level": LEVEL,
        "draws": draws,
        "mean": {key: interval for key, interval in mean.items() if interval},
        "pooled": {key: interval for key, interval in pooled.items() if interval},
        "domains": domains,
    }


def _intervals(
    values: pd.DataFrame, cluster_Q: np.ndarray, group_Q: np.ndarray | None, draws: int
) -> dict[str, tuple[float, float] | None]:
    """Return the interval of each metric's mean over groups or, without them, over queries.

    It is None if each group has a single class. With groups, some metrics have a harmonic mean too.
    """
    # Metrics by the queries that have them: grades differ by level
    alike: dict[bytes, list[str]] = {}
    for key in values:
        has_Q = values[key].notna().to_numpy()
        if has_Q.any():
            alike.setdefault(has_Q.tobytes(), []).append(str(key))
    found: dict[str, tuple[float, float] | None] = {}
    for keys in alike.values():
        drawn = resample(values[keys].to_numpy(), cluster_Q, group_Q, draws, 0)
        varies = drawn.lone_groups < len(drawn.mean_GM)
        for m, key in enumerate(keys):
            drawn_DG = drawn.mean_DGM[:, :, m]
            found[key] = percentiles(mean_headline(drawn_DG)) if varies else None
            if key in HARMONIC and group_Q is not None and varies:
                found[f"harmonic_{key}"] = percentiles(harmonic_headline(drawn_DG))
    return found


def against(
    protocol: Protocol,
    ours: Mapping[str, Scores],
    theirs: Mapping[str, Scores],
    names: tuple[str, str],
) -> dict[str, Any]:
    """Compare this model with another on the same queries, headline by headline.

    Headlines that are not a mean over queries (GAP, NMI), or that no query has a value of, are left out.
    """
    found = {}
    for line in protocol.headlines:
        mine, other = ours[line.part], theirs[line.part]
        if line.statistic not in ("mean", "pooled", "harmonic") or line.metric not in mine.values:
            continue
        mine_Q, other_Q = (scores.values[line.metric].to_numpy() for scores in (mine, other))
        if not np.isnan(mine_Q).all():
            group_Q = None if line.statistic == "pooled" else mine.group_Q
            mean = harmonic_headline if line.statistic == "harmonic" else mean_headline
            found[line.title] = paired(
                other_Q, mine_Q, mine.cluster_Q, group_Q, headline=mean, draws=DRAWS
            )
    return {
        "embeddings": names[1],
        "differences": {title: asdict(one) for title, one in found.items()},
        "verdicts": [verdict(one, names[::-1], title) for title, one in found.items()],
    }
