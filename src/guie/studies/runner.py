"""Run a study's jobs in parallel on shared cores and GPUs, record each, and stop them together."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from guie.base.errors import UserError
from guie.base.files import append_text, remove_own, write_text
from guie.base.processes import usable_cores
from guie.config.loading import expanded, to_yaml
from guie.data.manifest import load_manifest
from guie.evaluation.protocols.catalogue import FITTED
from guie.rows.checks import find_unreadable
from guie.studies.grid import Job, digest, rewritten
from guie.studies.results import Code, Record, code_of, manifest_of, scores_of_run, stamp
from guie.training.checkpoint import FOLDER as CHECKPOINTS
from guie.training.process_guard import Cause, Interrupts
from guie.training.run_folder import SUMMARY, WRITTEN

SCRIPTS = Path(__file__).parents[2]
SHOWN_CHARS = 300
POLL_S = 0.2
RESUMED = "== train.py resumes from a checkpoint\n"


class Failed(Exception):
    """A script failed.

    Attributes: `record`, the script and its last line without folder names of this machine.
    """

    def __init__(self, step: str, error: str):
        error = error.replace(f"{os.getcwd()}/", "")
        error = error.replace(os.environ.get("GUIE_REAL") or "\0", "${GUIE_REAL}")
        self.record = {"step": step, "error": error.replace(str(Path.home()), "~")[:SHOWN_CHARS]}


class Halted(Exception):
    """The study was stopped by a signal."""


class Children:
    """The running scripts, each with its cores; any thread may start one and wait for it.

    A thread's scripts use one GPU. They keep the descriptor `lock` open, so they hold its file's lock too: if
    the study is killed, the next one waits until they have saved and ended.
    """

    def __init__(self, cores: int, lock: int | None = None):
        self.cores, self._lock, self._running = cores, lock, set[subprocess.Popen[bytes]]()
        self._gpus, self._thread = cycle(gpus()), threading.local()
        self._change = threading.Lock()
        self.halted = False

    def run(self, script: Path, words: Sequence[object], log: Path) -> None:
        """Run a script to its end, and append its output to the log. Raises Failed, Halted, or OSError."""
        environment = os.environ | {"OMP_NUM_THREADS": str(self.cores)}
        if not hasattr(self._thread, "gpu"):
            self._thread.gpu = next(self._gpus, None)
        if self._thread.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._thread.gpu
        child_of = [sys.executable, "-m", "guie.base.child", str(os.getpid())]
        with log.open("ab") as file:
            start = file.tell()
            with self._change:
                if self.halted:
                    raise Halted
                child = subprocess.Popen(
                    [*child_of, str(script), *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
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
            output = log.read_bytes()[start:].decode(errors="replace")
            lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
            errors = [line for line in lines if line.startswith("error: ")]
            last = (errors or lines or ["no output"])[-1]
            killed = f"ended by {signal.Signals(-code).name}; last line: " if code < 0 else ""
            raise Failed(script.name, killed + last)

    def halt(self, at_once: bool = False) -> None:
        """Start no more scripts. Signal the running ones to save and end; `at_once`: to end immediately."""
        with self._change:
            self.halted = True
            for child in self._running:
                child.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)


def decode_images(jobs: Iterable[Job]) -> None:
    """Decode every image of the manifests once, as parallel runs would otherwise each do so.

    The runs report images that cannot be decoded. Raises UserError if a manifest is missing or invalid.
    """
    sources = [source for job in jobs for source in (job.config.data, job.study.test)]
    for name, root in sorted({(s.manifest, s.root) for s in sources if s.manifest}, key=str):
        folder = expanded(root, "data.root") if root else None
        manifest = load_manifest(expanded(name, "data.manifest"), folder)
        find_unreadable(manifest.table, manifest.root, usable_cores(), manifest.sidecar.decode)


def cores_of_each(jobs: int) -> int:
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


@dataclass(frozen=True)
class Runner:
    """Trains, tests and records the jobs of a study, several at once in threads."""

    out: Path  # folder of the runs, with shared caches
    children: Children
    code: Code  # at the start of the study
    _training: dict[Path, threading.Lock] = field(default_factory=dict)

    def run_all(
        self,
        jobs: Sequence[Job],
        parallel: int,
        save: Callable[[Job, Record], None],
        interrupts: Interrupts,
    ) -> bool:
        """Run the jobs in order, each in a thread; return False if a signal stopped them.

        `save` is called in this thread when a job ends. Raises what `run` and `save` raise, after all running
        jobs have ended.
        """
        bar = tqdm(total=len(jobs), desc="runs", unit="run")
        with ThreadPoolExecutor(parallel) as pool, bar:
            running = {pool.submit(self.run, job): job for job in jobs}
            try:
                while running and interrupts.cause() == Cause.NONE:
                    done, _ = wait(running, POLL_S, FIRST_COMPLETED)
                    for future in [future for future in running if future in done]:
                        save(running.pop(future), future.result())
                        bar.update()
                if running:  # a signal; jobs that still finish by themselves are saved
                    self.children.halt()
                    pool.shutdown(cancel_futures=True)
                    for future, job in running.items():
                        if not future.cancelled() and not isinstance(future.exception(), Halted):
                            save(job, future.result())
            except BaseException as error:
                second_ctrl_c = isinstance(error, KeyboardInterrupt)
                self.children.halt(at_once=second_ctrl_c)
                pool.shutdown(cancel_futures=True)
                if second_ctrl_c:
                    return False
                raise
        return not running

    def run(self, job: Job) -> Record:
        """Train and test a job, resuming an earlier attempt; return its record, or that of a failure.

        Raises Halted; UserError if the code changed since the study started.
        """
        self._refuse_changed_code()
        made = stamp(job, self.code)  # of the data as it is now, even if it changes during the run
        try:
            found = self._run(job)
        except Failed as failed:
            found = failed.record
        except (UserError, OSError) as error:
            found = Failed("study.py", str(error).splitlines()[0]).record
        except (ValueError, KeyError, StopIteration):
            remedy = "its files are not those of a run; delete the folder"
            found = Failed("study.py", f"{self.folder(job)}: {remedy}").record
        self._refuse_changed_code()
        return made | found

    def _run(self, job: Job) -> Record:
        folder = self.train(job)
        report = folder / f"report_{digest(job.scored)}.json"
        if not report.exists():
            self.test(job, folder, report)
        remove_own(folder, ("embedded_*.npz",))  # saves disk space, as the next line
        remove_own(folder / CHECKPOINTS, ("step_*-*.pt", ".*.tmp.*"))
        record = scores_of_run(job, folder, report) | {"threads": self.children.cores}
        log = Path(f"{folder}.log")
        if log.exists() and RESUMED.encode() in log.read_bytes():
            record["seconds"] = None  # the summary covers only the last part of an interrupted run
        return record

    def folder(self, job: Job) -> Path:
        """Return the run's folder; its name depends on code and data, so that no wrong run is reused.

        A renamed row finds the folder of its old name.
        """
        end = digest([job.training, self.code.src, manifest_of(job)])[:8]
        existing = sorted(self.out.glob(f"*_{end}.yaml"))
        return self.out / (existing[0].stem if existing else f"{job.slug}_{end}")

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
            cores = self.children.cores

            def placed(block: dict[str, Any]) -> dict[str, Any]:
                if block.get("workers", 0) is None:
                    block["workers"] = cores
                for key in ("model", "start_from"):
                    if isinstance(name := block.get(key), str):
                        block[key] = folders.get(name, name)
                return block

            config = rewritten((job.ensemble or job.config).model_dump(), placed)
            config |= {"name": folder.name, "out": str(self.out)}
            path = Path(f"{folder}.yaml")
            write_text(path, to_yaml(config))
            if any((folder / CHECKPOINTS).glob("step_*")):
                append_text(Path(f"{folder}.log"), RESUMED)
            self._script(folder, script, "--config", path, *options)
        return folder

    def test(self, job: Job, folder: Path, report: Path) -> None:
        """Embed with the best weights, and score; an evaluation of other models is scored on val too."""
        test = job.study.test
        own = test if test.manifest else job.config.data
        images = ["--manifest", expanded(str(own.manifest), "test.manifest")]
        images += ["--root", expanded(own.root, "test.root")] if own.root else []
        reduced: list[str] = []
        if job.evaluation and (reduce := job.evaluation.reduce):
            reduced = ["--reduce", reduce, "--dim", str(job.evaluation.dim)]
            reduced += ["--seed", str(job.seed)] if reduce == "random" else []
            if reduce in FITTED:
                reduced += self._embed(job, folder, "train", images, "--fit")
        on_val = self._embed(job, folder, "val", images) if job.evaluation else []
        on_test = self._embed(job, folder, test.split, images)

        def score(files: Sequence[str], split: str, draw: bool, out: Path, *more: Any) -> None:
            draws = [] if draw else ["--draws", "0"]
            words = (*files, *draws, *images, "--split", split, *reduced, *more, "--out", out)
            self._script(folder, "validate.py", *words)

        index, draw = ("--index", test.index), job.study.intervals
        if job.evaluation:
            score(on_val, "val", False, report.with_name(f"val_{report.name}"), *index)
        if names := job.study.protocols:
            out = report.with_name(f"protocols_{report.name}")
            score(on_test, test.split, draw, out, "--protocol", *names)
        queries = ("--write-queries", report.with_suffix(".csv"))
        score(on_test, test.split, draw, report, *index, *queries)

    def _embed(
        self, job: Job, folder: Path, split: str, images: Sequence[str], option: str = ""
    ) -> list[str]:
        """Embed a split by the job's model, or those that it evaluates; return validate.py's arguments."""
        how, own = job.evaluation, job.config.data.workers
        workers = self.children.cores if own is None else own
        words: list[Any] = [*images, "--split", split, "--workers", workers]
        of_library: list[Any] = []
        if how:
            words += ["--layers", *how.layers] if how.layers else []
            words += _options({"pool": how.pool, "norm": how.norm})
            of_library = _options({"size-px": how.size_px, "fit": how.fit})
        files = []
        for number, (domain, name) in enumerate((how.each() if how else {"": folder}).items()):
            need, emb = job.needs.get(str(name)), folder / f"embedded_{split}_{number}.npz"
            model = self.folder(need) if need else expanded(str(name), "evaluate.models")
            more = of_library if ":" in str(model) else []  # embed.py refuses them for a folder
            self._script(folder, "embed.py", "--model", model, "--out", emb, *words, *more)
            files.append(f"{domain}={emb}" if domain else str(emb))
        if option or how is None or isinstance(how.models, str):
            return [option or "--embeddings", *files]
        return ["--specialists", *files, "--join", how.join]

    def _script(self, folder: Path, script: str, *words: object) -> None:
        self.children.run(SCRIPTS / script, words, Path(f"{folder}.log"))

    def _refuse_changed_code(self) -> None:
        if code_of() != self.code:
            wrong = "src/ was changed, or another commit checked out, since the study started"
            remedy = "run the same command again to run the other jobs with the current code"
            raise UserError(f"{wrong}; {remedy}")


def _options(values: Mapping[str, Any]) -> list[Any]:
    return [word for key, v in values.items() if v is not None for word in (f"--{key}", v)]
