"""Put several models side by side: an ensemble, whose embedding is theirs in one row.

python src/ensemble.py --models runs/h_soup runs/l_soup --out runs/both
python src/reduce.py --model runs/both --manifest input/mix.csv --dim 64 --out runs/both_64

Every command takes its folder as it takes a run's: to embed, to reduce, to export; none trains it.
With --manifest the R@1 and mMP@5 of the val split, of each model and of all, are printed and
recorded. The test split is not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.compose.derived import refuse_existing, write_run
from guie.data.manifest import load_manifest
from guie.evaluation.validation import validate_model
from guie.model import LoadedModel, open_model, side_by_side
from guie.model.weights import state_hash


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", nargs="+", required=True, help="run folders, or LIBRARY:NAME:TAG"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the ensemble")
    parser.add_argument("--manifest", help="whose val split scores members and ensemble")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Join, score, write; returns the ensemble's folder. Raises UserError where models do not fit."""
    args = parse_args(argv)
    if len(args.models) < 2:
        raise UserError("--models: takes two at least")
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_existing(args.out))
    manifest = load_manifest(args.manifest, args.root) if args.manifest else None
    if manifest:
        manifest.split("val")  # refused where there is none
    members = [open_model(source) for source in args.models]
    ensemble = side_by_side(members)
    scores = [
        validate_model(accelerator, model, manifest, args.workers) if manifest else None
        for model in (*members, ensemble)
    ]
    if accelerator.is_main_process:
        records = [record_of(*pair) for pair in zip(members, scores, strict=False)]
        record = {"manifest": args.manifest, "members": records}
        write_run(args.out, ensemble, None, scores[-1], ensemble=record)
        print(summary(args.out, members, ensemble, scores))
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return args.out


def record_of(model: LoadedModel, scores: dict[str, float] | None) -> dict[str, Any]:
    """For record.json: which model, its weights, its scores."""
    return {
        "model": model.source,
        "weights_sha256": state_hash(model.embedder.state_dict()),
        "val": scores,
    }


def summary(
    out: Path,
    members: Sequence[LoadedModel],
    ensemble: LoadedModel,
    scores: Sequence[dict[str, float] | None],
) -> str:
    """For the terminal: dimensions and scores, of each and of all."""
    lines = [f"{out}: {len(members)} models, {ensemble.embedder.dim} dimensions"]
    for model, own_scores in zip((*members, ensemble), scores, strict=True):
        name = "side by side" if model is ensemble else model.source
        if own_scores:
            r_at_1, mmp_at_5 = own_scores["val_r_at_1"], own_scores["val_mmp_at_5"]
            lines.append(
                f"  {name} ({model.embedder.dim}-D): val R@1 {r_at_1:.4f}, mMP@5 {mmp_at_5:.4f}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    errors.run(main)
