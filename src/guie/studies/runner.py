"""Run a study's jobs in parallel on shared cores and GPUs, record each, and stop them together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import append_text, remove_own, write_text
from guie.base.processes import usable_cores
from guie.config.loading import expanded, to_yaml
from guie.data.manifest import load_manifest
from guie.evaluation.protocols.catalogue import FITTED
from guie.rows.readable import find_unreadable
from guie.studies.grid import Job, digest
from guie.studies.results import Code, Record, manifest_of, stamp
from guie.training.checkpoint import FOLDER as CHECKPOINTS
from guie.training.process_guard import Cause, Interrupts
from guie.training.run_folder import (
    METRICS_FILE,
    SUMMARY,
    VAL,
    WRITTEN,
    read_metrics,
    read_summary,
)

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
        output = file.read().decode(errors="replace")
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
    message = [line for line in lines if line.startswith("error: ")] or lines or ["no output"]
    if code < 0:
        message = [f"ended by {signal.Signals(-code).name}; last line: {message[-1]}"]
    return message[-1]


def _without_places(line: str) -> str:
    line = line.replace(f"{os.getcwd()}/", "")
    line = line.replace(os.environ.get("GUIE_REAL") or "\0", "${GUIE_REAL}")
    return line.replace(str(Path.home()), "~")


def look_at_images(jobs: Iterable[Job]) -> None:
    """Decode every image of the manifests once, as parallel runs would otherwise each do so.

    The runs report images that cannot be decoded. Raises UserError if a manifest is missing or invalid.
    """
    named = {(job.config.data.manifest, job.config.data.root) for job in jobs}
    tests = [job.study.test for job in jobs]
    named |= {(test.manifest, test.root) for test in tests if test.manifest}
    for name, root in sorted(named, key=str):
        folder = expanded(root, "data.root") if root else None
        manifest = load_manifest(expanded(name, "data.manifest"), folder)
        find_unreadable(manifest.table, manifest.root, usable_cores(), manifest.open_image)


def threads_of_each(jobs: int) -> int:
    """Return the cores for each of `jobs` parallel jobs, or OMP_NUM_THREADS if it is a number above 0."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    own = int(given) if re.fullmatch("[0-9]{1,9}", given) else 0
    return own or max(1, usable_cores() // jobs)


def gpus() -> list[str]:
    """Return the GPUs to alternate between, as in CUDA_VISIBLE_DEVICES; empty if fewer than two."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names if count > 1 else []


LOOK_S = 0.2

Outcome = Record | Failed


def work_off(
    jobs: Sequence[Job],
    at_once: int,
    do: Callable[[Job], Outcome],
    ended: Callable[[Job, Outcome], None],
    halt: Callable[[bool], Any],
    interrupts: Interrupts,
) -> bool:
    """Run the jobs in order, each in a thread; return False if a signal stopped them.

    Args:
        ended: called in this thread when a job ends.
        halt: makes running jobs raise Halted soon; immediately if its argument is True.

    Raises what `do` and `ended` raise, after all running jobs have ended.
    """
    with ThreadPoolExecutor(at_once) as pool, tqdm(total=len(jobs), desc="runs", unit="run") as bar:
        under_way = {pool.submit(do, job): job for job in jobs}
        try:
            while under_way and interrupts.cause() == Cause.NONE:
                done, _ = wait(under_way, LOOK_S, FIRST_COMPLETED)
                for future in [future for future in under_way if future in done]:
                    ended(under_way.pop(future), future.result())
                    bar.update()
            if under_way:  # a signal; jobs that still finish by themselves are reported
                halt(False)
                pool.shutdown(cancel_futures=True)
                for future, job in under_way.items():
                    if not future.cancelled() and not isinstance(future.exception(), Halted):
                        ended(job, future.result())
        except KeyboardInterrupt:  # the second Ctrl-C
            halt(True)
            pool.shutdown(cancel_futures=True)
            return False
        except BaseException:
            halt(False)
            pool.shutdown(cancel_futures=True)
            raise
    return not under_way


METRICS = ("r_at_1", "mmp_at_5")
DIGITS = 5
RESUMED = "== train.py resumes from a checkpoint\n"


class CodeChanged(UserError):
    """The jobs of a study would have more than one code version."""


@dataclass(frozen=True)
class Runner:
    """Trains, tests and records the jobs of a study, several at once in threads.

    Attributes: `out`, folder of the runs, with shared caches; `scripts`, folder of train.py and others;
    `code`, version at the start of the study; `code_now` returns the current version; `gpus`, one for
    each thread.
    """

    out: Path
    scripts: Path
    children: Children
    code: Code
    code_now: Callable[[], Code]
    threads: int
    gpus: list[str]
    _training: dict[Path, threading.Lock] = field(default_factory=dict)
    _thread: threading.local = field(default_factory=threading.local)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(self, job: Job) -> Outcome:
        """Train and test a job, resuming an earlier attempt; return its record, or how it failed.

        Raises Halted; UserError if the code changed since the study started.
        """
        # The data as it is now, even if it changes during the run
        made = stamp(job, self.code)
        folder = self.folder(job)
        report = folder / f"report_{digest(job.scored)}.json"
        try:
            self.train(job)
            if not report.exists():
                self.test(job, folder, report)
            embedded = (folder.glob(f"{split}_[0-9]*.npz") for split in ("val", "test", "train"))
            for emb in (Path(f"{folder}.npz"), *chain.from_iterable(embedded)):
                emb.unlink(missing_ok=True)
            remove_own(folder / CHECKPOINTS, ("step_*-*.pt", ".*.tmp.*"))  # saves disk space
            return made | self.record(job, folder, report)
        except Failed as failed:
            return failed
        except CodeChanged:
            raise
        except UserError as error:
            return Failed("study.py", str(error).splitlines()[0])
        except OSError as error:
            return Failed("study.py", f"{error.filename}: {error.strerror}")
        except (ValueError, KeyError, StopIteration):
            remedy = "its files are not those of a run; delete the folder"
            return Failed("study.py", f"{folder}: {remedy}")

    def folder(self, job: Job) -> Path:
        """Return the run's folder; its name depends on code and data, so that no wrong run is reused.

        A renamed row finds the folder of its old name.
        """
        end = digest([job.training, self.code.src, manifest_of(job)])[:8]
        existing = sorted(self.out.glob(f"*_{end}.yaml"))
        return self.out / (existing[0].stem if existing else f"{job.slug()}_{end}")

    def train(self, job: Job) -> Path:
        """Return the folder of the job's model; make it, and first those that it needs, if there is none.

        A model that several others need is made once. A training resumes from its newest checkpoint.
        """
        folder = self.folder(job)
        with self._training.setdefault(folder, threading.Lock()):
            if (folder / SUMMARY).exists():
                return folder
            folders = {name: str(self.train(other)) for name, other in job.needs.items()}
            if job.evaluation:
                folder.mkdir(exist_ok=True)  # for its reports
                return folder
            script, options = "train.py", ["--resume"]
            if job.ensemble:
                script, options = "compose.py", []
                remove_own(folder, WRITTEN)  # remains of a killed process
            path, keys = Path(f"{folder}.yaml"), {"name": folder.name, "out": str(self.out)}
            write_text(path, to_yaml(job.written(folders, self.threads, **keys)))
            if any((folder / CHECKPOINTS).glob("step_*")):
                append_text(Path(f"{folder}.log"), RESUMED)
            self._run(folder, script, "--config", path, *options)
        return folder

    def test(self, job: Job, folder: Path, report: Path) -> None:
        """Embed with the best weights, and score; an evaluation of other models is scored on val too."""
        test = job.study.test
        own = test if test.manifest else job.config.data
        images = ["--manifest", expanded(str(own.manifest), "test.manifest")]
        images += ["--root", expanded(own.root, "test.root")] if own.root else []
        index = ("--index", test.index)
        reduced = self._reduction(job, folder, images)
        if job.evaluation:
            on_val = [*self._embedded(job, folder, "val", images), "--split", "val", *reduced]
            on_val += ["--draws", "0", "--out", str(report.with_name(f"val_{report.name}"))]
            self._run(folder, "validate.py", *images, *on_val, *index)
        draws = [] if job.study.intervals else ["--draws", "0"]
        files = self._embedded(job, folder, test.split, images)
        scored = (*files, *draws, *images, "--split", test.split, *reduced)
        if protocols := job.study.protocols:
            out = report.with_name(f"protocols_{report.name}")
            self._run(folder, "validate.py", *scored, "--protocol", *protocols, "--out", out)
        to = ("--write-queries", report.with_suffix(".csv"), "--out", report)
        self._run(folder, "validate.py", *scored, *index, *to)

    def _embedded(
        self, job: Job, folder: Path, split: str, images: Sequence[str], option: str = ""
    ) -> list[str]:
        """Embed a split by the job's model, or the models that it evaluates.

        Returns validate.py's arguments for the files, by default `--embeddings` or `--specialists`.
        """
        workers = self.threads if job.config.data.workers is None else job.config.data.workers
        words: list[Any] = [*images, "--split", split, "--workers", workers]
        how = job.evaluation
        if how is None:
            self._run(folder, "embed.py", "--model", folder, "--out", f"{folder}.npz", *words)
            return ["--embeddings", f"{folder}.npz"]
        words += ["--layers", *how.layers] if how.layers else []
        words += _options({"pool": how.pool, "norm": how.norm})
        of_library = _options({"size-px": how.size_px, "fit": how.fit})
        files = []
        for number, (domain, name) in enumerate(how.each().items()):
            need, emb = job.needs.get(name), folder / f"{split}_{number}.npz"
            model = self.folder(need) if need else expanded(name, "evaluate.models")
            more = of_library if ":" in str(model) else []  # embed.py refuses them for a folder
            self._run(folder, "embed.py", "--model", model, "--out", emb, *words, *more)
            files.append(f"{domain}={emb}" if domain else str(emb))
        if option or isinstance(how.models, str):
            return [option or "--embeddings", *files]
        return ["--specialists", *files, "--join", how.join]

    def _reduction(self, job: Job, folder: Path, images: Sequence[str]) -> list[str]:
        """Return validate.py's arguments for the reduction of an evaluation, if it has one."""
        how = job.evaluation
        if how is None or how.reduce is None:
            return []
        words = ["--reduce", how.reduce, "--dim", str(how.dim)]
        words += ["--seed", str(job.seed)] if how.reduce == "random" else []
        fitted = how.reduce in FITTED
        return words + (self._embedded(job, folder, "train", images, "--fit") if fitted else [])

    def _run(self, folder: Path, script: str, *words: object) -> None:
        if self.code_now() != self.code:
            raise CodeChanged(
                "src/ was changed, or another commit checked out, since the study started; run the"
                " same command again to run the other jobs with the current code"
            )
        environment = {"OMP_NUM_THREADS": str(self.threads)}
        if self.gpus:
            if not hasattr(self._thread, "gpu"):
                self._thread.gpu = self.gpus[next(self._numbers) % len(self.gpus)]
            environment["CUDA_VISIBLE_DEVICES"] = self._thread.gpu
        self.children.run(self.scripts / script, words, Path(f"{folder}.log"), environment)

    def record(self, job: Job, folder: Path, report: Path) -> Record:
        """Read the record of a finished run. Raises the errors of reading invalid files."""
        scores = json.loads(report.read_text(encoding="utf-8"))
        summary = {"best": None} if job.evaluation else read_summary(folder)
        best, log = summary["best"], Path(f"{folder}.log")
        resumed = log.exists() and RESUMED.encode() in log.read_bytes()
        domains = {name: _rounded(scores, METRICS) for name, scores in scores["domains"].items()}
        test = _rounded(scores["mean"], METRICS) | {"domains": domains}
        test["classes"] = _of_classes(report.with_suffix(".csv"))
        if drawn := scores.get("intervals", {}).get("mean", {}).get(METRICS[0]):
            test["interval"] = [round(end, DIGITS) for end in drawn]
        val: Record | None = best and _val(folder, best["step"])
        if job.evaluation:
            on_val = json.loads(report.with_name(f"val_{report.name}").read_text(encoding="utf-8"))
            by_domain = {name: _rounded(v, METRICS[:1]) for name, v in on_val["domains"].items()}
            val = _rounded(on_val["mean"], METRICS) | {"domains": by_domain}
        costs = ("device", "peak_memory_mb", "peak_gpu_memory_mb", "trainable_parameters")
        record = {
            "best_step": best and best["step"],
            "val": val,
            "test": test,
            # The summary of an interrupted run covers only its last part
            "seconds": None if resumed else summary.get("seconds"),
            "threads": self.threads,
            **{key: summary.get(key) for key in costs},
        }
        if protocols := job.study.protocols:
            path = report.with_name(f"protocols_{report.name}")
            by_name = json.loads(path.read_text(encoding="utf-8"))["protocols"]
            headlines = {name: by_name[name]["headline"] for name in protocols}
            record["protocols"] = {name: _rounded(h, h) for name, h in headlines.items()}
        return record


def _options(values: Mapping[str, Any]) -> list[Any]:
    return [word for key, v in values.items() if v is not None for word in (f"--{key}", v)]


def _of_classes(path: Path) -> dict[str, dict[str, list[int]]]:
    """Return, by domain, the R@1 hits and the queries of each class, in the order of the classes."""
    queries = pd.read_csv(
        path,
        usecols=["domain", "class", "r_at_1"],
        dtype={"domain": str, "class": str},
        keep_default_na=False,  # a class may be called NA
        na_values={"r_at_1": [""]},
    )
    counts = queries.groupby(["domain", "class"])["r_at_1"].agg(["sum", "count"]).astype(int)
    return {
        str(domain): {"hits": of_domain["sum"].tolist(), "queries": of_domain["count"].tolist()}
        for domain, of_domain in counts.groupby("domain")
    }


def _val(folder: Path, step: int) -> Record:
    """Return the scores of the best weights: R@1 of each domain, and the means."""
    lines = read_metrics(folder / METRICS_FILE)
    line = next(line for line in lines if VAL in line and line["step"] == step)
    scores = {key.removeprefix("val_"): v for key, v in line.items() if "val_" in key}
    of_domains = {key for key in scores if "/" in key}
    domains = {key.partition("/")[2]: {"r_at_1": round(scores[key], DIGITS)} for key in of_domains}
    return _rounded(scores, scores.keys() - of_domains) | {"domains": domains}


def _rounded(scores: Mapping[str, Any], keys: Iterable[str]) -> Record:
    return {key: None if scores[key] is None else round(scores[key], DIGITS) for key in keys}
