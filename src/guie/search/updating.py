"""Create an index, or bring it up to date: only new and changed images are computed and written."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from accelerate import Accelerator
from lancedb.index import BTree, IvfFlat

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.processes import CHECK_CONTENT, loader_count
from guie.data.regions import regions_of
from guie.data.shards.storage import shown
from guie.evaluation.knn import unit_vectors
from guie.evaluation.opened import EmbeddingModel
from guie.rows.checks import find_unreadable
from guie.rows.embedding import FileEmbeddings
from guie.rows.pictures import Pictures
from guie.rows.states import states
from guie.rows.store import Rows, Store
from guie.search.engines import measured
from guie.search.table import (
    KEY,
    NAME,
    SCHEMA,
    VECTOR,
    VERSIONS,
    Facts,
    Index,
    connect,
    faults,
    names_in,
    quoted,
)

KEPT = timedelta(days=7)  # versions
MOST_VERSIONS = 50  # after which small files are joined
LEFT = 0.5  # of the images: if fewer remain, a disk may be missing
ROWS, GONE = 100_000, 10_000  # rows written, and images deleted, at once
AGAIN = 0.01  # of the images: if more have changed, the confidence is measured again


def update(
    out: Path,
    store: str | Path,
    opened: EmbeddingModel,
    facts: Facts,
    pictures: Pictures,
    accelerator: Accelerator,
    *,
    part: tuple[int, int] = (0, 1),
    workers: int | None = None,
    fewer: bool = False,
    **settings: Any,
) -> tuple[str, pd.DataFrame]:
    """Return what has changed, in words, and the unreadable images. Every process must call it.

    Args:
        store: folder of computed rows, from which vectors come; it computes those that it lacks.
        facts: the requested settings.
        part: n of m, to compute only a part of the rows and leave the index as it is.
        fewer: allow that most of the indexed images are gone.
        settings: of `FileEmbeddings`.

    Raises UserError if the index has other settings or another model, no image is readable, or most of the
    indexed images are gone without `fewer`.
    """
    facts = replace(
        facts,
        recipe=recipe_hash(opened.recipe),
        dimension=opened.embedder.dim,
        decode=pictures.decode,
        domains=tuple(sorted({*pictures.files["domain"]} - {""})),
    )
    plan = partial(_plan, out, facts, pictures, fewer, max(1, loader_count(workers)))
    files, gone, words, bad = from_main(accelerator, plan)
    regions = regions_of(facts.regions)
    embeddings = FileEmbeddings(
        Store(store, opened.recipe, np.float32),
        accelerator,
        opened.embedder,
        opened.preprocess,
        pictures.root,
        np.repeat(files["image_path"].to_numpy(object), len(regions)).tolist(),
        [None, *regions[1:]] * len(files),
        pictures.decode,
        batch_size=opened.batch_size,
        workers=workers,
        **settings,
    )
    embeddings.fill(part=part)
    if accelerator.is_main_process and part == (0, 1):
        with faults(shown(out), "cannot be written, and stays as it was"):
            _write(out, facts, files, embeddings.rows(), gone)
    return words, bad


def recipe_hash(recipe: dict[str, Any]) -> str:
    """Return the hash that identifies the model of an index."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def existing(out: Path) -> Index | None:
    """Return the index of a folder; None if it is new or empty. Raises UserError for other content."""
    if names_in(out / VERSIONS):
        return Index(out)
    # A killed process may leave a table without a version.
    found = {*names_in(out)} - {f"{NAME}.lance"}
    if found:
        some = f"not an index, but has {len(found):,} files or folders, such as {min(found)}"
        raise UserError(f"{shown(out)}: {some}; give a new or empty folder with --out")
    return None


def _plan(
    out: Path, facts: Facts, pictures: Pictures, fewer: bool, workers: int
) -> tuple[pd.DataFrame, list[str], str, pd.DataFrame]:
    """Return new and changed images, the paths that are gone, the counts in words, and unreadable images.

    An image is unchanged if it keeps size, time, domain and label; with `--check-content`, its content in
    place of the time.
    """
    check, root = bool(os.environ.get(CHECK_CONTENT)), pictures.root
    same = ["size_bytes", "content" if check else "mtime_ns", "domain", "label"]
    files, old = pictures.files, existing(out)
    if check:
        files = files.assign(content=states(root, files["image_path"], by_content=True).time_N)
    known = pa.schema(SCHEMA).empty_table()
    if old:
        _refuse_other(old, facts)
        whole = "region = 0" if facts.regions > 1 else None
        known = old.read(same, whole, ordered=False)
    found = pc.index_in(pa.array(files["image_path"], pa.string()), known["image_path"])
    row_N = found.fill_null(-1).to_numpy()
    kept_N = row_N >= 0
    for name in same:  # in Arrow, which compares a million texts ten times as fast as pandas
        there = known[name].take(found)
        equal = pc.equal(pa.array(files[name], there.type), there)
        kept_N &= equal.fill_null(False).to_numpy()
    lost_K = np.bincount(row_N[row_N >= 0], minlength=len(known)) == 0
    gone = known["image_path"].filter(pa.array(lost_K)).to_pylist()
    if len(gone) > (1 - LEFT) * len(known) and not fewer:
        lost = f"{len(gone):,} of the {len(known):,} images in {shown(out)} are gone"
        remedy = "check that the folder is complete, and pass --fewer if it is"
        raise UserError(f"{shown(root)}: {lost}; {remedy}")
    fresh = files[~kept_N]
    if not check:
        fresh = fresh.assign(content=states(root, fresh["image_path"], by_content=True).time_N)
    bad = find_unreadable(fresh.assign(split=""), root, workers, pictures.decode)
    if len(bad) == len(files):
        raise UserError(f"{shown(root)}: none of {len(files):,} images can be decoded")
    good = fresh.drop(bad.index)
    gone += bad["image_path"][row_N[bad.index] >= 0].tolist()
    changed = int((row_N[good.index] >= 0).sum())
    counts = {"new": len(good) - changed, "changed": changed, "removed": len(gone)}
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    words = ", ".join([*parts, f"{kept_N.sum():,} unchanged"])
    return good.sort_values("image_path", ignore_index=True), gone, words, bad


def _refuse_other(old: Index, facts: Facts) -> None:
    """Raise UserError if the vectors of an update would differ from those of the index."""
    for name, words in (
        ("precision", "with --precision {}, not {}; leave --precision out"),
        ("regions", "with --regions {}, not {}; leave --regions out"),
        ("decode", "with decode: {} in the manifest's sidecar, not {}; restore it"),
        ("recipe", "by another model than this, or by other weights; vectors cannot be compared"),
    ):
        before, now = getattr(old.facts, name), getattr(facts, name)
        if before != now:
            fault = f"made {words.format(before, now)}"
            raise UserError(f"{old.name}: {fault}, or choose another --out")


def _write(out: Path, facts: Facts, files: pd.DataFrame, rows: Rows, gone: list[str]) -> None:
    """Write new and changed rows in one version, then delete what is gone, and measure if it is due."""
    old, schema = existing(out), facts.schema
    reader = pa.RecordBatchReader.from_batches(schema, _batches(schema, facts.regions, files, rows))
    if old is None:
        connect(out).create_table(NAME, reader, schema=schema)
    elif len(files):
        merge = old.table.merge_insert(KEY).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(reader)
    index = old or Index(out)
    for at in range(0, len(gone), GONE):
        index.table.delete(f"image_path in {quoted(gone[at : at + GONE])}")
    if facts.ann and not index.table.list_indices():
        index.table.create_index(VECTOR, config=IvfFlat(distance_type="dot"))
        index.table.create_index("image_path", config=BTree())
    versions = index.table.list_versions()
    if len(versions) > MOST_VERSIONS or datetime.now() - versions[0]["timestamp"] > KEPT:
        index.table.optimize(cleanup_older_than=KEPT)  # joins small files too
    before = index.facts
    changed = before.changed + len(files) + len(gone)
    kept = {"confidence": before.confidence, "recall": before.recall, "changed": changed}
    index.set_facts(**asdict(facts) | kept)
    if changed > index.images * AGAIN or facts.ann > (before.recall is not None):
        index.set_facts(**measured(index))


def _batches(
    schema: pa.Schema, regions: int, files: pd.DataFrame, rows: Rows
) -> Iterator[pa.RecordBatch]:
    """Yield rows with unit vectors, those of an image's regions together."""
    images = max(1, ROWS // regions)
    for at in range(0, len(files), images):
        some = files[at : at + images]
        about = some.loc[some.index.repeat(regions)].assign(region=[*range(regions)] * len(some))
        own_BD = rows[at * regions : (at + len(some)) * regions]
        vectors_BD = unit_vectors(own_BD, about["image_path"].to_numpy(object))
        columns = [pa.array(about[name], schema.field(name).type) for name in schema.names[:-1]]
        flat = pa.array(vectors_BD.ravel())
        columns.append(pa.FixedSizeListArray.from_arrays(flat, vectors_BD.shape[1]))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
