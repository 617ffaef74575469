"""Judges from outside: a run under mteb, its tasks of images and its code for scores.

    >>> import mteb
    >>> from guie.models import open_model
    >>> from judges import RunEncoder
    >>> run = RunEncoder(open_model("runs/demo"))  # doctest: +SKIP
    >>> mteb.evaluate(run, mteb.get_tasks(tasks=["CUB200I2IRetrieval"]), num_proc=2)  # doctest: +SKIP

This needs what requirements-judges.txt lists (`make judges` sets it up), so it is no room of `guie`, all
of which imports with requirements.txt alone; nothing but judge.py imports it.
"""

from judges.encoder import RunEncoder
from judges.task import ManifestTask, public_tasks

__all__ = ["ManifestTask", "RunEncoder", "public_tasks"]
