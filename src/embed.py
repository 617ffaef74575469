"""Embed the images of a manifest with a run, a submission, or any open_clip or timm model.

accelerate launch src/embed.py --model runs/demo --manifest input/mix_demo.csv --out E.npz
accelerate launch src/embed.py --model submissions/demo/submission.zip --manifest M --out E.npz
accelerate launch src/embed.py --model open_clip:ViT-B-32:openai --split test --manifest M --out E.npz
accelerate launch src/embed.py --model runs/demo --layers blocks.9 --pool max --manifest M --out E.npz
accelerate launch src/embed.py --model runs/demo --manifest oxford.csv --boxes oxford.boxes.csv --out E.npz

Partial results are kept in E.npz.parts next to E.npz; the same command resumes after a stop.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accelerate import Accelerator

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.base.files import refuse_replacing, replacing, save_arrays
from guie.config.model import LayersConfig
from guie.data.image_checks.decoding import TO_EMBED, absolute, readable
from guie.data.manifest import Manifest, load_manifest, read_companion
from guie.data.manifest.companions import Box, boxes_of, read_boxes
from guie.evaluation.embedding import Check
from guie.evaluation.feature_cache import FeatureCache, Features, embed_into
from guie.evaluation.opened import EmbeddingModel, load_embedding_model
from guie.evaluation.text import embed_texts
from guie.training.distributed import Interrupts, ProcessGroupGuard, Stopped

SPLITS = ("train", "val", "test")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="run folder, submission.zip or LIBRARY:NAME:TAG"
    )
    parser.add_argument("--manifest", required=True, help="CSV or Parquet")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument(
        "--split", choices=SPLITS, help="train, val or test; default: every image of the manifest"
    )
    parser.add_argument("--out", required=True, help="E.npz: arrays image_path and embedding")
    parser.add_argument("--size-px", type=int, help="image size of a library's model")
    parser.add_argument("--fit", choices=("squash", "pad", "crop"), default="squash")
    parser.add_argument(
        "--layers", nargs="+", metavar="NAME", help="backbone layers to embed, not the output"
    )
    parser.add_argument(
        "--pool", choices=("avg", "max", "gem", "token"), default="avg", help="pooling of --layers"
    )
    parser.add_argument("--batch-size", type=int, default=128, help="images per process and step")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    parser.add_argument(
        "--boxes",
        metavar="FILE",
        help="CSV image_path, x1_px, y1_px, x2_px, y2_px: crop images to these boxes first",
    )
    parser.add_argument(
        "--texts",
        metavar="FILE",
        help="CSV image_path (the text's name), text, label, domain: also embed texts, by CLIP",
    )
    parser.add_argument(
        "--drop-bad", action="store_true", help="skip the images that cannot be decoded"
    )
    args = parser.parse_args(argv)
    for name, least in {"size_px": 1, "batch_size": 1, "workers": 0}.items():
        if (number := getattr(args, name)) is not None and number < least:
            parser.error(f"--{name.replace('_', '-')} {number}: must be {least} or more")
    return args


def main(argv: Sequence[str] | None = None) -> Path:
    """Embed, and return the path written."""
    args = parse_args(argv)
    out, interrupts = Path(args.out), Interrupts()
    dropped = out.with_name(f"{out.name}.dropped.csv")
    refuse_replacing([out, dropped], [args.manifest, args.model, args.boxes, args.texts])
    accelerator = make_accelerator()
    with ProcessGroupGuard(accelerator, interrupts) as guard:
        layers = LayersConfig(of=args.layers, pool=args.pool) if args.layers else None
        opened = load_embedding_model(
            args.model, accelerator, out.parent, args.size_px, args.fit, args.batch_size, layers
        )
        names, texts_TD = from_main(accelerator, partial(embed_queries, args.texts, opened))
        manifest = load_manifest(args.manifest, args.root)
        crop = crops_by(args.boxes, manifest)
        splits = [args.split] if args.split else SPLITS
        look = partial(readable, accelerator, fallback=out.parent, decoders=TO_EMBED)
        manifest = look(manifest, splits, drop_bad=args.drop_bad, dropped=dropped)
        table = manifest.split(args.split) if args.split else manifest.table
        paths = table["image_path"].drop_duplicates().to_numpy(str)
        files, boxes = absolute(manifest.root, paths), from_main(accelerator, partial(crop, paths))
        cache = FeatureCache(parts_of(out), opened.recipe, np.float32)
        with interrupts:
            states = embed(cache, accelerator, opened, files, boxes, out, args.workers, guard.check)
        if accelerator.is_main_process:
            features = cache.open(states, opened.embedder.dim)
            write(out, np.append(paths, names), features, texts_TD)
        # All processes exit together: one that outlives its process group aborts at exit.
        accelerator.wait_for_everyone()
        accelerator.end_training()
    return out


def embed(
    cache: FeatureCache,
    accelerator: Accelerator,
    opened: EmbeddingModel,
    files: Sequence[str],
    boxes: Sequence[Box | None],
    out: Path,
    workers: int,
    check: Check,
) -> pd.DataFrame:
    """Embed into the cache, resuming an earlier run; return the states that open the rows."""
    made_by = (accelerator, opened.embedder, opened.preprocess)
    settings: dict[str, Any] = {"batch_size": opened.batch_size, "workers": workers, "check": check}
    try:
        return embed_into(cache, *made_by, files, boxes, **settings)
    except Stopped:
        accelerator.print(f"{out}: stopped; partial results are kept, and the same command resumes")
        raise


def embed_queries(path: str | None, opened: EmbeddingModel) -> tuple[np.ndarray, np.ndarray]:
    """Return names and embeddings of the texts in a file, empty without a file. Raises UserError."""
    if path is None:
        return np.array([], str), np.zeros((0, opened.embedder.dim), np.float32)
    if opened.model is None:
        raise UserError(
            "--texts: a submission takes only images; give the run that it was made from"
        )
    texts = read_companion(Path(path), "texts")
    return texts["image_path"].to_numpy(str), embed_texts(opened.model, texts["text"].tolist())


def write(out: Path, names: np.ndarray, emb_ND: Features, texts_TD: np.ndarray) -> None:
    """Write `out`, images before texts, and delete its partial results."""
    rows = np.concatenate([np.asarray(emb_ND), texts_TD]) if len(texts_TD) else emb_ND
    with replacing(out) as temporary:
        save_arrays(temporary, image_path=names, embedding=rows)
    for recipe in parts_of(out).glob("*/model.json"):  # other files in the folder stay
        shutil.rmtree(recipe.parent, ignore_errors=True)
    with suppress(OSError):
        parts_of(out).rmdir()
    message = f" and {len(texts_TD)} texts" if len(texts_TD) else ""
    print(f"{out}: {emb_ND.shape[0]} images{message}, {emb_ND.shape[1]} dimensions")


def crops_by(path: str | None, manifest: Manifest) -> Callable[[Sequence[str]], list[Box | None]]:
    """Return a function from image paths to the boxes in a file. Both raise UserError."""
    if path is None:
        return lambda images: [None] * len(images)
    boxes = read_boxes(Path(path), set(manifest.table["image_path"]))
    return partial(boxes_of, Path(path), boxes, manifest.root)


def parts_of(out: Path) -> Path:
    """Return the folder of partial results of `out`."""
    return out.with_name(f"{out.name}.parts")


if __name__ == "__main__":
    errors.run(main)
