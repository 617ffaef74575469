"""Build or update an index, or merge its shards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pandas as pd
from accelerate import Accelerator
from faiss.contrib.exhaustive_search import knn_ground_truth
from faiss.contrib.ondisk import merge_ondisk
from tqdm import tqdm

from guie.base.arguments import CHECK_CONTENT
from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import held, refuse_foreign_list, replacing, shown
from guie.base.processes import loader_count
from guie.data.images import DECODERS
from guie.evaluation.knn import search_threads, unit_vectors
from guie.evaluation.opened import EmbeddingModel
from guie.rows.embedding import Check, FileEmbeddings, raise_fault
from guie.rows.readable import find_unreadable
from guie.rows.states import states
from guie.rows.store import Rows, Store
from guie.search.engines import (
    ADDED,
    Approximate,
    Engine,
    Flat,
    MakeFaiss,
    filled,
    measure_confidence,
    of_images,
    trained,
)
from guie.search.index import (
    FACTS,
    FAISS,
    LISTS,
    Facts,
    Index,
    Pictures,
    next_generation,
    publish,
    read_facts,
    read_index,
    recipe_hash,
    write_files,
    write_vectors,
)
from guie.search.regions import regions_of, vector_rows

PARTS, DROPPED = "parts", "dropped.csv"
LOCK = ".index.lock"  # not `.lock`, which a run folder has
LISTED = ["image_path", "reason"]  # columns of DROPPED
SAME = ["image_path", "size_bytes", "mtime_ns"]
RECALLED = 200  # images for measuring the recall of an approximation
RANKS = (1, 10)
NAMED = 5  # unreadable files that `describe` lists; the rest are counted
LEFT = 0.5  # of the images: if fewer remain, a disk may be missing


@dataclass(frozen=True)
class Changes:
    """Result of an update: counts of images, and the unreadable ones."""

    new: int
    changed: int
    removed: int
    kept: int
    unreadable: pd.DataFrame

    @property
    def description(self) -> str:
        parts = [
            f"{n:,} {word}" for word in ("new", "changed", "removed") if (n := getattr(self, word))
        ]
        return ", ".join([*parts, f"{self.kept:,} unchanged"])


def describe(made: Index, changes: Changes) -> str:
    """Describe an index, its changes and its unreadable files."""
    lines = [made.description + f": {changes.description}"]
    bad = changes.unreadable
    lines += [
        f"left out: {shown(row.image_path)}: {row.reason}" for row in bad.head(NAMED).itertuples()
    ]
    if len(bad) > NAMED:
        lines.append(f"and {len(bad) - NAMED:,} more in {made.folder / DROPPED}")
    return "\n".join(lines)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock the folder of an index while it is written; only the main process calls it.

    The folder must be new, empty, or written by this code: it has an index or a lock. The lock is released
    when the process ends, even if it is killed.

    Raises UserError if the folder has other files, or another process writes there.
    """
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if FACTS in found:
        read_facts(folder)
    elif found and LOCK not in found:
        shown = ", ".join(sorted(found)[:3])
        raise UserError(
            f"{folder}: not an index, but has {len(found):,} other files or folders ({shown}); give a new"
            " or empty folder with --out"
        )
    if (folder / PARTS).is_symlink():
        raise UserError(f"{folder / PARTS}: is a symbolic link, which is not followed; remove it")
    refuse_foreign_list(folder / DROPPED, LISTED)
    said, remedy = f"{folder}: another process writes this index", "wait, or choose another --out"
    with held(folder / LOCK, said, remedy):
        yield


def build(
    out: Path,
    opened: EmbeddingModel,
    facts: Facts,
    pictures: Pictures,
    accelerator: Accelerator,
    *,
    workers: int | None = None,
    fewer: bool = False,
    check: Check = raise_fault,
) -> tuple[Index, Changes] | None:
    """Index the images; every process must call it, but only the main process gets a result.

    The main process must hold the lock of the folder (`claimed`).

    Args:
        facts: the requested settings; counts, recipe and measurements are filled in.
        fewer: allow that most of the indexed images are gone.

    Raises UserError if the folder has an index of another model, no image is readable, or most of the
    indexed images are gone without `fewer`.
    """
    recipe, dimension = recipe_hash(opened.recipe), opened.embedder.dim
    facts = replace(facts, recipe=recipe, dimension=dimension, decode=pictures.decode)
    old = from_main(accelerator, lambda: _known(out, facts, pictures, fewer))
    look = partial(_readable, out, pictures, loader_count(workers))
    files, unreadable = from_main(accelerator, look)
    files, row_N = from_main(accelerator, lambda: _rows_of(files, old, pictures.root))
    regions = regions_of(facts.regions)
    missing = files[row_N < 0].reset_index(drop=True)
    paths = np.repeat(missing["image_path"].to_numpy(object), len(regions)).tolist()
    store = Store(out / PARTS, opened.recipe, np.float32)
    embeddings = FileEmbeddings(
        store,
        accelerator,
        opened.embedder,
        opened.preprocess,
        pictures.root,
        paths,
        [None, *regions[1:]] * len(missing),
        open_image=DECODERS[pictures.decode],
        batch_size=opened.batch_size,
        workers=workers,
        check=check,
    )
    embeddings.fill()
    if not accelerator.is_main_process:
        return None
    index = finish(
        out,
        facts,
        files,
        _blocks(files, row_N, old, embeddings.rows(), len(regions)),
    )
    store.remove()
    return index, _changes(files, old, row_N, unreadable)


def finish(
    out: Path,
    facts: Facts,
    files: pd.DataFrame,
    blocks: Iterable[np.ndarray],
    make: MakeFaiss = filled,
) -> Index:
    """Write the index: vectors, faiss' file if requested, confidence and recall.

    Args:
        blocks: (B, D), unit vectors in the order of the files, those of an image's regions together.
        make: takes a factory string, all vectors (memory-mapped) and the folder, and writes FAISS there.
    """
    data = next_generation(out)
    vectors_ND = write_vectors(data, blocks, len(files) * facts.regions, facts.dimension)
    write_files(data, files)
    engine: Engine = Flat(vectors_ND)
    if facts.factory:
        engine = Approximate(make(facts.factory, vectors_ND, data), vectors_ND, facts.probes)
        facts = replace(facts, recall=recall(engine, vectors_ND))
    whole_ND = vectors_ND[:: facts.regions]
    sureness = measure_confidence(files, whole_ND, of_images(engine, facts.regions))
    return publish(data, replace(facts, pictures=len(files), sureness=sureness))


def recall(engine: Engine, vectors_ND: np.ndarray) -> dict[str, float]:
    """Return `recall_at_1` and `recall_at_10`, the share of exact neighbours that the engine finds.

    Exact neighbours are searched block by block, as the vectors may not fit in memory.
    """
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(vectors_ND))[:RECALLED])
    queries_BD = np.ascontiguousarray(vectors_ND[rows])
    found_BK, _ = engine.search(queries_BD, max(RANKS), rows)
    blocks = (vectors_ND[at : at + ADDED] for at in range(0, len(vectors_ND), ADDED))
    more = min(max(RANKS) + 1, len(vectors_ND))  # an image finds itself
    with search_threads():
        _, exact_BK = knn_ground_truth(queries_BD, blocks, more, faiss.METRIC_INNER_PRODUCT)
    others = [own[own != row] for row, own in zip(rows, exact_BK, strict=True)]
    return {f"recall_at_{k}": _shared(found_BK, others, k) for k in RANKS}


def _shared(found_BK: np.ndarray, exact: Sequence[np.ndarray], k: int) -> float:
    """Return the share of the first K exact neighbours among the first K found."""
    pairs = zip(found_BK[:, :k], exact, strict=True)
    return float(np.mean([np.isin(right[:k], found).mean() for found, right in pairs]))


def _blocks(
    files: pd.DataFrame, row_N: np.ndarray, old: Index | None, fresh: Rows, regions: int
) -> Iterator[np.ndarray]:
    """Yield vectors in the order of the files, from the old index if it has them, else new ones."""
    new_N, path_N = np.cumsum(row_N < 0) - 1, files["image_path"].to_numpy()
    images = max(1, ADDED // regions)
    for at in range(0, len(row_N), images):
        here = slice(at, at + images)
        is_new_B = np.repeat(row_N[here] < 0, regions)
        row_B, new_B = (vector_rows(each_N[here], regions) for each_N in (row_N, new_N))
        block_BD = np.empty((len(row_B), fresh.shape[1]), np.float32)
        paths = np.repeat(path_N[here], regions)[is_new_B]
        block_BD[is_new_B] = unit_vectors(fresh[new_B[is_new_B]], paths)
        if old is not None:
            block_BD[~is_new_B] = old.vectors_ND[row_B[~is_new_B]]
        yield block_BD


def _known(out: Path, facts: Facts, pictures: Pictures, fewer: bool) -> Index | None:
    """Return the existing index, if any. Raises UserError for another model, root or far more images."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / FACTS).exists():
        return None
    old = read_index(out, every_byte=True)  # all of it is read anyway
    if old.facts.precision != facts.precision:
        raise UserError(
            f"{out}: made with --precision {old.facts.precision}, not {facts.precision}; leave --precision"
            " out, or choose another --out"
        )
    if old.facts.recipe != facts.recipe:
        raise UserError(
            f"{out}: made with the model {old.facts.model}, or with other weights of it; vectors of"
            " two models cannot be compared; choose another --out, or delete the folder"
        )
    if old.facts.regions != facts.regions:
        raise UserError(
            f"{out}: made with --regions {old.facts.regions}, not {facts.regions}; leave --regions out, or"
            " choose another --out"
        )
    if old.facts.decode != facts.decode:
        raise UserError(
            f"{out}: made with decode: {old.facts.decode} of a manifest's sidecar, not {facts.decode};"
            " choose another --out"
        )
    if old.facts.root != str(pictures.root):
        raise UserError(
            f"{out}: indexes {old.facts.root}, not {pictures.root}; choose another --out"
        )
    left = old.files["image_path"].isin(pictures.files["image_path"]).sum()
    if left < LEFT * len(old.files) and not fewer:
        other = " or in another --shard" if facts.shard else ""
        raise UserError(
            f"{pictures.root}: {len(old.files) - left:,} of the {len(old.files):,} images in {out} are"
            f" gone{other}; check that the folder is complete, and pass --fewer if it is"
        )
    return old


def _readable(out: Path, pictures: Pictures, workers: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows with a readable image, and the others with the reason, also written to DROPPED."""
    files = pictures.files
    table = files[["image_path"]].assign(split="train")
    bad = find_unreadable(table, pictures.root, max(1, workers), DECODERS[pictures.decode])
    left = files.drop(bad.index).reset_index(drop=True)
    if left.empty:
        raise UserError(f"{pictures.root}: none of {len(files):,} images can be decoded")
    bad = bad[LISTED].reset_index(drop=True)
    (out / DROPPED).unlink(missing_ok=True)
    if len(bad):
        with replacing(out / DROPPED) as temporary:
            bad.to_csv(temporary, index=False)
    return left, bad


def _rows_of(files: pd.DataFrame, old: Index | None, root: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the files with their `content`, and (N,) rows of the unchanged ones in the old index.

    The row is -1 for a new or changed image. The content of images that keep size and time is the old
    one, and with `--check-content` that of the file.
    """
    row_N, content_N = np.full((2, len(files)), -1)
    if old is not None:
        rows = old.files[SAME].assign(row=np.arange(len(old.files)))
        row_N = (
            files[SAME].merge(rows, "left", on=SAME)["row"].fillna(-1).to_numpy(np.int64, copy=True)
        )
        content_N = np.where(row_N < 0, -1, old.files["content"].to_numpy()[row_N])
    read_N = (row_N < 0) | bool(os.environ.get(CHECK_CONTENT))
    now = states(root, files.loc[read_N, "image_path"], by_content=True).time_N
    row_N[read_N] = np.where(content_N[read_N] == now, row_N[read_N], -1)
    content_N[read_N] = now
    return files.assign(content=content_N), row_N


def _changes(
    files: pd.DataFrame, old: Index | None, row_N: np.ndarray, unreadable: pd.DataFrame
) -> Changes:
    before: Sequence[str] = old.files["image_path"].tolist() if old is not None else []
    known = set(before)
    fresh = files.loc[row_N < 0, "image_path"]
    changed = int(fresh.isin(known).sum())
    removed = len(known - set(files["image_path"]))
    return Changes(len(fresh) - changed, changed, removed, int((row_N >= 0).sum()), unreadable)


def merge(folders: Sequence[Path], out: Path, factory: str | None, probes: int | None) -> Index:
    """Merge shards into one index.

    Args:
        factory: faiss' string with an inverted file (`IVF`), trained on all shards; None: exact search.

    Raises UserError if the shards differ in model or source, or share an image; if the folder is a shard
    or has other files; or if another process writes there.
    """
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise UserError(f"--out {out}: is one of the shards; choose another folder")
    shards = [read_index(folder, every_byte=True) for folder in folders]
    facts = _common(shards)
    files = pd.concat([shard.files for shard in shards], ignore_index=True)
    twice = files["image_path"][files["image_path"].duplicated()]
    if len(twice):
        raise UserError(f"{twice.iloc[0]}: in two of the shards; remove it from one")
    facts = replace(facts, factory=factory, probes=probes, shard=None, recall={})
    with claimed(out):
        if (out / FACTS).exists():  # an earlier merge, which is replaced
            _common([read_index(out), *shards])
        bar = tqdm(shards, desc="vectors", unit="shard")
        blocks = (block for shard in bar for block in _shard_blocks(shard))
        return finish(out, facts, files, blocks, partial(_merged, shards))


def _shard_blocks(shard: Index) -> Iterator[np.ndarray]:
    vectors_ND = shard.vectors_ND
    for at in range(0, len(vectors_ND), ADDED):
        yield np.ascontiguousarray(vectors_ND[at : at + ADDED])


def _common(shards: Sequence[Index]) -> Facts:
    first = shards[0]
    for shard in shards[1:]:
        for key, what in (
            ("recipe", "another model"),
            ("root", "another image folder"),
            ("regions", "other --regions"),
            ("decode", "another decode in the manifest's sidecar"),
        ):
            if getattr(shard.facts, key) != getattr(first.facts, key):
                raise UserError(f"{shard.folder}: made from {what} than {first.folder}")
    return first.facts


def _merged(
    shards: Sequence[Index], factory: str, vectors_ND: np.ndarray, data: Path
) -> faiss.Index:
    """Write the inverted lists of each shard to its own file, then merge the files."""
    empty = trained(factory, vectors_ND)
    if not isinstance(faiss.downcast_index(empty), faiss.IndexIVF):
        raise UserError(
            f"--factory {factory}: has no inverted lists to merge; use an IVF factory, such as IVF4096,SQ8"
        )
    names, start = [], 0
    for number, shard in enumerate(tqdm(shards, desc="lists", unit="shard")):
        own = faiss.clone_index(empty)
        for block_BD in _shard_blocks(shard):
            with search_threads():
                own.add_with_ids(block_BD, np.arange(start, start + len(block_BD)))
            start += len(block_BD)
        names.append(str(data / f"vectors.{number}.faiss"))
        faiss.write_index(own, names[-1])
    merge_ondisk(empty, names, str(data / LISTS))
    with replacing(data / FAISS) as temporary:
        faiss.write_index(empty, str(temporary))
    for name in names:
        Path(name).unlink()
    return empty
