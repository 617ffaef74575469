"""Fixtures shared by the tests: one thread a process, and small data sets drawn once."""

import os

# Before torch can see a GPU: a process that has looked at one cannot be forked, and these are tests of
# the CPU, whatever the machine. The processes that they start inherit it. `make gpu` runs tests/gpu alone.
if os.environ.get("GUIE_GPU_TESTS") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import gc
import multiprocessing
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import faiss
import pytest
import torch
from tqdm import tqdm

import toydomains
from guie.config import real_root

# What tests decode is not for the user's cache, nor his for them; processes inherit it.
CACHE = tempfile.TemporaryDirectory()
os.environ["GUIE_CACHE"] = CACHE.name
# A failed assertion of a helper module shows its values, too.
pytest.register_assert_rewrite(*(file.stem for file in Path(__file__).parent.glob("*.py")))
torch.set_num_threads(1)
# A pool of faiss' threads, begun here, would hang the first search of a process forked from this one.
faiss.omp_set_num_threads(1)
# Processes of tests are forks of a server that has imported this: in milliseconds, not seconds.
multiprocessing.get_context("forkserver").set_forkserver_preload(["train", "embed", "validate"])
# Nor do they share a bar's lock with this one: one that is killed while it holds it would never give it back.
tqdm.set_lock(threading.RLock())
tqdm.monitor_interval = 0  # its thread takes the lock too, and a fork would find it taken

# Autograd starts its threads at the first backward pass, one for each kind of device it sees then. On
# the CPU alone there are none; a first pass on tensors that pretend to be CUDA's would start some, and
# no fork of this process could train.
torch.zeros((), requires_grad=True).backward()


def pytest_collection_finish() -> None:
    """What is imported by now stays: each run of train.py ends with a collection, .3 s of looking at it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A launched run takes all cores; if that stayed, all later tests would wait for each other's threads."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def toy_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy benchmark of 200 images, all seven domains, splits train and test."""
    return toydomains.draw(tmp_path_factory.mktemp("toy"), images=200, seed=1, workers=1)


@pytest.fixture(scope="session")
def real_folder() -> Path:
    """The folder with real images and weights; skips where it is absent."""
    folder = real_root()
    if folder is None or not (folder / "weights").is_dir():
        pytest.skip("no real images and weights: set GUIE_REAL to a folder that holds them")
    return folder.resolve()
