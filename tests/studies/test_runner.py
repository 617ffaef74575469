"""Scripts of a study: how they fail, are halted, and share cores and GPUs; jobs in parallel."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from guie.studies import runner
from guie.studies.grid import Job
from guie.studies.results import Record, hits_of_classes
from guie.studies.runner import Children, Failed, Halted, Runner, cores_of_each, gpus
from guie.training.process_guard import Interrupts
from kills import is_gone, until
from small_studies import CODE, plan

STAYS = "import os, pathlib, time; pathlib.Path('{}').write_text(str(os.getpid())); time.sleep(60)"


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return plan(tmp_path, seeds=3).chosen(None, None)


class Recorder:
    """Runs jobs by a function, and records what was saved and halted."""

    def __init__(self, work: Callable[[Job], Record | Failed]):
        self.saved: list[tuple[Job, Record | Failed]] = []
        self.halted = threading.Event()
        recorder = self

        class Halting(Children):
            def halt(self, at_once: bool = False) -> None:
                recorder.halted.set()

        class Working(Runner):
            def run(self, job: Job) -> Record | Failed:
                return work(job)

        self.runner = Working(Path(), Halting(), CODE, 1)

    def run(self, jobs: list[Job], parallel: int, interrupts: Interrupts | None = None) -> bool:
        def save(job: Job, outcome: Record | Failed) -> None:
            self.saved.append((job, outcome))

        return self.runner.run_all(jobs, parallel, save, interrupts or Interrupts())


def test_jobs_run_in_parallel_and_all_are_saved(jobs: list[Job]) -> None:
    meet = threading.Barrier(3)  # passes only if three run at once

    def work(job: Job) -> Record | Failed:
        meet.wait(60)
        return Failed("train.py", "bad luck") if job.row == "softmax" else {"row": job.row}

    recorder = Recorder(work)
    assert recorder.run(jobs, 3)
    assert {job.key for job, _ in recorder.saved} == {job.key for job in jobs}
    assert all(isinstance(o, Failed) == (job.row == "softmax") for job, o in recorder.saved)


def test_one_at_a_time_runs_in_order(jobs: list[Job]) -> None:
    recorder = Recorder(lambda job: {"row": job.row})
    assert recorder.run(jobs, 1)
    assert [job.key for job, _ in recorder.saved] == [job.key for job in jobs]


def test_a_signal_ends_running_jobs_and_starts_no_more(jobs: list[Job]) -> None:
    interrupts = Interrupts()

    def work(job: Job) -> Record:
        if job is jobs[0]:
            return {}
        interrupts.received = signal.SIGTERM
        if job is jobs[1]:
            assert recorder.halted.wait(60)
            raise Halted
        return {"late": True}  # finished by itself

    recorder = Recorder(work)
    assert not recorder.run(jobs, 2, interrupts)
    saved = {job.key for job, _ in recorder.saved}
    assert jobs[0].key in saved and jobs[1].key not in saved and len(saved) < len(jobs)


def test_an_error_of_ours_ends_all_jobs(jobs: list[Job]) -> None:
    def work(job: Job) -> Record:
        if job is jobs[0]:
            raise ZeroDivisionError
        assert recorder.halted.wait(60)
        raise Halted

    recorder = Recorder(work)
    with pytest.raises(ZeroDivisionError):
        recorder.run(jobs, 2)
    assert not recorder.saved


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


FAULTS = {
    "import sys; print('a word'); sys.exit('error: out of luck')": "error: out of luck",
    "print('error: this'); print('a later word'); raise SystemExit(3)": "error: this",
    "raise ValueError('of ours')": "ValueError: of ours",
    "import os; print('at 3 %', end='\\r', flush=True); os.kill(os.getpid(), 9)": (
        "ended by SIGKILL; last line: at 3 %"
    ),
    "raise SystemExit(1)": "no output",
    f"raise SystemExit('error: {os.getcwd()}/runs/a: full')": "error: runs/a: full",
}  # fmt: skip


@pytest.mark.parametrize("text", FAULTS, ids=FAULTS.values())
def test_a_failed_script_leaves_its_last_line(text: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of an earlier attempt\n")
    with pytest.raises(Failed) as failed:
        Children().run(script(tmp_path, text), [], log, {})
    assert (failed.value.step, failed.value.error) == ("train.py", FAULTS[text])


def test_a_script_gets_its_words_and_its_environment(tmp_path: Path) -> None:
    text = "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'], flush=True)"
    log, path = tmp_path / "log", script(tmp_path, text)
    Children().run(path, ["--a", tmp_path], log, {"OMP_NUM_THREADS": "3"})
    assert log.read_text() == f"['--a', '{tmp_path}'] 3\n"


def test_jobs_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runner, "usable_cores", lambda: 5)
    assert [cores_of_each(jobs) for jobs in (1, 2, 9)] == [5, 2, 1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpus() == ["3", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus() == []
    for given, cores in {"4": 4, "0": 2, "²": 2, "4,2": 2}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert cores_of_each(2) == cores


@pytest.mark.parametrize("at_once", [False, True])
def test_halted_scripts_end_and_none_starts(at_once: bool, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    path, children = script(tmp_path, STAYS.format(started)), Children()
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            children.run(path, [], tmp_path / "log", {})
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(started.exists)
    children.halt(at_once)
    thread.join(60)
    assert isinstance(outcome[0], Halted)
    with pytest.raises(Halted):
        children.run(path, [], tmp_path / "log", {})


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_no_script_outlives_a_killed_study(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    path = script(tmp_path, STAYS.format(started))
    parent = os.fork()
    if parent == 0:
        try:
            Children().run(path, [], tmp_path / "log", {})
        finally:
            os._exit(0)
    assert until(lambda: started.exists() and started.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert until(lambda: is_gone(int(started.read_text())))


def test_a_class_may_be_called_na_and_a_domain_a_number(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("domain,class,query,r_at_1\n01,NA,a,1.0\n01,NA,b,\nnull,1,c,0.0\n")
    assert hits_of_classes(path) == {
        "01": {"hits": [1], "queries": [1]},
        "null": {"hits": [0], "queries": [1]},
    }
