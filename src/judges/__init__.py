"""Evaluate a run with mteb, an external benchmark: its image tasks and its scoring code.

    >>> import mteb
    >>> from guie.models import open_model
    >>> from judges import RunEncoder
    >>> run = RunEncoder(open_model("runs/demo"))  # doctest: +SKIP
    >>> mteb.evaluate(run, mteb.get_tasks(tasks=["CUB200I2IRetrieval"]), num_proc=2)  # doctest: +SKIP

This needs the packages in requirements-judges.txt (`make judges` installs them). It is therefore not
part of `guie`, which needs only requirements.txt. Only judge.py imports it.
"""

from judges.encoder import RunEncoder
from judges.task import ManifestTask, public_tasks

__all__ = ["ManifestTask", "RunEncoder", "public_tasks"]
