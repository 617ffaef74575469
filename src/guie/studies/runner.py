"""Run a study's jobs in parallel on shared cores and GPUs, record each, and stop them together."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import yaml
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import append_text, write_text
from guie.config.base import expanded
from guie.data.image_checks.decoding import decoded_folder, find_unreadable
from guie.data.manifest import load_manifest
from guie.studies.grid import ComposedJob, Job, digest, with_folders, with_models
from guie.studies.results import Code, Record, manifest_of, stamp
from guie.training.checkpoint import FOLDER as CHECKPOINTS
from guie.training.distributed import Cause, Interrupts
from guie.training.run_folder import METRICS_FILE, SUMMARY, VAL, read_metrics, read_summary

SHOWN_CHARS = 300


class Failed(Exception):
    """A script failed.

    Attributes: `step`, the script; `error`, its last line without folder names of this machine, as it is
    committed.
    """

    def __init__(self, step: str, error: str):
        self.step, self.error = step, _without_places(error)[:SHOWN_CHARS]
        super().__init__(f"{step}: {self.error}")


class Halted(Exception):
    """The study was stopped by a signal."""


class Children:
    """The running scripts; any thread may start one and wait for it.

    Args:
        lock: descriptor of the lock file, which the scripts keep open, so they hold its lock too. If the
            study is killed, the next one waits until they have saved and ended.
    """

    def __init__(self, lock: int | None = None):
        self._lock, self._running = lock, set[subprocess.Popen[bytes]]()
        self._change = threading.Lock()
        self.halted = False

    def run(
        self, script: Path, words: Sequence[object], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Run a script to its end, and append its output to the log. Raises Failed, Halted, or OSError."""
        child_of = [sys.executable, "-m", "guie.studies.child", str(os.getpid())]
        command = [*child_of, str(script), *map(str, words)]
        with log.open("ab") as file:
            start = file.tell()
            with self._change:
                if self.halted:
                    raise Halted
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=os.environ | dict(environment),
                    start_new_session=True,  # the study itself passes Ctrl-C on
                    pass_fds=[] if self._lock is None else [self._lock],
                )
                self._running.add(child)
        try:
            code = child.wait()
        finally:
            with self._change:
                self._running.discard(child)
        if self.halted:
            raise Halted
        if code:
            raise Failed(script.name, _why(code, log, start))

    def halt(self, at_once: bool = False) -> None:
        """Start no more scripts. Signal the running ones to save and end; `at_once`: to end immediately."""
        with self._change:
            self.halted = True
            for child in self._running:
                child.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)


def _why(code: int, log: Path, start: int) -> str:
    """Return the log line that says why a script failed."""
    with log.open("rb") as file:
        file.seek(start)
        said = file.read().decode(errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()]
    message = [line for line in lines if line.startswith("error: ")] or lines or ["no output"]
    if code < 0:
        message = [f"ended by {signal.Signals(-code).name}; last line: {message[-1]}"]
    return message[-1]


def _without_places(line: str) -> str:
    places = {f"{os.getcwd()}/": "", os.environ.get("GUIE_REAL") or "\0": "${GUIE_REAL}"}
    for place, instead in places.items():
        line = line.replace(place, instead)
    return line.replace(str(Path.home()), "~")


def look_at_images(jobs: Iterable[Job], out: Path) -> None:
    """Decode every image of the manifests once, as parallel runs would otherwise each do so.

    The runs report images that cannot be decoded.

    Args:
        out: folder of the runs; the list of decoded images is cached there or next to the manifest.

    Raises UserError if a manifest is missing or invalid.
    """
    named = {(job.config.data.manifest, job.config.data.root) for job in jobs}
    named |= {(job.test.manifest, job.test.root) for job in jobs if job.test.manifest}
    for name, root in sorted(named, key=str):
        folder = expanded(root, "data.root") if root else None
        manifest = load_manifest(expanded(name, "data.manifest"), folder)
        cache, workers = decoded_folder(manifest.path, out), os.cpu_count() or 1
        find_unreadable(manifest.table, manifest.root, cache, workers)


def threads_of_each(jobs: int) -> int:
    """Return the cores for each of `jobs` parallel jobs, or OMP_NUM_THREADS if it is set."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() else max(1, (os.cpu_count() or 1) // jobs)


def gpus() -> list[str]:
    """Return the GPUs to alternate between, as in CUDA_VISIBLE_DEVICES; empty if fewer than two."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names if count > 1 else []


LOOK_S = 0.2

Do = Callable[[Job, int], Record]  # takes a job and its slot
Ended = Callable[[Job, Record | Failed], None]


def work_off(
    jobs: Sequence[Job],
    at_once: int,
    do: Do,
    ended: Ended,
    halt: Callable[[bool], Any],
    interrupts: Interrupts,
) -> bool:
    """Run the jobs in order; return False if a signal stopped them.

    Args:
        ended: called in this thread when a job ends.
        halt: makes running jobs raise Halted soon; immediately if its argument is True.

    Raises what `do` and `ended` raise, except Failed, after all running jobs have ended.
    """
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(at_once):
        slots.put(slot)

    def in_slot(job: Job) -> Record:
        slot = slots.get()
        try:
            return do(job, slot)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(at_once) as pool, tqdm(total=len(jobs), desc="runs", unit="run") as bar:
        under_way = {pool.submit(in_slot, job): job for job in jobs}
        try:
            while under_way:
                if interrupts.cause() != Cause.NONE:
                    _leave(pool, under_way, halt, ended)
                    return False
                done, _ = wait(under_way, LOOK_S, FIRST_COMPLETED)
                for future in sorted(done, key=lambda f: list(under_way).index(f)):
                    ended(under_way.pop(future), _outcome(future))
                    bar.update()
        except KeyboardInterrupt:  # the second Ctrl-C
            halt(True)
            pool.shutdown(cancel_futures=True)
            return False
        except BaseException:
            halt(False)
            pool.shutdown(cancel_futures=True)
            raise
    return True


def _leave(
    pool: ThreadPoolExecutor,
    under_way: dict[Future[Record], Job],
    halt: Callable[[bool], Any],
    ended: Ended,
) -> None:
    """Stop the running jobs; still report those that finished on their own."""
    halt(False)
    pool.shutdown(cancel_futures=True)
    for future, job in under_way.items():
        if not future.cancelled() and not isinstance(future.exception(), Halted):
            ended(job, _outcome(future))


def _outcome(future: Future[Record]) -> Record | Failed:
    try:
        return future.result()
    except Failed as failed:
        return failed


METRICS = ("r_at_1", "mmp_at_5")
DIGITS = 5
RESUMED = "== train.py goes on from a checkpoint\n"


class CodeChanged(UserError):
    """The jobs of a study would have more than one code version."""


@dataclass(frozen=True)
class Workshop:
    """Where and how the jobs of a study run.

    Attributes: `out`, folder of the runs, with shared caches; `scripts`, folder of train.py and others;
    `code`, version at the start of the study; `code_now` returns the current version.
    """

    out: Path
    scripts: Path
    children: Children
    code: Code
    code_now: Callable[[], Code]
    threads: int
    gpus: list[str]
    _makers: dict[Path, threading.Lock] = field(default_factory=dict)

    def do(self, job: Job, slot: int) -> Record:
        """Train and test a job, resuming an earlier attempt; return its record.

        Args:
            slot: a number that no other running job has.

        Raises Failed, Halted; UserError if the code changed since the study started.
        """
        made = stamp(
            job, self.code
        )  # with the data as it is now, even if it changes during the run
        folder = self.out / self.folder_name(job)
        report = folder / f"report_{digest(job.scored)}.json"
        try:
            self._make(job, slot)
            if not report.exists():
                self._test(job, folder, report, slot)
            self._embeddings(folder).unlink(missing_ok=True)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # saves disk space
            return made | self._found(job, folder, report)
        except CodeChanged:
            raise
        except UserError as error:
            raise Failed("study.py", str(error).splitlines()[0]) from None
        except OSError as error:
            raise Failed("study.py", f"{error.filename}: {error.strerror}") from None
        except (ValueError, KeyError, StopIteration):
            raise Failed(
                "study.py", f"{folder}: its files are not those of a run; delete the folder"
            ) from None

    def folder_name(self, job: Job) -> str:
        """Return the folder's name, which depends on code and data, so that no wrong run is reused.

        A renamed row finds the folder of its old name.
        """
        end = digest([job.training, self.code.src, manifest_of(job)])[:8]
        existing = sorted(self.out.glob(f"*_{end}.yaml"))
        return existing[0].stem if existing else f"{job.slug()}_{end}"

    def _make(self, job: Job, slot: int) -> Path:
        """Train the job's model if it does not exist; a model that several ensembles need is trained once."""
        folder = self.out / self.folder_name(job)
        with self._makers.setdefault(folder, threading.Lock()):
            if not (folder / SUMMARY).exists():
                if isinstance(job, ComposedJob):
                    self._compose(job, folder, slot)
                else:
                    self._train(job, folder, slot)
        return folder

    def _needed(self, job: Job, slot: int) -> dict[str, str]:
        """Return the folders of the models that it needs; train those that have only a record."""
        return {name: str(self._make(other, slot)) for name, other in job.needs.items()}

    def _compose(self, job: ComposedJob, folder: Path, slot: int) -> None:
        """Build an ensemble from the runs of other jobs."""
        runs = self._needed(job, slot)
        shutil.rmtree(folder, ignore_errors=True)  # remains of a killed process
        keys = {"name": folder.name, "out": str(self.out), "workers": job.config.data.workers}
        path = self.out / f"{folder.name}.yaml"
        write_text(path, yaml.safe_dump(with_folders(job.made, runs, **keys), sort_keys=False))
        self._run(folder, slot, "compose.py", "--config", path)

    def _train(self, job: Job, folder: Path, slot: int) -> None:
        """Train, from the newest checkpoint if there is one."""
        config = with_models(job.config, self._needed(job, slot))
        config = config.model_copy(update={"name": folder.name, "out": str(self.out)})
        path = self.out / f"{folder.name}.yaml"
        write_text(path, yaml.safe_dump(config.model_dump(), sort_keys=False))
        if any((folder / CHECKPOINTS).glob("step_*")):
            append_text(self._log(folder), RESUMED)
        self._run(folder, slot, "train.py", "--config", path, "--resume")

    def _test(self, job: Job, folder: Path, report: Path, slot: int) -> None:
        """Embed with the best weights, and score."""
        data, test = job.config.data, job.test
        own = test if test.manifest else data
        manifest, root = expanded(str(own.manifest), "test.manifest"), own.root
        images = ["--manifest", manifest, "--split", test.split]
        images += ["--root", expanded(root, "test.root")] if root else []
        emb = self._embeddings(folder)
        made = ("--model", folder, "--out", emb, "--workers", data.workers)
        self._run(folder, slot, "embed.py", *made, *images)
        draws = [] if job.intervals else ["--draws", "0"]
        scored = ("--embeddings", emb, *draws, *images)
        if job.protocols:
            by = ("--protocol", *job.protocols, "--out", beside(report))
            self._run(folder, slot, "validate.py", *scored, *by)
        self._run(folder, slot, "validate.py", *scored, "--index", test.index, "--out", report)

    def _run(self, folder: Path, slot: int, script: str, *words: object) -> None:
        if self.code_now() != self.code:
            raise CodeChanged(
                "src/ was changed, or another commit checked out, since the study started; run the"
                " same command again to run the other jobs with the current code"
            )
        environment = {"OMP_NUM_THREADS": str(self.threads)}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        self.children.run(self.scripts / script, words, self._log(folder), environment)

    def _embeddings(self, folder: Path) -> Path:
        return self.out / f"{folder.name}.npz"

    def _log(self, folder: Path) -> Path:
        """Return the log of the scripts' output, next to the run's folder."""
        return self.out / f"{folder.name}.log"

    def _found(self, job: Job, folder: Path, report: Path) -> Record:
        """Read the record of a finished run. Raises the errors of reading invalid files."""
        summary, scores = read_summary(folder), json.loads(report.read_text(encoding="utf-8"))
        best, domains = summary["best"], scores["domains"]
        log = self._log(folder)
        resumed = log.exists() and RESUMED.encode() in log.read_bytes()
        protocols: Record = {}
        if job.protocols:
            reports = json.loads(beside(report).read_text(encoding="utf-8"))["protocols"]
            headlines = {name: reports[name]["headline"] for name in job.protocols}
            protocols = {"protocols": {name: _numbers(h) for name, h in headlines.items()}}
        return protocols | {
            "best_step": best and best["step"],
            "val": best and _val(folder, best["step"]),
            "test": _rounded(scores["mean"])
            | {"domains": {name: _rounded(values) for name, values in domains.items()}}
            | _interval(scores),
            # The summary of an interrupted run covers only its last part
            "seconds": None if resumed else summary.get("seconds"),
            "threads": self.threads,
            "device": summary.get("device"),
            "peak_memory_mb": summary.get("peak_memory_mb"),
            "peak_gpu_memory_mb": summary.get("peak_gpu_memory_mb"),
            "trainable_parameters": summary.get("trainable_parameters"),
        }


def beside(report: Path) -> Path:
    """Return the path of the protocols' report, next to that of the test."""
    return report.with_name(f"protocols_{report.name}")


def _val(folder: Path, step: int) -> Record:
    """Return the scores of the best weights: R@1 of each domain, and the means."""
    lines = read_metrics(folder / METRICS_FILE)
    line = next(line for line in lines if VAL in line and line["step"] == step)
    rounded = {
        key.removeprefix("val_"): round(v, DIGITS) for key, v in line.items() if "val_" in key
    }
    means = {key: value for key, value in rounded.items() if "/" not in key}
    of_domains = {key.partition("/")[2]: value for key, value in rounded.items() if "/" in key}
    return means | {"domains": {name: {"r_at_1": value} for name, value in of_domains.items()}}


def _interval(scores: dict[str, Any]) -> Record:
    """Return the confidence interval of the mean R@1, if it was computed."""
    drawn = scores.get("intervals", {}).get("mean", {}).get(METRICS[0])
    return {"interval": [round(end, DIGITS) for end in drawn]} if drawn else {}


def _rounded(scores: dict[str, Any]) -> Record:
    return _numbers({key: scores[key] for key in METRICS})


def _numbers(values: dict[str, Any]) -> Record:
    return {key: None if v is None else round(v, DIGITS) for key, v in values.items()}
