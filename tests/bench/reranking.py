"""What re-ranking gains and costs: R@1, mMP@5, mAP@100 of the merged index, CPU time of a query.

python tests/bench/reranking.py --embeddings E.npz --manifest M [--domains emoji leaves] [--model RUN]
                                [--out FILE.json]

The mean is over domains, or over those named: the ones that the model did not train on. The gain in R@1
has its 95 % interval over classes. Queries are timed one at a time, as in search.py, first and again: the
neighbours of an image are searched once. With a model also `local`, whose time is without computing patches.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from common import arguments, show

from guie.base.files import write_text
from guie.data.manifest import load_manifest
from guie.evaluation.bootstrap import paired
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import ExactIndex, unit_vectors
from guie.evaluation.opened import embed_patches
from guie.evaluation.rerank import Rerank, Reranker
from guie.evaluation.search import Images, Search, rankings, score_queries, searches

WAYS = ("", "expand", "augment", "csls", "softmax", "expand csls", "expand augment")
WAYS += ("expand augment csls",)
WITH_PATCHES = ("local", "csls local", "expand csls local")
KEYS = ("r_at_1", "mmp_at_5", "map_at_100")
TIMED = 200  # queries


def main() -> None:
    some = {"domains": [""], "model": str | None, "out": str | None}
    args = arguments(__doc__, embeddings=str, manifest=str, **some)
    manifest = load_manifest(args.manifest)
    table = manifest.split("test").reset_index(drop=True)
    unit_TD = unit_vectors(load_embeddings(args.embeddings, table), table["image_path"].to_numpy())
    patches_TPF = embed_patches(args.model, manifest, table) if args.model else None
    images = queries_of(table, args.domains)
    (search,) = searches("merged", images, table["domain"].to_numpy())
    index_I = search.index_I
    timed_Q = np.random.default_rng(0).choice(search.query_Q, TIMED)
    ways, times = {}, []
    for name in (*WAYS, *(WITH_PATCHES if args.model else ())):
        methods = tuple(name.split())
        rerank = Rerank(methods, patches_TPF)
        found = score_queries(rankings(images, unit_TD, search, rerank), search, KEYS)
        ways[name or "none"] = found
        find = ExactIndex(unit_TD[index_I]).search
        patches_of = None if patches_TPF is None else lambda places: patches_TPF[index_I[places]]
        reranker = Reranker(unit_TD[index_I], find, methods, patches_of=patches_of)
        queries = unit_TD[timed_Q], None if patches_TPF is None else patches_TPF[timed_Q]
        times.append([milliseconds(reranker, *queries) for _ in range(2)])
    rows = [(*row, *ms) for row, ms in zip(compared(ways, search, table), times, strict=True)]
    heads = ["re-ranking", "R@1", "mMP@5", "mAP@100", "gain in R@1", "from", "to"]
    heads += ["ms, first", "ms, again"]
    title = f"{args.embeddings}, {len(index_I):,} x {unit_TD.shape[1]}"
    show_and_save(heads, rows, title, args.out)


def queries_of(table: pd.DataFrame, domains: Sequence[str]) -> Images:
    """The images of a split, with queries in these domains only, if any is named."""
    images = Images.of(table)
    if not any(domains):
        return images
    asked_T = images.is_query_T & table["domain"].isin(domains).to_numpy()
    return replace(images, is_query_T=asked_T)


def compared(ways: dict[Any, pd.DataFrame], search: Search, table: pd.DataFrame) -> Iterator[tuple]:
    """Rows of each way's metrics, and its gain in R@1 over the first with an interval."""
    domain_Q, label_Q = (table[key].to_numpy()[search.query_Q] for key in ("domain", "label"))
    plain, *_ = ways.values()
    for name, found in ways.items():
        both = (each["r_at_1"].to_numpy() for each in (plain, found))
        gain = paired(*both, label_Q, domain_Q)
        means = found.groupby(domain_Q).mean().mean()
        yield name, *means, gain.difference, gain.low, gain.high


def show_and_save(heads: Sequence[str], rows: Sequence[Sequence], title: str, out: str | None):
    """Print the table, and write it as JSON, rounded to four digits."""
    show(heads, rows, title)
    if out:
        table = pd.DataFrame(rows, columns=heads).round(4).to_dict("records")
        write_text(out, json.dumps(table, indent=1) + "\n")


def milliseconds(
    reranker: Reranker, queries_BD: np.ndarray, patches_BPF: np.ndarray | None
) -> float:
    """CPU time of a query, the median."""
    seconds = []
    for place, query_D in enumerate(queries_BD):
        patches_1PF = None if patches_BPF is None else patches_BPF[[place]]
        began = time.process_time()
        reranker.search(query_D[None], 10, np.array([-1]), patches_1PF)
        seconds.append(time.process_time() - began)
    return 1e3 * float(np.median(seconds))


if __name__ == "__main__":
    main()
