"""A run: its config, data, state, log and checkpoints."""

import math
import resource
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.base.files import write_json
from guie.config.losses import CustomConfig
from guie.config.training import RunConfig
from guie.data.dataset import classes_of, distinct_rows, rows_hash, training_rows
from guie.data.manifest import Manifest
from guie.models.opening import BEST
from guie.models.pretrained import sha256_of, weights_record
from guie.models.weights import PATTERN, read_metadata
from guie.rows.checks import STATE
from guie.training.checkpoint import Checkpoints, TrainState, check_identity
from guie.training.process_guard import ProcessGroupGuard
from guie.training.run_folder import (
    SUMMARY,
    RunLog,
    add_to_record,
    check_images,
    code_version,
    keep_classes,
    keep_images,
    read_record,
)


class Run:
    """A run: what is the same for all of its stages.

    Attributes: `rows`, the training rows of each stage; `images`, those of all stages; `classes`, of these;
    `state`, its progress.

    Args:
        folder: open and locked, see `open_run`.
        manifest: training and validation images.
        generic: retention's generic images, if any.

    Raises UserError if a stage has no training images.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        config: RunConfig,
        folder: Path,
        guard: ProcessGroupGuard,
        manifest: Manifest,
        generic: Manifest | None,
    ):
        self.accelerator, self.config, self.folder, self.guard = accelerator, config, folder, guard
        self.manifest, self.generic = manifest, generic
        rows_of = cache(partial(training_rows, manifest))  # most stages train on all domains
        wanted = (stage.domains for stage in config.stages)
        self.rows = [rows_of(None if names is None else tuple(names)) for names in wanted]
        self.images = distinct_rows(self.rows)
        self.classes = classes_of(self.images)
        for stage in config.stages if config.task.losses else ():
            own = [d for d in self.classes.domains if stage.domains is None or d in stage.domains]
            if len(own) < 2:
                accelerator.print(
                    f"warning: stage {stage.name} trains on one class, from which a loss on labels"
                    f" learns nothing; add classes to the train split of {manifest.path}"
                )
        self.checkpoints = Checkpoints(folder, config.keep_checkpoints)
        self.state = TrainState()

    def resume(self) -> dict[str, Any] | None:
        """Continue from the newest checkpoint, and return it; None if the run is new.

        Raises UserError if the data changed, or the pretrained weights that retention compares with.
        """
        self.began = time.monotonic()
        folder, main = self.folder, self.accelerator.is_main_process
        every = [*self.rows, self.generic.table] if self.generic else self.rows
        decode = "" if self.manifest.sidecar.decode == "seen" else " as host"
        self.identity = {"rows": rows_hash(every) + decode, "commit": code_version()}
        from_main(self.accelerator, lambda: keep_classes(folder, self.classes.labels))
        saved = self.checkpoints.load(warn=main)
        steps = gather_object([saved["state"].global_step if saved else 0])
        if len({*steps}) > 1:
            raise UserError(
                f"{folder}: the processes find checkpoints of steps {sorted({*steps})}; `out` must be on a"
                " disk that all machines share"
            )
        if saved:
            check_identity(saved["identity"], self.identity, folder, warn=main)
            known = self.config.retention and read_record(folder).get("weights")
            now = weights_record(self.config.model.backbone) if known else None
            if known and known["sha256"] != (now or {}).get("sha256"):
                raise UserError(
                    f"{folder}: retention uses {known['file']} with sha256 {known['sha256']}, and the"
                    " file has changed; restore the old one, or --overwrite the run"
                )
            from_main(self.accelerator, lambda: check_images(folder, self._image_states()))
            self.state = saved["state"]
        elif main:
            add_to_record(folder, **_inputs(self.config))
            keep_images(folder, self._image_states())
        self.log = RunLog(folder, self.accelerator, self.state.global_step, self.state.unscored)
        return saved

    def _image_states(self) -> pd.DataFrame | None:
        """Return the states of training, then generic images; None if they were not read."""
        sources = [self.images, *([self.generic.table] if self.generic else [])]
        found = [rows[["image_path", *STATE]] for rows in sources if {*STATE} <= {*rows}]
        return pd.concat(found, ignore_index=True) if found else None

    def finish(self, parameters: tuple[int, int]) -> dict[str, Any]:
        """Write the summary, once all models are written; return it. Only the main process calls it.

        Parameters are those of the last stage, trained and in total.
        """
        models = [read_metadata(self.folder / f"{stem}.safetensors") for stem in ("model", "last")]
        used = self.checkpoints.frozen() | {metadata.frozen for metadata in models if metadata}
        for file in self.folder.glob(PATTERN):  # frozen weights that no file needs any more
            if file.with_suffix(".safetensors").name not in used:
                file.unlink()
        trainable, total = parameters
        state, device = self.state, self.accelerator.device
        on_gpu = device.type == "cuda"
        memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        gpu_bytes = torch.cuda.max_memory_allocated(device) if on_gpu else 0
        summary = {
            "best": None
            if state.best_score is None
            else {"val_r_at_1": state.best_score, "step": state.best_step},
            "steps": state.global_step,
            "stopped_early": state.stopped_early,
            "seconds": round(time.monotonic() - self.began, 1),
            "device": torch.cuda.get_device_name(device) if on_gpu else device.type,
            "peak_memory_mb": math.ceil(memory_kb / 1024),  # without loader workers
            "peak_gpu_memory_mb": math.ceil(gpu_bytes / 2**20) if on_gpu else None,
            "classes": len(self.classes),
            "parameters": total,
            "trainable_parameters": trainable,
        }
        write_json(self.folder / SUMMARY, summary)
        return summary


def _inputs(config: RunConfig) -> dict[str, Any]:
    """Return the record of a run's initial weights, and the text of the user's own losses."""
    known: dict[str, Any] = {"weights": weights_record(config.model.backbone)}
    if config.start_from and (file := Path(config.start_from) / BEST).is_file():
        known["start"] = {"model": config.start_from, "sha256": sha256_of(file)}
    sources = {one.source for one in config.task.losses if isinstance(one, CustomConfig)}
    if sources:  # to read: nothing runs them
        files = {source.rpartition(":")[0] for source in sources}
        known["custom_losses"] = {file: Path(file).read_text("utf-8") for file in sorted(files)}
    return known
