"""Jobs at once and one after the other, scripts that fail, and how all of them end."""

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


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return plan(tmp_path, seeds=3).chosen(None, None)


class Work:
    """Jobs that do what they are told, and what is known of them."""

    def __init__(self, do: Callable[[Job], Record | Failed]):
        self.do_one, self.running, self.most = do, 0, 0
        self.ended: list[tuple[Job, Record | Failed]] = []
        self.halted, self.lock = threading.Event(), threading.Lock()

    def do(self, job: Job) -> Record | Failed:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            return self.do_one(job)
        finally:
            with self.lock:
                self.running -= 1

    def off(self, jobs: list[Job], at_once: int = 1, interrupts: Interrupts | None = None) -> bool:
        def ended(job: Job, outcome: Record | Failed) -> None:
            self.ended.append((job, outcome))

        class Halting(Children):
            def halt(children, at_once: bool = False) -> None:
                self.halted.set()

        class Working(Runner):
            def run(runner, job: Job) -> Record | Failed:
                return self.do(job)

        working = Working(Path(), Halting(), CODE, 1)
        return working.run_all(jobs, at_once, ended, interrupts or Interrupts())


def test_so_many_at_once_and_all_told(jobs: list[Job]) -> None:
    meet = threading.Barrier(3)

    def together(job: Job) -> Record | Failed:
        meet.wait(60)
        if job.row == "softmax":
            return Failed("train.py", "no luck")
        return {"row": job.row}

    work = Work(together)
    assert work.off(jobs, at_once=3)
    assert work.most == 3
    assert {job.key for job, _ in work.ended} == {job.key for job in jobs}
    assert all(isinstance(o, Failed) == (job.row == "softmax") for job, o in work.ended)


def test_one_at_a_time_in_their_order(jobs: list[Job]) -> None:
    work = Work(lambda job: {"row": job.row})
    assert work.off(jobs)
    assert [job.key for job, _ in work.ended] == [job.key for job in jobs]
    assert work.most == 1


def test_a_signal_ends_what_is_under_way_and_begins_no_more(jobs: list[Job]) -> None:
    interrupts = Interrupts()

    def until_halted(job: Job) -> Record:
        if job is jobs[0]:
            return {}
        interrupts.received = signal.SIGTERM
        if job is jobs[1]:
            assert work.halted.wait(60)
            raise Halted
        return {"late": True}  # came to its end of itself

    work = Work(until_halted)
    assert not work.off(jobs, at_once=2, interrupts=interrupts)
    message = {job.key for job, _ in work.ended}
    assert jobs[0].key in message and jobs[1].key not in message and len(message) < len(jobs)


def test_a_fault_of_ours_ends_all(jobs: list[Job]) -> None:
    def broken(job: Job) -> Record:
        if job is jobs[0]:
            raise ZeroDivisionError
        assert work.halted.wait(60)
        raise Halted

    work = Work(broken)
    with pytest.raises(ZeroDivisionError):
        work.off(jobs, at_once=2)
    assert not work.ended


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
def test_a_script_that_fails_leaves_its_last_word(text: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of an earlier try\n")
    with pytest.raises(Failed) as failed:
        Children().run(script(tmp_path, text), [], log, {})
    assert (failed.value.step, failed.value.error) == ("train.py", FAULTS[text])


def test_a_script_is_given_its_words_and_its_environment(tmp_path: Path) -> None:
    text = "import os, sys; print(sys.argv[1:], os.environ['OMP_NUM_THREADS'], flush=True)"
    Children().run(
        script(tmp_path, text), ["--a", tmp_path], tmp_path / "log", {"OMP_NUM_THREADS": "3"}
    )
    assert (tmp_path / "log").read_text() == f"['--a', '{tmp_path}'] 3\n"


def test_cores_are_shared_out_and_cards_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(runner, "usable_cores", lambda: 5)
    assert [cores_of_each(jobs) for jobs in (1, 2, 9)] == [5, 2, 1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert (gpus(), cores_of_each(2)) == (["3", "5"], 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus() == []
    for unusable in ("0", "²", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", unusable)
        assert cores_of_each(2) == 2


STAYS = "import os, pathlib, time; pathlib.Path('{}').write_text(str(os.getpid())); time.sleep(60)"


@pytest.mark.parametrize("at_once", [False, True])
def test_halted_scripts_end_and_none_begins(at_once: bool, tmp_path: Path) -> None:
    message = tmp_path / "pid"
    path, children = script(tmp_path, STAYS.format(message)), Children()
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            children.run(path, [], tmp_path / "log", {})
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(message.exists)
    children.halt(at_once)
    thread.join(60)
    assert isinstance(outcome[0], Halted)
    with pytest.raises(Halted):
        children.run(path, [], tmp_path / "log", {})


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of a parent's death on Linux")
def test_no_script_outlives_a_study_that_is_killed(tmp_path: Path) -> None:
    message = tmp_path / "pid"
    path = script(tmp_path, STAYS.format(message))
    parent = os.fork()
    if parent == 0:
        try:
            Children().run(path, [], tmp_path / "log", {})
        finally:
            os._exit(0)
    assert until(lambda: message.exists() and message.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert until(lambda: is_gone(int(message.read_text())))


def test_a_class_may_be_called_na_and_a_domain_a_number(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("domain,class,query,r_at_1\n01,NA,a,1.0\n01,NA,b,\nnull,1,c,0.0\n")
    assert hits_of_classes(path) == {
        "01": {"hits": [1], "queries": [1]},
        "null": {"hits": [0], "queries": [1]},
    }
