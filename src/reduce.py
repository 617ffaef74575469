"""Reduce a model's embedding to its principal components: a run with fewer dimensions.

python src/reduce.py --model runs/w6 --manifest input/mix.csv --dim 64 --out runs/w6_64
python src/reduce.py --model open_clip:ViT-H-14:laion2b_s32b_b79k --manifest input/mix.csv \\
    --dim 64 --whiten --out runs/vit_h14_pca
python src/reduce.py --model open_clip:ViT-H-14:laion2b_s32b_b79k --manifest input/mix.csv \\
    --dim 64 --texts words.txt --out runs/vit_h14_words

Fitted on images of the manifest's train split, as many of each domain; or on texts, a line each,
which needs no image of the domains (the challenge's 4th place). R@1 and mMP@5 of the val split,
before and after, are printed and recorded. The test split is not looked at.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.compose.derived import refuse_existing, run_of, write_run
from guie.compose.pca import reduced
from guie.config.zero_shot import ClipConfig
from guie.data.manifest import Manifest, load_manifest
from guie.evaluation.components import balanced_sample, fit_components
from guie.evaluation.extract import embed_files
from guie.evaluation.text import class_texts
from guie.evaluation.validation import validate_model
from guie.model import LoadedModel, open_model
from guie.model.weights import sha256_of, state_hash


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="run folder or LIBRARY:NAME:TAG")
    parser.add_argument("--manifest", required=True, help="CSV or Parquet")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument("--split", choices=("train", "val"), default="train", help="to fit on")
    parser.add_argument("--texts", type=Path, help="fit on the lines of this file instead")
    parser.add_argument("--dim", type=int, default=64, help="dimensions wanted (default: 64)")
    parser.add_argument("--whiten", action="store_true", help="give all the same variance")
    parser.add_argument(
        "--per-domain", type=int, default=9000, help="images of each domain at most (default: 9000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice of images")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new run")
    parser.add_argument("--batch-size", type=int, default=128, help="images per process and step")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Fit, score, write; returns the new run's folder. Raises UserError where nothing fits."""
    args = parse_args(argv)
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_existing(args.out))
    manifest = load_manifest(args.manifest, args.root)
    model = open_model(args.model)
    model.embedder.to(accelerator.device)  # images are embedded before it is scored
    if args.texts:
        emb_ND, basis = from_main(accelerator, lambda: embeddings_of_texts(args.model, args.texts))
    else:
        emb_ND, basis = embeddings_of_images(args, model, manifest, accelerator)
    components = from_main(accelerator, lambda: fit_components(emb_ND, args.dim, args.whiten))
    small = reduced(model, components)
    before, after = (
        validate_model(accelerator, one, manifest, args.workers) for one in (model, small)
    )
    if accelerator.is_main_process:
        record = {
            "model": args.model,
            "weights_sha256": state_hash(model.embedder.state_dict()),
            "fitted_on": basis,
            "whiten": args.whiten,
            "explained_variance": components.share_R.tolist(),
            "val_before": before,
            "val_after": after,
        }
        run = run_of(small.members[0], args.manifest)
        write_run(args.out, small, run, after, reduction=record)
        print(summary(args.out, model, small, record))
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return args.out


def embeddings_of_images(
    args: argparse.Namespace, model: LoadedModel, manifest: Manifest, accelerator: Accelerator
) -> tuple[np.ndarray, dict[str, Any]]:
    """Embeddings of the images to fit on, and which they are."""
    sample = balanced_sample(manifest.split(args.split), args.per_domain, args.seed)
    emb_ND = embed_files(
        accelerator,
        model.embedder,
        model.preprocess,
        [manifest.file(path) for path in sample["image_path"]],
        batch_size=args.batch_size,
        workers=args.workers,
    )
    basis = {"manifest": args.manifest, "split": args.split, "seed": args.seed}
    return emb_ND, basis | {"images": sample["domain"].value_counts().sort_index().to_dict()}


def embeddings_of_texts(model: str, file: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Embeddings of a file's lines by a CLIP's text tower. Raises UserError for any other model."""
    if not re.fullmatch(r"open_clip:[^:]+:.+", model):
        raise UserError(f"--texts: {model} reads no texts; give --model open_clip:NAME:TAG")
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    words = sorted({line.strip() for line in lines if line.strip()})
    if not words:
        raise UserError(f"{file}: holds no texts; write one a line")
    texts = class_texts(ClipConfig(model=model), {word: [word] for word in words})
    return texts.emb_CD, {"texts": str(file), "sha256": sha256_of(file), "lines": len(words)}


def summary(out: Path, model: LoadedModel, small: LoadedModel, record: dict[str, Any]) -> str:
    """For the terminal: dimensions, variance, scores."""
    explained = sum(record["explained_variance"])
    lines = [
        f"{out}: {model.embedder.dim} -> {small.embedder.dim} dimensions, which explain"
        f" {explained:.1%} of the variance"
    ]
    for when in ("before", "after"):
        scores = record[f"val_{when}"]
        if scores:
            r_at_1, mmp_at_5 = scores["val_r_at_1"], scores["val_mmp_at_5"]
            lines.append(f"  {when:6} val R@1 {r_at_1:.4f}, mMP@5 {mmp_at_5:.4f}")
    return "\n".join(lines)


if __name__ == "__main__":
    errors.run(main)
