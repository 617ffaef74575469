"""Analyse retrieval errors: neighbours, confusions, hard classes, distance gaps and hubs."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from guie.base.seeds import seeded_draws
from guie.evaluation.knn import Embeddings
from guie.evaluation.protocols.base import Part, members
from guie.evaluation.protocols.retrieval import groups_of
from guie.evaluation.reduction import balanced_sample
from guie.evaluation.search import Images, rankings, searches

DEPTH = 100  # ranks searched for the first correct result
MOST_PAIRS = 4 * 10**10  # pairs of query and index image: a minute on two cores
SHOWN = 10  # ranks that are kept: hubness is measured by N_10
KINDS = ("both", "ours", "theirs", "neither")  # by whose first result is relevant
# Of the sample whose gaps are measured:
QUERIES = 2_000  # a fraction of them has a standard error of about .01
PAIRS = 4 * 10**8  # pairs of query and index image: a larger index means fewer queries
BLOCK_FLOATS = 2**24  # similarities in one block


@dataclass(frozen=True)
class Nearest:
    """The nearest neighbours of each query that has a positive, as rows T of the table."""

    index_I: np.ndarray  # rows that were searched for any query
    queries: int  # of the part, with those that have no positive or are not in the sample
    sampled: bool  # whether only a random sample of the queries was searched
    query_Q: np.ndarray  # ascending
    found_QK: np.ndarray  # best first, -1 past the end of the index
    distance_QK: np.ndarray  # Euclidean, of unit vectors (0 to 2); inf past the end of the index
    relevant_QK: np.ndarray  # whether the retrieved image shares a label with the query
    first_hit_Q: np.ndarray  # rank of the first relevant image, from 1; 0 past DEPTH
    positives_Q: np.ndarray  # number of relevant images in the index

    @property
    def right_Q(self) -> np.ndarray:
        """Return R@1 of each query, bool: whether the first result is relevant."""
        return self.first_hit_Q == 1

    def recall_at(self, k: int) -> np.ndarray:
        """Return whether any of the first k results is relevant, bool [Q]; k is at most DEPTH."""
        return (self.first_hit_Q > 0) & (self.first_hit_Q <= k)


def nearest(part: Part, table: pd.DataFrame, embedded: Embeddings) -> Nearest:
    """Search every query that has a positive in the index of a protocol part.

    Above MOST_PAIRS pairs of query and index image, a sample of the queries is searched, the same for
    every model. Relevance is by labels, even if the part is graded. The vectors have unit length.

    Raises ValueError if no query has a positive.
    """
    images, group_T = Images.of(table, members(table, part.subset)), groups_of(part, table)
    queries = int(images.is_query_T.sum())
    pairs = sum(len(s.query_Q) * len(s.index_I) for s in searches(part.index, images, group_T))
    if pairs > MOST_PAIRS:
        rows = np.flatnonzero(images.is_query_T)
        drawn = np.argsort(seeded_draws(0, table["image_path"].to_numpy()[rows]), kind="stable")
        kept = rows[drawn[: max(1, int(MOST_PAIRS / pairs * queries))]]
        images = replace(images, is_query_T=np.isin(np.arange(len(table)), kept))
    found, positives, searched = [], [], []
    for search in searches(part.index, images, group_T):
        searched.append(search.index_I)
        for ranking in rankings(images, embedded, search):
            query_Q = ranking.search.query_Q
            positives_Q = images.count_positives(query_Q, search.index_I)
            positives.append(positives_Q[positives_Q > 0])
            answered = ranking.of(query_Q[positives_Q > 0])
            for query_B, row_BK, score_BK in answered.blocks(DEPTH, title="neighbours"):
                relevant_BK = images.are_relevant(query_B, row_BK)
                first_B = np.where(relevant_BK.any(axis=1), relevant_BK.argmax(axis=1) + 1, 0)
                distance_BK = np.sqrt(np.maximum(2 - 2 * _shown(score_BK, -np.inf), 0))
                rows_BK = _shown(row_BK, -1).astype(np.int32)
                relevant_BK = _shown(relevant_BK, False)
                distance_BK = distance_BK.astype(np.float32)
                found.append((query_B, rows_BK, distance_BK, relevant_BK, first_B))
    if not found:
        raise ValueError("no query has a positive in the index")
    columns = [np.concatenate(blocks) for blocks in (*zip(*found, strict=True), positives)]
    order_Q = np.argsort(columns[0], kind="stable")
    index_I = np.unique(np.concatenate(searched))
    return Nearest(index_I, queries, pairs > MOST_PAIRS, *(column[order_Q] for column in columns))


def _shown(values_BK: np.ndarray, nothing: float) -> np.ndarray:
    """Return the first SHOWN ranks, padded if the index has fewer images."""
    missing = max(SHOWN - values_BK.shape[1], 0)
    return np.pad(values_BK[:, :SHOWN], ((0, 0), (0, missing)), constant_values=nothing)


def outcomes(ours: Nearest, theirs: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Count, per domain (row), the queries of each of KINDS (column), by two searches of one table."""
    kind = np.array(KINDS)[2 * ~ours.right_Q + ~theirs.right_Q]
    domain = table["domain"].to_numpy()[ours.query_Q]
    counts = pd.crosstab(domain, kind).rename_axis(index=None, columns=None)
    return counts.reindex(columns=list(KINDS), fill_value=0)


def domain_shares(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Return, for each query domain (row), the fraction of first results in each domain (column)."""
    domain_T = table["domain"].to_numpy()
    counts = pd.crosstab(domain_T[near.query_Q], domain_T[near.found_QK[:, 0]])
    columns = sorted(set(counts.index) | set(counts.columns))
    counts = counts.reindex(columns=columns, fill_value=0).rename_axis(index=None, columns=None)
    return counts.div(counts.sum(axis=1), axis=0)


def strayed(near: Nearest, table: pd.DataFrame, column: str = "domain") -> pd.DataFrame:
    """Return queries whose first result is wrong and has another domain (or `label`), nearest first.

    Returns columns `place` (position in near.query_Q), `query`, `answer` (values of the column), `distance`.
    """
    values_T = table[column].to_numpy()
    query_Q, answer_Q = values_T[near.query_Q], values_T[near.found_QK[:, 0]]
    place = np.flatnonzero(~near.right_Q & (query_Q != answer_Q) & (near.found_QK[:, 0] >= 0))
    values = {"place": place, "query": query_Q[place], "answer": answer_Q[place]}
    found = pd.DataFrame(values | {"distance": near.distance_QK[place, 0]})
    return found.sort_values("distance", kind="stable", ignore_index=True)


def class_confusions(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Return columns `query` and `answer` (labels of queries and wrong first results), `queries`, `share`.

    The most frequent pair comes first. A share counts the queries of a class.
    """
    wrong = strayed(near, table, "label")
    pairs = wrong.groupby(["query", "answer"]).size().rename("queries").reset_index()
    total = table["label"].iloc[near.query_Q].value_counts()
    pairs["share"] = pairs["queries"] / pairs["query"].map(total)
    order = ["queries", "share"]
    return pairs.sort_values(order, ascending=False, kind="stable", ignore_index=True)


def by_class(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Summarise each query class, hardest first; ties put the larger class first.

    Returns columns `label` (`a|b` is its own class), `domain`, `queries`, `positives` (mean over its
    queries), `r_at_1`, `rank` (median of the first relevant result; NaN if half of the queries have none
    within DEPTH), `taken_for` (the most frequent class of its wrong first results) and `times` (it is).
    """
    queries = table[["label", "domain"]].iloc[near.query_Q].reset_index(drop=True)
    queries["positives"], queries["right"] = near.positives_Q, near.right_Q
    queries["rank"] = np.where(near.first_hit_Q > 0, near.first_hit_Q, np.inf)
    classes = queries.groupby("label", sort=True).agg(
        domain=("domain", "first"),
        queries=("right", "size"),
        positives=("positives", "mean"),
        r_at_1=("right", "mean"),
        rank=("rank", "median"),
    )
    classes["rank"] = classes["rank"].where(classes["rank"] < np.inf)
    most = class_confusions(near, table).drop_duplicates("query").set_index("query")
    classes["taken_for"] = most["answer"].reindex(classes.index).fillna("")
    classes["times"] = most["queries"].reindex(classes.index).fillna(0).astype(int)
    order, ascending = ["r_at_1", "queries"], [True, False]
    return classes.reset_index().sort_values(order, ascending=ascending, ignore_index=True)


@dataclass(frozen=True)
class Gaps:
    """Euclidean distances of unit vectors, 0 to 2, of a sample of queries, rows of the table."""

    query_S: np.ndarray
    positive_S: np.ndarray  # to the nearest positive
    negative_S: np.ndarray
    any_positive_S: np.ndarray  # to one random positive
    any_negative_S: np.ndarray


def gaps(part: Part, table: pd.DataFrame, embedded: Embeddings, near: Nearest) -> Gaps:
    """Return distances to positives and negatives (NaN for none) of a domain-balanced sample of queries."""
    images, group_T = Images.of(table, members(table, part.subset)), groups_of(part, table)
    sampled = table.iloc[near.query_Q].assign(row=near.query_Q)
    queries = min(QUERIES, PAIRS // len(near.index_I))
    of_each = max(1, queries // sampled["domain"].nunique())
    chosen = balanced_sample(sampled, of_each, seed=0)["row"]
    rng, found = np.random.default_rng(0), []
    for search in searches(part.index, images, group_T):
        index_I = search.index_I
        for ranking in rankings(images, embedded, search):
            query_S = ranking.search.query_Q[np.isin(ranking.search.query_Q, chosen)]
            size = max(1, BLOCK_FLOATS // max(1, len(index_I)))
            for start in range(0, len(query_S), size):
                query_B = query_S[start : start + size]
                cosine_BI = ranking.unit_TD[query_B] @ ranking.unit_TD[index_I].T
                distance_BI = np.sqrt(np.maximum(2 - 2 * cosine_BI, 0))
                rows_BI = np.broadcast_to(index_I, distance_BI.shape)
                shared_BI = images.are_relevant(query_B, rows_BI)
                other_BI = images.image_T[query_B][:, None] != images.image_T[index_I]
                columns = [query_B]
                for first_BI in (-distance_BI, rng.random(distance_BI.shape, dtype=np.float32)):
                    for among_BI in (shared_BI & other_BI, ~shared_BI & other_BI):
                        place_B = np.where(among_BI, first_BI, -np.inf).argmax(axis=1)
                        value_B = np.take_along_axis(distance_BI, place_B[:, None], 1)[:, 0]
                        columns.append(np.where(among_BI.any(axis=1), value_B, np.nan))
                found.append(columns)
    return Gaps(*(np.concatenate(blocks) for blocks in zip(*found, strict=True)))


def occurrences(near: Nearest) -> np.ndarray:
    """Return N_k of each index image, [I]: the number of queries that have it in their first k."""
    found = near.found_QK[near.found_QK >= 0]
    return np.bincount(found, minlength=near.index_I[-1] + 1)[near.index_I]


def hubness(near: Nearest, table: pd.DataFrame) -> pd.DataFrame:
    """Measure how evenly the index images are found, per domain and, in row "", over all domains.

    Returns `images` (count), `skew` and `most` (maximum) of N_k, and two shares: `never`, of images in no
    query's first k, and `held`, of all finds by the most found 1 % of images. The skew is the third
    standardised moment: high if there are hubs, NaN if all are found equally often.
    """
    count_I, domain_I = occurrences(near), table["domain"].to_numpy()[near.index_I]
    rows = {}
    for name in ["", *sorted(map(str, set(domain_I)))]:
        own_I = count_I[domain_I == name] if name else count_I
        finds, first = own_I.sum(), max(1, len(own_I) // 100)
        away_I = own_I - own_I.mean()
        deviation = np.sqrt((away_I**2).mean())
        rows[name] = {
            "images": len(own_I),
            "skew": float((away_I**3).mean() / deviation**3) if deviation > 0 else np.nan,
            "never": float((own_I == 0).mean()),
            "most": int(own_I.max()),
            "held": float(np.sort(own_I)[-first:].sum() / finds) if finds else np.nan,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def wrong_firsts(near: Nearest) -> pd.DataFrame:
    """Return wrong first results, the most frequent first: `row`, `wrong` (queries), `found` (N_k)."""
    wrong = near.found_QK[~near.right_Q, 0]
    row, count = np.unique(wrong[wrong >= 0], return_counts=True)
    found = occurrences(near)[np.searchsorted(near.index_I, row)]
    table = pd.DataFrame({"row": row, "wrong": count, "found": found})
    return table.sort_values("wrong", ascending=False, kind="stable", ignore_index=True)
