"""Run folders that no training made: a soup, several models, a run with fewer dimensions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.config import RunConfig, load_config
from guie.config.ensemble import ENSEMBLE_FILE, EnsembleConfig
from guie.config.run import DataConfig
from guie.config.stages import LearningRates, StageConfig
from guie.model import LoadedModel, save_model, save_weights
from guie.training.run.folder import add_to_record, finish
from guie.training.run.record import write_record


def refuse_existing(out: Path) -> None:
    """Raise UserError if there is a run already."""
    if (out / "config.yaml").exists() or (out / ENSEMBLE_FILE).exists():
        raise UserError(f"{out}: holds a run already; remove it, or choose another --out")


def config_of(source: str, model: LoadedModel, manifest: str) -> RunConfig | EnsembleConfig:
    """The config of the run that a model is of; for a library's model one that trains nothing.

    Several models have their own.

    Args:
        source: as `open_model` takes it.
        model: what was made of it.
        manifest: what a library's model was adapted to.
    """
    if isinstance(model.config, EnsembleConfig):
        return model.config
    if Path(source).is_dir():
        return load_config(Path(source) / "config.yaml", RunConfig)
    stage = StageConfig(name="none", epochs=1, lr=LearningRates(classes=0.0))
    data = DataConfig(manifest=manifest)
    return RunConfig(name="derived", data=data, model=model.config, stages=[stage])


def write_run(
    out: Path,
    config: RunConfig | EnsembleConfig,
    model: LoadedModel,
    scores: dict[str, float] | None,
    **record: Any,
) -> None:
    """Write a run folder that all commands take: weights, config, record, scores.

    Args:
        config: of the run that it derives from; name and folder become those of `out`.
        scores: of the val split, as `guie.evaluation.validation` returns them; None: not validated.
        record: what `record.json` shall say besides.

    Raises:
        UserError: a name that no run can have, or a file that cannot be written.
    """
    weights = out / "model.safetensors"
    if isinstance(config, EnsembleConfig):
        save_weights(model.embedder.state_dict(), weights)
    else:
        config = _placed(config, out, model)
        save_model(model.embedder, weights, model.preprocess.size_px)
    if scores:
        line = {"step": 0, "stage": out.name, **scores}
        write_text(out / "metrics.jsonl", json.dumps(line, allow_nan=False) + "\n")
    write_record(out, config)
    add_to_record(out, **record)
    best = {"val_r_at_1": scores["val_r_at_1"], "step": 0} if scores else None
    finish(out, {"best": best, "steps": 0})


def _placed(config: RunConfig, out: Path, model: LoadedModel) -> RunConfig:
    place = {"name": out.name, "out": str(out.parent), "model": model.config.model_dump()}
    try:
        return RunConfig.model_validate(config.model_dump() | place)
    except ValidationError:
        raise UserError(f"{out}: a run's name is of letters, digits, '_', '.' and '-'") from None
