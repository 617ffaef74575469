"""Validate during training: the merged val index, with the preprocessing that is exported."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.data.manifest import Manifest
from guie.evaluation.embedding import Check, embed_files, raise_fault
from guie.evaluation.frozen import FrozenData, embed_rows
from guie.evaluation.protocols.evaluating import QUICK, quick_scores
from guie.evaluation.protocols.retrieval import refuse_unanswerable
from guie.models import LoadedModel
from guie.models.embedder import Embedder
from guie.models.ensemble import Ensemble
from guie.models.views import AnyPreprocess


def refuse_unscorable(manifest: Manifest) -> None:
    """Raise UserError if no val query has a positive, so that `validate` would fail for any model."""
    rows = manifest.table[manifest.table["split"] == "val"]
    if rows.empty:
        return
    try:
        refuse_unanswerable(QUICK, rows)
    except UserError as error:
        raise UserError(f"{manifest.path}: split val: {error}") from None


def validate(
    accelerator: Accelerator,
    embedder: Embedder | Ensemble,
    manifest: Manifest,
    preprocess: AnyPreprocess,
    workers: int,
    frozen: FrozenData | None = None,
    check: Check = raise_fault,
) -> dict[str, float] | None:
    """Return R@1 and mMP@5, means over domains, and R@1 of each domain, the same in every process.

    With the data of a frozen stage, only the head runs, on cached features of the val images. Keys are
    those of metrics.jsonl: `val_r_at_1`, `val_mmp_at_5`, `val_r_at_1/<domain>`. Returns None if the
    manifest has no val split. For `check` see `embed_blocks`.
    """
    if "val" not in manifest.table["split"].unique():
        return None
    rows = manifest.split("val")
    if frozen:
        # A stage trains one model, and `frozen` was made from the same manifest.
        assert isinstance(embedder, Embedder) and frozen.val is not None
        emb_ND = embed_rows(accelerator, embedder, frozen.val)
    else:
        files = [manifest.file(path) for path in rows["image_path"]]
        emb_ND = embed_files(
            accelerator, embedder, preprocess, files, workers=workers, title="val", check=check
        )
    return flat_scores(from_main(accelerator, lambda: quick_scores(emb_ND, rows)))


def validate_model(
    accelerator: Accelerator, model: LoadedModel, manifest: Manifest, workers: int
) -> dict[str, float] | None:
    """Run `validate` for a loaded model, which moves to this process's device."""
    embedder = model.embedder.to(accelerator.device)
    return validate(accelerator, embedder, manifest, model.preprocess, workers)


def flat_scores(scores: dict[str, Any]) -> dict[str, float]:
    """Return means, and R@1 of each domain, by the keys of metrics.jsonl."""
    flat = {f"val_{key}": scores[key] for key in ("r_at_1", "mmp_at_5")}
    for domain, values in scores["domains"].items():
        flat[f"val_r_at_1/{domain}"] = values["r_at_1"]
    return flat
