"""What a search costs beside bare faiss, in one run: queries, recall, regions, the first answer, shards,
indexing.

python tests/bench/searching.py                                  # 10^4, 10^5 and 10^6 vectors of 64 numbers
python tests/bench/searching.py --vectors 100000 --model runs/demo --manifest input/mix_demo.csv

Vectors are drawn in clusters, of unit length; queries lie near some of them. The ways take turns, and told
is the median of their turns. An approximation's peer is faiss' own refinement of as many candidates
(IndexRefineFlat), and what faiss finds without any stands last. With a model and a manifest: images a second
of `search.py index` and of `embed.py`, each by itself from nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from common import arguments, in_turn, peak_gb, show

import embed
import search
from guie.search import open_index
from guie.search.building import finish, merge
from guie.search.engines import CANDIDATES, FEWEST, Approximate, Flat, filled
from guie.search.index import (
    FAISS,
    FLAT,
    Facts,
    next_generation,
    publish,
    write_files,
    write_vectors,
)
from guie.search.regions import GRIDS, BestRegion

DIM, K, PROBES, TURNS = 64, 10, 32, 21
KINDS = ("SQ8", "PQ16")
Ask = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def main() -> None:
    args = arguments(
        __doc__, vectors=[10_000, 100_000, 1_000_000], model=str | None, manifest=str | None
    )
    heads = [
        "vectors",
        "kind",
        "asked",
        "ms",
        "faiss",
        "ratio",
        "recall at 10",
        "faiss",
        "unrefined",
    ]
    drawings = {count: drawn(count) for count in args.vectors}
    show(heads, ((n, *row) for n, vectors in drawings.items() for row in queried(*vectors)))
    pictures = args.vectors[0]
    show(["regions", "ms a query", "bytes a picture"], regional(pictures), f"{pictures:,} pictures")
    vectors_ND, _ = drawings[args.vectors[-1]]
    with tempfile.TemporaryDirectory() as folder:
        print(opened(vectors_ND, Path(folder)))
        print(sharded(vectors_ND, Path(folder)))
    if args.model and args.manifest:
        print(indexed(args.model, args.manifest))


def drawn(count: int, queries: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in clusters of ten, and queries near some of them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, count // 10), DIM), np.float32)
    vectors_ND = centres[rng.integers(len(centres), size=count)]
    vectors_ND += 0.5 * rng.standard_normal((count, DIM), np.float32)
    queries_BD = vectors_ND[rng.integers(count, size=queries)]
    queries_BD = queries_BD + 0.3 * rng.standard_normal((queries, DIM), np.float32)
    for one in (vectors_ND, queries_BD):
        one /= np.linalg.norm(one, axis=1, keepdims=True)
    return vectors_ND, queries_BD


def queried(vectors_ND: np.ndarray, queries_BD: np.ndarray) -> Iterator[tuple]:
    """Two rows for each kind of index, one query at a time and all at once."""
    bare = faiss.IndexFlatIP(DIM)
    bare.add(vectors_ND)
    exact_BK = bare.search(queries_BD, K)[1]
    for row in compared(partial(Flat(vectors_ND).search, k=K), bare, queries_BD, exact_BK):
        yield "flat", *row, ""
    lists = int(4 * len(vectors_ND) ** 0.5)
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            made = filled(f"IVF{lists},{kind}", vectors_ND, Path(folder))
        near = Approximate(made, vectors_ND, PROBES)
        peer = faiss.IndexRefineFlat(made, faiss.swig_ptr(vectors_ND))
        peer.k_factor = max(CANDIDATES * K, FEWEST) / K
        plain = recall(made.search(queries_BD, K)[1], exact_BK)
        for row in compared(partial(near.search, k=K), peer, queries_BD, exact_BK):
            yield f"IVF{lists},{kind}, {PROBES} probes", *row, plain


def regional(pictures: int) -> Iterator[tuple]:
    """Milliseconds of a query and bytes of an index, by the number of regions of a picture."""
    finders, queries_BD = {}, drawn(pictures)[1]
    for count in GRIDS:
        vectors_ND, _ = drawn(pictures * count)
        find = Flat(vectors_ND).search
        finders[count] = find if count == 1 else BestRegion(find, count).search
    ways = {
        count: partial(lambda find, parts: find(next(parts), K), find, cycle(queries_BD[:, None]))
        for count, find in finders.items()
    }
    for count, seconds in in_turn(ways, TURNS).items():
        yield count, 1000 * np.median(seconds), 4 * DIM * count


def compared(
    ours: Ask, bare: faiss.Index, queries_BD: np.ndarray, exact_BK: np.ndarray
) -> Iterator[tuple]:
    """Milliseconds of both, their ratio, and what each finds of the exact neighbours."""
    ways: dict[str, Ask] = {"ours": ours, "bare": lambda q: bare.search(q, K)[::-1]}
    recalls = [recall(ask(queries_BD)[0], exact_BK) for ask in ways.values()]
    for asked, parts in (
        ("one", [queries_BD[n : n + 1] for n in range(TURNS)]),
        (f"{len(queries_BD)} at once", [queries_BD] * 5),
    ):
        # each call asks for the next part
        turns = {name: map(ask, parts).__next__ for name, ask in ways.items()}
        taken = in_turn(turns, len(parts), warm_up=False)
        medians = [1000 * np.median(seconds) for seconds in taken.values()]
        yield asked, *medians, medians[0] / medians[1], *recalls


def recall(found_BK: np.ndarray, exact_BK: np.ndarray) -> float:
    pairs = zip(found_BK, exact_BK, strict=True)
    return float(np.mean([len({*a} & {*b}) / K for a, b in pairs]))


def opened(vectors_ND: np.ndarray, folder: Path) -> str:
    """Seconds from nothing to the first answer, of a flat index and of an approximate one."""
    times = []
    for name, factory in (("flat", None), ("near", f"IVF{int(4 * len(vectors_ND) ** 0.5)},SQ8")):
        (folder / name).mkdir()
        finish(folder / name, facts(factory), files(len(vectors_ND)), [vectors_ND])
        began = time.perf_counter()
        open_index(folder / name).near(vectors_ND[0], K)
        times.append(time.perf_counter() - began)
    return (
        f"\n{len(vectors_ND):,} vectors, from open_index to the first answer: flat {times[0]:.2f} s,"
        f" approximate {times[1]:.2f} s; peak memory of this whole process {peak_gb():.1f} GB"
    )


def sharded(vectors_ND: np.ndarray, folder: Path) -> str:
    """Four shards merged against one index of all: seconds, bytes a vector, the same answers."""
    count = len(vectors_ND)
    factory, parts = f"IVF{int(4 * count**0.5)},SQ8", []
    for number in range(4):
        rows = np.arange(number, count, 4)
        part = folder / f"part_{number}"
        part.mkdir()
        data = next_generation(part)
        write_vectors(data, [vectors_ND[rows]], len(rows), DIM)
        write_files(data, files(count).iloc[rows])
        publish(data, facts(None, len(rows)))
        parts.append(part)
    began = time.perf_counter()
    merged = merge(parts, folder / "merged", factory, PROBES)
    seconds = time.perf_counter() - began
    whole, joined = open_index(folder / "near"), open_index(merged.folder)
    same = [
        [hit.image_path for hit in one.near(vectors_ND[row], K)][:3]
        for one in (whole, joined)
        for row in range(20)
    ]
    alike = np.mean([a == b for a, b in zip(same[:20], same[20:], strict=True)])
    sizes = {p.name: p.stat().st_size for p in merged.data.iterdir()}
    flat, rest = sizes[FLAT] / count, (sum(sizes.values()) - sizes[FLAT]) / count
    hundred = 100e6 / count
    return (
        f"four shards merged by {factory} in {seconds:.0f} s, {seconds / count * 1e6:.0f} s a million;"
        f" {flat:.0f} bytes a vector flat, {rest:.0f} for lists and rows ({FAISS}:"
        f" {sizes[FAISS] / 1e6:.0f} MB); first three neighbours as of one index: {alike:.0%};"
        f" recall at 10 {merged.facts.recall['recall_at_10']:.3f}\n"
        f"100 million by that: {flat * 0.1:.0f} GB flat, {rest * 0.1:.0f} GB for the rest,"
        f" {seconds * hundred / 3600:.1f} h to merge"
    )


def facts(factory: str | None, pictures: int = 0) -> Facts:
    return Facts("none", "none", DIM, pictures, "none", "none", factory=factory, probes=PROBES)


def files(count: int) -> pd.DataFrame:
    names = [f"{number // 1000}/{number}.jpg" for number in range(count)]
    empty = dict.fromkeys(("domain", "label"), "")
    return pd.DataFrame({"image_path": names, **empty, "size_bytes": 1, "mtime_ns": 1})


def indexed(model: str, manifest: str) -> str:
    """Images a second of both commands, loading of the model and looking at the files included."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        words = ["--model", model, "--manifest", manifest]
        began = time.perf_counter()
        search.main(["index", "--model", model, "--images", manifest, "--out", str(out / "index")])
        between = time.perf_counter()
        embed.main([*words, "--out", str(out / "E.npz")])
        seconds = between - began, time.perf_counter() - between
        count = open_index(out / "index").index.facts.pictures
    rates = [count / s for s in seconds]
    return (
        f"{count:,} images of {manifest}: search.py index {rates[0]:.0f} a second, embed.py"
        f" {rates[1]:.0f} ({rates[0] / rates[1]:.2f})"
    )


if __name__ == "__main__":
    main()
