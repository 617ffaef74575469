"""What the runs of a study share: one look at their images, the machine's cores and cards."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from guie.config.base import expanded
from guie.data.looks.decoded import decoded_folder
from guie.data.looks.precheck import find_unreadable
from guie.data.manifest import load_manifest
from guie.studies.job import Job


def look_at_images(jobs: Iterable[Job], out: Path) -> None:
    """Decode every image of the manifests once; runs that begin together would each do so.

    What cannot be decoded is left to the runs to tell.

    Args:
        out: folder of the runs, which remember there what they have decoded, if not by the manifest.

    Raises UserError where a manifest is not there, or not in order.
    """
    named = {(job.config.data.manifest, job.config.data.root) for job in jobs}
    named |= {(job.test.manifest, job.test.root) for job in jobs if job.test.manifest}
    for name, root in sorted(named, key=str):
        folder = expanded(root, "data.root") if root else None
        manifest = load_manifest(expanded(name, "data.manifest"), folder)
        cache, workers = decoded_folder(manifest.path, out), os.cpu_count() or 1
        find_unreadable(manifest.table, manifest.root, cache, workers)


def threads_of_each(jobs: int) -> int:
    """Cores that each of so many jobs at once may use, or what OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() else max(1, (os.cpu_count() or 1) // jobs)


def gpus() -> list[str]:
    """The cards to take turns with, as CUDA_VISIBLE_DEVICES has them; empty where there is one or none."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names if count > 1 else []
