"""Bring a table of PostgreSQL (pgvector) or a collection of Qdrant up to date with an index.

A table or collection belongs to one model, whose hash its name ends with. A view, or an alias, has the plain
name, and is switched when the rows are complete. Only rows that differ are sent.
"""

import os
import re
import uuid
from typing import Any

import numpy as np
import xxhash

from guie.base.errors import UserError, optional_module
from guie.search.table import ABOUT, VECTOR, Index, vectors_of

BATCH = 1000  # rows
COLUMNS = ("digest", "image_path", "region", "domain", "label")
# id, digest of all else, path, region, domain, label and vector
Row = tuple[uuid.UUID, int, str, int, str, str, np.ndarray]


def push(index: Index, url: str, name: str) -> str:
    """Send what has changed; return the counts in words.

    Args:
        url: `postgresql://...`, or `http://...` of Qdrant.
        name: of the view or alias.

    Raises UserError if the server does not answer or refuses; PostgreSQL then stays as it was, and Qdrant is
    completed by the same command.
    """
    if not re.fullmatch("[a-z_][a-z0-9_]{0,40}", name):
        raise UserError(f"--name {name[:50]}: must be of lower letters, digits and _")
    if url.startswith(("postgresql://", "postgres://")):
        send = _to_postgres
    elif url.startswith(("http://", "https://")):
        send = _to_qdrant
    else:
        raise UserError(f"{url}: must begin with postgresql://, http:// or https://")
    place = re.sub("//.*@", "//", url)  # without a password
    try:
        found = send(url, f"{name}_{index.facts.recipe}", name, index)
    except UserError:
        raise
    except Exception as error:  # of drivers that have no common class
        words = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        raise UserError(f"{place}: {words}; nothing was lost: push again") from error
    counts = (
        f"{len(found.changed):,} rows sent, {len(found.gone):,} deleted, {found.count:,} in all"
    )
    return f"{place}: {name}: {counts}"


class Difference:
    """The rows of an index that a server lacks, and those that it has too much.

    Args:
        there: digests by id.
    """

    def __init__(self, index: Index, there: dict[uuid.UUID, int]):
        rows = index.read([*ABOUT, VECTOR])
        self.columns = [rows[name] for name in ("image_path", "region", "domain", "label")]
        self.vectors_ND = vectors_of(rows)
        self.changed: list[int] = []
        self.count, self.gone = len(rows), set(there)
        for number in range(len(rows)):
            own, digest, *_ = self.row(number)
            self.gone.discard(own)
            if there.get(own) != digest:
                self.changed.append(number)

    def row(self, number: int) -> Row:
        """Return a row as a server gets it."""
        path, region, domain, label = (column[number].as_py() for column in self.columns)
        own = uuid.uuid5(uuid.NAMESPACE_URL, f"{path}#{region}" if region else path)
        content = f"{domain}\0{label}\0".encode() + self.vectors_ND[number].tobytes()
        digest = xxhash.xxh3_64_intdigest(content) >> 1
        return own, digest, path, region, domain, label, self.vectors_ND[number]


def _to_postgres(url: str, table: str, name: str, index: Index) -> Difference:
    """Update a database with the extension pgvector; one transaction has all changes."""
    psycopg = optional_module("psycopg", "search.py push", "postgres")
    with psycopg.connect(url) as database, database.cursor() as run:
        run.execute("CREATE EXTENSION IF NOT EXISTS vector")
        run.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id uuid PRIMARY KEY, digest bigint, image_path text,"
            f" region smallint, domain text, label text, embedding halfvec({index.facts.dimension}))"
        )
        there = dict(run.execute(f"SELECT id, digest FROM {table}").fetchall())
        found = Difference(index, there)
        run.execute(f"CREATE TEMP TABLE sent (LIKE {table}) ON COMMIT DROP")
        with run.copy("COPY sent FROM STDIN") as copy:
            for *about, vector_D in map(found.row, found.changed):
                copy.write_row([*about, str(vector_D.astype(np.float16).tolist())])
        change = ", ".join(f"{column} = excluded.{column}" for column in (*COLUMNS, "embedding"))
        run.execute(
            f"INSERT INTO {table} SELECT * FROM sent ON CONFLICT (id) DO UPDATE SET {change}"
        )
        run.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", [[*found.gone]])
        for kind in ("hnsw (embedding halfvec_ip_ops)", "btree (domain)"):
            own = f"{table}_{kind.partition(' ')[0]}"
            run.execute(f"CREATE INDEX IF NOT EXISTS {own} ON {table} USING {kind}")
        run.execute(f"DROP VIEW IF EXISTS {name}")
        run.execute(f"CREATE VIEW {name} AS SELECT * FROM {table}")
    return found


def _to_qdrant(url: str, table: str, name: str, index: Index) -> Difference:
    """Update a server of Qdrant, whose key is in QDRANT_API_KEY."""
    qdrant = optional_module("qdrant_client", "search.py push", "qdrant")
    models = qdrant.models
    client = qdrant.QdrantClient(url, api_key=os.environ.get("QDRANT_API_KEY"))
    if not client.collection_exists(table):
        space = models.VectorParams(size=index.facts.dimension, distance=models.Distance.DOT)
        client.create_collection(table, vectors_config=space)
        client.create_payload_index(table, "domain", models.PayloadSchemaType.KEYWORD)
    there: dict[uuid.UUID, int] = {}
    after = None
    while True:
        points, after = client.scroll(
            table, limit=BATCH, offset=after, with_payload=["digest"], with_vectors=False
        )
        there |= {uuid.UUID(str(point.id)): point.payload["digest"] for point in points}
        if after is None:
            break
    found = Difference(index, there)
    changed = (
        models.PointStruct(
            id=str(own), vector=vector_D.tolist(), payload=dict(zip(COLUMNS, about, strict=True))
        )
        for own, *about, vector_D in map(found.row, found.changed)
    )
    client.upload_points(table, changed, batch_size=BATCH, wait=True)
    if found.gone:
        client.delete(table, models.PointIdsList(points=[*map(str, found.gone)]), wait=True)
    alias = models.CreateAlias(collection_name=table, alias_name=name)
    steps: list[Any] = [models.CreateAliasOperation(create_alias=alias)]
    if name in {one.alias_name for one in client.get_aliases().aliases}:
        old = models.DeleteAlias(alias_name=name)
        steps.insert(0, models.DeleteAliasOperation(delete_alias=old))
    client.update_collection_aliases(change_aliases_operations=steps)  # in one step
    return found
