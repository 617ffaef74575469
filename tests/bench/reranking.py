"""What re-ranking gains and costs: R@1, mMP@5, mAP@100 of the merged index, CPU time of a query.

python tests/bench/reranking.py --embeddings E.npz --manifest M [--domains emoji leaves] [--model RUN]
                                [--out FILE.json]

The mean is over domains, or over those named: the ones that the model did not train on. The gain in R@1
has its 95 % interval over classes. Queries of the time come one at a time, as in search.py, first and
again: the neighbours of an image are searched once. Nothing is added to an index on disk. With a model,
also `local`, whose time is without computing patches.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from common import arguments, queries_of, save_table, show

from guie.data.manifest import load_manifest
from guie.evaluation.bootstrap import paired
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import ExactIndex, unit_vectors
from guie.evaluation.patches import embed_patches
from guie.evaluation.rerank import Reranker
from guie.evaluation.search import Rerank, rankings, score_queries, searches

WAYS = (
    (),
    ("expand",),
    ("augment",),
    ("csls",),
    ("softmax",),
    ("expand", "csls"),
    ("expand", "augment"),
    ("expand", "augment", "csls"),
)
WITH_PATCHES = (("local",), ("csls", "local"), ("expand", "csls", "local"))
KEYS = ("r_at_1", "mmp_at_5", "map_at_100")
TIMED = 200  # queries


def main() -> None:
    args = arguments(
        __doc__,
        embeddings=str,
        manifest=str,
        split="test",
        domains=[""],
        model=str | None,
        out=str | None,
    )
    manifest = load_manifest(args.manifest)
    table = manifest.split(args.split).reset_index(drop=True)
    unit_TD = unit_vectors(load_embeddings(args.embeddings, table), table["image_path"].to_numpy())
    patches_TPF = embed_patches(args.model, manifest, table) if args.model else None
    images = queries_of(table, args.domains)
    (search,) = searches("merged", images, table["domain"].to_numpy())
    domain_Q, label_Q = (table[key].to_numpy()[search.query_Q] for key in ("domain", "label"))
    index_I = search.index_I
    timed_Q = np.random.default_rng(0).choice(search.query_Q, TIMED)
    rows, plain = [], None
    for methods in (*WAYS, *(WITH_PATCHES if args.model else ())):
        rerank = Rerank(methods, patches_TPF)
        found = score_queries(rankings(images, unit_TD, search, rerank), search, KEYS)
        plain = found if plain is None else plain
        means = found.groupby(domain_Q).mean().mean()
        ahead = paired(*(v["r_at_1"].to_numpy() for v in (plain, found)), label_Q, domain_Q)
        find = ExactIndex(unit_TD[index_I]).search
        patches_of = None if patches_TPF is None else partial(taken, patches_TPF, index_I)
        reranker = Reranker(unit_TD[index_I], find, methods, patches_of=patches_of)
        asked = unit_TD[timed_Q], None if patches_TPF is None else patches_TPF[timed_Q]
        times = [milliseconds(reranker, *asked) for _ in range(2)]
        gain = ahead.difference, ahead.low, ahead.high
        rows.append((" ".join(methods) or "none", *means, *gain, *times))
    heads = ["re-ranking", "R@1", "mMP@5", "mAP@100", "gain in R@1", "from", "to"]
    heads += ["ms, first", "ms, again"]
    show(heads, rows, f"{args.embeddings}, {len(index_I):,} x {unit_TD.shape[1]}")
    if args.out:
        save_table(args.out, heads, rows)


def taken(patches_TPF: np.ndarray, index_I: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The patches of places of the index."""
    return patches_TPF[index_I[places]]


def milliseconds(
    reranker: Reranker, queries_BD: np.ndarray, patches_BPF: np.ndarray | None
) -> float:
    """CPU time of a query, the median, with patches at hand."""
    seconds = []
    for place, query_D in enumerate(queries_BD):
        patches_1PF = None if patches_BPF is None else patches_BPF[[place]]
        began = time.process_time()
        reranker.search(query_D[None], 10, np.array([-1]), patches_1PF)
        seconds.append(time.process_time() - began)
    return 1e3 * float(np.median(seconds))


if __name__ == "__main__":
    main()
