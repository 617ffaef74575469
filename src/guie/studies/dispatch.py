"""Jobs that wait, and those under way: so many at once, each told as it ends, all ended together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from guie.studies.commands import Failed, Halted
from guie.studies.job import Job
from guie.studies.results import Record
from guie.training.interrupts import Cause, Interrupts

LOOK_S = 0.2

Do = Callable[[Job, int], Record]  # of a job, and its slot
Ended = Callable[[Job, Record | Failed], None]


def work_off(
    jobs: Sequence[Job],
    at_once: int,
    do: Do,
    ended: Ended,
    halt: Callable[[bool], Any],
    interrupts: Interrupts,
) -> bool:
    """Do the jobs, in their order; False where a signal ended that.

    Args:
        ended: hears of each job's end, in this thread.
        halt: makes jobs under way raise Halted soon; at once where it is handed True.

    Raises what `do` and `ended` do, but Failed, once all that is under way has ended.
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
    """End what is under way; what came to its end of itself is told all the same."""
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
