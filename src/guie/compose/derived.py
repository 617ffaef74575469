"""Write the folder of a model that was made of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.config import RunConfig
from guie.config.composition import FILES, CompositionConfig, MemberConfig
from guie.config.run import DataConfig
from guie.config.stages import LearningRates, StageConfig
from guie.model import LoadedModel, save_model, save_weights
from guie.model.embedder import Embedder
from guie.model.loading import BEST, RUN_FILE
from guie.training.run.folder import add_to_record, finish, refuse_foreign
from guie.training.run.record import METRICS_FILE, begin_record, write_record


def refuse_existing(out: Path) -> None:
    """Raise UserError if there is a run already, or a file that is not ours and would be replaced."""
    if any((out / name).exists() for name in (RUN_FILE, *FILES)):
        raise UserError(f"{out}: holds a model already; remove it, or choose another name")
    refuse_foreign(out)


def run_of(member: MemberConfig, manifest: str) -> RunConfig:
    """The run that trained a member; for a library's model, one that trains nothing.

    Args:
        manifest: what a library's model was adapted to.
    """
    if member.run:
        return member.run
    stage = StageConfig(name="none", epochs=1, lr=LearningRates(classes=0.0))
    data = DataConfig(manifest=manifest)
    return RunConfig(name="derived", data=data, model=member.model, stages=[stage])


def write_run(
    out: Path, model: LoadedModel, manifest: str, scores: dict[str, float] | None, **record: Any
) -> None:
    """Write a folder that `open_model` reads: weights, config, record, scores.

    Args:
        manifest: what a library's model was adapted to.
        scores: of the val split, as `guie.evaluation.validation` returns them; None: not validated.
        record: what `record.json` shall say besides.

    Raises:
        UserError: a name that no run can have, or a file that cannot be written.
    """
    begin_record(out)  # first: what a kill leaves behind is ours, and the next try may replace it
    part = model.self_contained()
    if isinstance(part, MemberConfig):
        config: RunConfig | CompositionConfig = _derived(part, manifest, out)
        save_model(cast(Embedder, model.embedder), out / BEST, model.preprocess.size_px)
    else:
        config = part
        save_weights(model.embedder.state_dict(), out / BEST)
    if scores:
        line = {"step": 0, "stage": out.name, **scores}
        write_text(out / METRICS_FILE, json.dumps(line, allow_nan=False) + "\n")
    write_record(out, config)
    add_to_record(out, **record)
    best = {"val_r_at_1": scores["val_r_at_1"], "step": 0} if scores else None
    finish(out, {"best": best, "steps": 0})


def _derived(part: MemberConfig, manifest: str, out: Path) -> RunConfig:
    """The run's config with the model and place of the derived one."""
    changed = {"name": out.name, "out": str(out.parent), "model": part.model.model_dump()}
    try:
        return RunConfig.model_validate(run_of(part, manifest).model_dump() | changed)
    except ValidationError:
        raise UserError(f"{out}: a run's name is of letters, digits, '_', '.' and '-'") from None
