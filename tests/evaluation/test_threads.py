"""faiss' threads under a launcher, which leaves it one."""

from __future__ import annotations

import faiss
import pytest

from guie.evaluation import knn
from guie.evaluation.knn import search_threads
from guie.evaluation.long_search import search_together
from guie.evaluation.search import ScoreStore


@pytest.fixture(params=["ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID"])
def launched(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(request.param, "no")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(knn, "usable_cores", lambda: 6)


@pytest.fixture
def set_to(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What faiss' threads are set to; no pool of threads begins here, see conftest.py."""
    numbers: list[int] = []
    monkeypatch.setattr(faiss, "omp_set_num_threads", numbers.append)
    return numbers


def test_a_launchers_one_thread_becomes_all_cores_and_is_restored(launched, set_to) -> None:
    with search_threads():
        assert set_to == [6]
        with search_threads(), search_threads(3):
            assert set_to == [6], "the outermost decides"
    assert set_to == [6, 1]
    with pytest.raises(KeyError), search_threads(4):
        raise KeyError
    assert set_to == [6, 1, 1, 1]


@pytest.mark.parametrize(
    "environment",
    [{}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "3", "TORCHELASTIC_RUN_ID": "x"}],
)
def test_a_users_number_of_threads_stays(environment, monkeypatch, set_to) -> None:
    for name in ("OMP_NUM_THREADS", *knn.LAUNCHED):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with search_threads():
        assert not set_to


def test_processes_that_search_together_share_the_cores(
    launched, set_to, monkeypatch, tmp_path
) -> None:
    """Then one of them scores, and the others wait."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    class Alone:
        is_main_process, process_index = True, 0
        wait_for_everyone = end_training = lambda self: None

    monkeypatch.setattr("guie.base.devices.make_accelerator", Alone)
    monkeypatch.setattr("guie.base.devices.from_main", lambda _, make: make())

    def search(store: ScoreStore | None) -> None:
        with search_threads():
            pass

    search_together(search, search, tmp_path / "parts", "key", pairs=1)
    assert set_to == [3, 1, 6, 1]
