"""Score the queries of a protocol part: retrieval, grades, recognition, clustering, given rankings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import faiss
import numpy as np
import pandas as pd

from guie.base.errors import UserError
from guie.base.seeds import seeded_draws
from guie.evaluation import metrics
from guie.evaluation.graded import graded_scores
from guie.evaluation.knn import Embeddings, exact, search_threads, unit_vectors
from guie.evaluation.protocols.base import Part, Protocol, members
from guie.evaluation.ranking_files import Rankings, map_at_1k
from guie.evaluation.search import (
    Images,
    OpenIndex,
    ScoreStore,
    Search,
    rankings,
    score_queries,
    searches,
    unanswerable,
)

ITERATIONS = 20  # of k-means


@dataclass(frozen=True)
class Options:
    """Options for running any protocol."""

    quirks: Iterable[str] = ()  # the keys of `QUIRKS` that are on
    draws: int = 0  # number of bootstrap draws; 0 for no intervals
    store: ScoreStore | None = None  # where a long search stores its scores
    grades: pd.DataFrame | None = None  # result of `read_grades`, required by graded parts
    rerank: OpenIndex = exact  # or a `Rerank`, which corrects every ranking

    def of_protocol(self, protocol: Protocol) -> Options:
        """Return the options for one protocol. Raises UserError for a quirk that it does not have."""
        if other := sorted(set(self.quirks) - set(protocol.quirks)):
            known = ", ".join(protocol.quirks) or "none"
            unknown = f"--quirk {other[0]}: unknown to protocol {protocol.name}"
            raise UserError(f"{unknown}; known: {known}")
        store = self.store and self.store.within(protocol.name)
        return replace(self, quirks=frozenset(self.quirks), store=store)


PLAIN = Options()


@dataclass(frozen=True)
class Scores:
    """The scores of each query, or of each query and gallery draw."""

    part: Part
    values: pd.DataFrame  # by row T; NaN without a positive, and for metrics of other groups
    group_Q: np.ndarray  # domain or data set
    cluster_Q: np.ndarray  # class
    path_Q: np.ndarray

    @classmethod
    def of(cls, part: Part, table: pd.DataFrame, values: pd.DataFrame) -> Scores:
        """Return scores of rows of a table."""
        rows = values.index.to_numpy()
        cluster_Q, path_Q = (table[name].to_numpy()[rows] for name in ("label", "image_path"))
        return cls(part, values, groups_of(part, table)[rows], cluster_Q, path_Q)

    @property
    def common(self) -> list[str]:
        """Return the metrics that every group has."""
        sets = [set(self.part.keys(group)) for group in pd.unique(self.group_Q)]
        return [key for key in self.values.columns if all(key in keys for keys in sets)]


def groups_of(part: Part, table: pd.DataFrame) -> np.ndarray:
    """Return the domain or data set of each row, whichever the part averages by."""
    return table[part.by if part.by in table else "domain"].to_numpy()


def search_part(
    part: Part, table: pd.DataFrame, embedded: Embeddings, options: Options
) -> pd.DataFrame:
    """Return the metrics of each query (and gallery draw), indexed by row T; NaN without a positive."""
    images, group_T = Images.of(table, members(table, part.subset)), groups_of(part, table)
    store = options.store and options.store.within(part.name)
    counts, found = "query_counts" in options.quirks, []
    for search in searches(part.index, images, group_T):
        for drawn in galleries(search, images, table, part.gallery_draws) or [search]:
            if not len(drawn.query_Q):
                continue
            ranked = rankings(images, embedded, drawn, options.rerank)
            if part.graded:
                assert options.grades is not None
                found.append(graded_scores(ranked, table, drawn, options.grades))
                continue
            groups = pd.unique(group_T[drawn.query_Q])
            keys = list(dict.fromkeys(key for group in groups for key in part.keys(group)))
            found.append(score_queries(ranked, drawn, keys, store, counts))
    return pd.concat(found) if found else pd.DataFrame()


def galleries(search: Search, images: Images, table: pd.DataFrame, draws: int) -> list[Search]:
    """Return one search per draw: one image of each class is the index, whatever its role.

    A draw depends only on its number and the image paths.
    """
    row_R = np.union1d(search.query_Q, search.index_I)
    row_R = row_R[np.sort(np.unique(images.image_T[row_R], return_index=True)[1])]
    path_R, class_R = table["image_path"].to_numpy()[row_R], images.set_T[row_R]
    drawn = []
    for draw in range(draws):
        order_R = np.lexsort((seeded_draws(draw, path_R), class_R))
        _, first_C = np.unique(class_R[order_R], return_index=True)
        index_I = np.sort(row_R[order_R[first_C]])
        drawn.append(Search(f"{search.name}, draw {draw}", np.setdiff1d(row_R, index_I), index_I))
    return drawn


def retrieve(part: Part, table: pd.DataFrame, embedded: Embeddings, options: Options) -> Scores:
    """Return the scores of a part. Raises UserError if no query has a positive."""
    values = search_part(part, table, embedded, options)
    if values.isna().to_numpy().all():
        if part.graded:
            raise UserError(
                f"relevance.csv: none of {len(values)} queries has an easy or hard image in the index; its"
                " paths must match image_path in the manifest"
            )
        raise unanswerable(len(values))
    scores = Scores.of(part, table, values)
    for group in pd.unique(scores.group_Q):  # in one index all groups got the same metrics
        others = [key for key in values if key not in part.keys(group)]
        values.loc[scores.group_Q == group, others] = np.nan
    return scores


def ranked_scores(part: Part, table: pd.DataFrame, given: Rankings) -> Scores:
    """Score each query of given rankings. Raises UserError for a part that needs embeddings."""
    if part.index != "merged" or not set(part.metrics) <= {"map_at_1000", "found_at_1000"}:
        raise UserError("--results: only --protocol ilias scores rankings")
    images, query_Q = Images.of(table), given.query_Q
    positives_Q = images.count_positives(query_Q, np.flatnonzero(images.is_index_T))
    relevant_QK = images.are_relevant(query_Q, given.found_QK)
    with np.errstate(invalid="ignore"):  # NaN for a query without positives
        found = {  # equal scores are one step of ILIAS's AP
            "map_at_1000": map_at_1k(relevant_QK, positives_Q, given.score_QK),
            "found_at_1000": metrics.metric("found_at_1000", relevant_QK, positives_Q),
        }
    return Scores.of(part, table, pd.DataFrame(found, index=query_Q)[list(part.metrics)])


def group_scores(
    part: Part, table: pd.DataFrame, embedded: Embeddings, rerank: OpenIndex
) -> dict[str, dict[str, float]]:
    """Return each group's scores that are not means over queries: NMI, or GAP, GAP- and accuracy."""
    found: dict[str, dict[str, float]] = {}
    if part.clusters:
        own = table[members(table, part.subset)]
        for name, rows in own.groupby(groups_of(part, own), sort=False):
            rows = rows.drop_duplicates("image_path")  # queries and index together
            domain = rows["domain"].iloc[0]
            unit_TD = embedded if isinstance(embedded, np.ndarray) else embedded[domain]
            labels = pd.factorize(rows["label"])[0]
            found[str(name)] = {"nmi": nmi(unit_TD[rows.index.to_numpy()], labels)}
    if part.recognition:
        images, group_T = Images.of(table, members(table, part.subset)), groups_of(part, table)
        for search in searches(part.index, images, group_T):
            if len(search.query_Q):
                group = str(group_T[search.query_Q[0]])
                found[group] = recognition_scores(images, embedded, search, rerank)
    return found


def nmi(emb_ND: np.ndarray, label_N: np.ndarray, seed: int = 0) -> float:
    """Return normalised mutual information of k-means clusters and classes: 2 I / (H + H), 1 if equal.

    It follows pytorch-metric-learning's AccuracyCalculator: faiss k-means on unit vectors, with Euclidean
    distances and as many clusters as classes. But every image is used, not 256 a cluster as in faiss.

    The value depends on the images that initialise the clusters, hence on `seed` and the order of rows:
    average several seeds for a decision. It is far above 0 for random embeddings of small classes, so compare
    it only within one set of images. A label `a|b` is its own class.
    """
    from sklearn.metrics import normalized_mutual_info_score  # takes a second, and is seldom needed

    unit_ND = unit_vectors(np.asarray(emb_ND), label_N)
    names, class_N = np.unique(label_N, return_inverse=True)
    kmeans = faiss.Kmeans(
        unit_ND.shape[1],
        len(names),
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,  # avoids faiss warnings: small classes are common here
        max_points_per_centroid=len(unit_ND),
    )
    with search_threads():
        kmeans.train(unit_ND)
        _, cluster_N1 = kmeans.index.search(unit_ND, 1)
    return min(1.0, float(normalized_mutual_info_score(class_N, cluster_N1[:, 0])))


def recognition_scores(
    images: Images, embedded: Embeddings, search: Search, rerank: OpenIndex
) -> dict[str, float]:
    """Score Met's nearest-neighbour classifier, whose confidence is the similarity or corrected score."""
    confidence, correct, answered = [], [], []
    for ranking in rankings(images, embedded, search, rerank):
        answered.append(images.count_positives(ranking.search.query_Q, search.index_I) > 0)
        for query_B, found_B1, similarity_B1 in ranking.blocks(1):
            # No columns where the index is empty
            confidence.append(similarity_B1.max(axis=1, initial=-np.inf))
            correct.append(images.are_relevant(query_B, found_B1).any(axis=1))
    return metrics.recognition(*map(np.concatenate, (confidence, correct, answered)))
