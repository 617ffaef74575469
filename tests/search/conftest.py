"""A tiny run, pictures, and an index of them."""

import shutil
from pathlib import Path

import pytest

from guie.search import updating
from guie.search.searcher import Searcher, open_index
from some_pictures import folder_of, indexed
from tiny_runs import tiny_run

UPDATE = updating.update


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("search") / "run")


@pytest.fixture(scope="session")
def searcher(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Of 30 labelled pictures; no test changes it."""
    place = tmp_path_factory.mktemp("indexed")
    folder_of(place)
    indexed(run, place / "m.csv", place / "index")
    return open_index(place / "index")


@pytest.fixture(scope="session")
def four(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pictures/`, four of them, and their `index/`; `small_index` is a copy to change."""
    place = tmp_path_factory.mktemp("four")
    indexed(run, folder_of(place, classes=2, each=2), place / "index")
    return place


@pytest.fixture
def small_index(four: Path, tmp_path: Path) -> Path:
    return shutil.copytree(four / "index", tmp_path / "index")


@pytest.fixture(autouse=True)
def no_loaders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search.py loads pictures without processes, unless a test asks for `loaders`."""
    if "loaders" not in request.fixturenames:
        here = {"workers": 0}
        monkeypatch.setattr(
            updating, "update", lambda *given, **keys: UPDATE(*given, **keys | here)
        )


@pytest.fixture
def loaders() -> None:
    """Search.py loads pictures by processes, as ever."""
