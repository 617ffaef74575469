"""Scripts of a study: how they fail, are halted, and share cores and GPUs."""

import os
import signal
import sys
import threading
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


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def test_an_error_of_ours_ends_all_jobs(tmp_path: Path) -> None:
    first, *_ = jobs = plan(tmp_path).chosen(None, None)
    children = Children(1)

    class Broken(Runner):
        def run(self, job: Job) -> Record:
            if job is first:
                raise ZeroDivisionError
            assert until(lambda: children.halted)
            raise Halted

    with pytest.raises(ZeroDivisionError):
        Broken(Path(), children, CODE).run_all(jobs, 2, pytest.fail, Interrupts())


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
        Children(1).run(script(tmp_path, text), [], log)
    assert failed.value.record == {"step": "train.py", "error": FAULTS[text]}


def test_a_script_gets_its_words_its_cores_and_the_gpu_of_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "gpus", lambda: ["3", "5"])
    names = "'OMP_NUM_THREADS', 'CUDA_VISIBLE_DEVICES'"
    path = script(tmp_path, f"import os, sys; print(sys.argv[1], *map(os.environ.get, [{names}]))")
    log, children = tmp_path / "log", Children(2)

    def twice() -> None:
        for _ in range(2):
            children.run(path, [tmp_path], log)

    twice()
    thread = threading.Thread(target=twice)
    thread.start()
    thread.join()
    assert log.read_text().splitlines() == [f"{tmp_path} 2 3"] * 2 + [f"{tmp_path} 2 5"] * 2


def test_jobs_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(runner, "usable_cores", lambda: 5)
    assert [cores_of_each(jobs) for jobs in (1, 2, 9)] == [5, 2, 1]
    for given, cores in {"4": 4, "0": 2, "4,2": 2}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert cores_of_each(2) == cores
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpus() == ["3", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus() == []


def test_halted_scripts_end_and_none_starts(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    path, children = script(tmp_path, STAYS.format(started)), Children(1)
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            children.run(path, [], tmp_path / "log")
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert until(started.exists)
    children.halt(at_once=True)
    thread.join(60)
    assert isinstance(outcome[0], Halted)
    with pytest.raises(Halted):
        children.run(path, [], tmp_path / "log")


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_no_script_outlives_a_killed_study(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    path = script(tmp_path, STAYS.format(started))
    parent = os.fork()
    if parent == 0:
        try:
            Children(1).run(path, [], tmp_path / "log")
        finally:
            os._exit(0)
    assert until(lambda: started.exists() and started.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert until(lambda: is_gone(int(started.read_text())))


def test_a_class_may_be_called_na_and_a_domain_a_number(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("domain,class,query,r_at_1\n01,NA,a,1.0\n01,NA,b,\nnull,1,c,0.0\n")
    one, other = {"hits": [1], "queries": [1]}, {"hits": [0], "queries": [1]}
    assert hits_of_classes(path) == {"01": one, "null": other}
