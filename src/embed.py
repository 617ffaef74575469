"""Embed the images of a manifest with a run, a submission, or any open_clip or timm model.

python src/embed.py --model runs/demo --manifest input/mix_demo.csv --out runs/demo/E.npz
python src/embed.py --model submissions/demo/submission.zip --manifest M --out E.npz
python src/embed.py --model open_clip:ViT-B-32:openai --split test --manifest M --out E.npz
python src/embed.py --model runs/demo --manifest M --out E.parquet
python src/embed.py --model runs/demo --manifest M --out E.parquet --shard 2/8
python src/embed.py --model runs/demo --manifest M --out E.parquet --missing 8
python src/embed.py --model runs/demo --layers blocks.9 --pool max --manifest M --out E.npz
python src/embed.py --model runs/demo --manifest M --boxes input/revisited.boxes.csv --out E.npz
accelerate launch --config_file configs/accelerate/ddp.yaml src/embed.py --model R --manifest M --out E.npz

The last command embeds on two GPUs; --num_processes 8 in front of src/embed.py takes eight.
R is a run, M a manifest made by curate.py; configs/mixes/revisited.yaml makes one with boxes.
Computed rows stay in E.npz.rows, or in `--store DIR`. So the same command resumes after a stop, and embeds
only the new images of a manifest that has grown. `--shard 2/8` computes only the third eighth of them, as
one of eight jobs; the command without it writes the file. `--missing 8` prints which of the eight lack rows.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guie.base import arguments
from guie.base.errors import UserError, run
from guie.base.files import refuse_missing, refuse_replacing, replacing, save_arrays
from guie.config.model import LayersConfig
from guie.data.shards.storage import as_path, shown, url_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from accelerate import Accelerator

    from guie.data.manifest import Manifest
    from guie.evaluation.opened import EmbeddingModel
    from guie.rows.embedding import Check, FileEmbeddings
    from guie.rows.store import Rows

SPLITS = ("train", "val", "test")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="run folder, your own submission.zip or LIBRARY:NAME:TAG")
    add("--manifest", required=True, help="CSV or Parquet")
    add("--root", help="folder of the images; default: the manifest's")
    add("--split", choices=SPLITS, help="train, val or test; default: every image of the manifest")
    words = "E.npz: arrays image_path and embedding; E.parquet: columns, also of label and domain"
    add("--out", required=True, help=words)
    add("--store", metavar="DIR", help="folder of computed rows (default: <out>.rows)")
    add_part = parser.add_mutually_exclusive_group().add_argument
    shard, words = arguments.shard, "only part N of M, counted from 0"
    add_part("--shard", type=shard, metavar="N/M", help=words)
    words = "print which of M parts lack rows, such as 3,17"
    add_part("--missing", type=arguments.count, metavar="M", help=words)
    add("--size-px", type=arguments.count, help="image size of a library's model")
    add("--fit", choices=("squash", "pad", "crop"), help="of a library's model (default: squash)")
    add("--layers", nargs="+", metavar="NAME", help="backbone layers to embed, not the output")
    add("--pool", choices=("avg", "max", "gem", "token"), help="pooling of --layers (default: avg)")
    add("--norm", choices=("before", "after"), help="side of the final norm (default: before)")
    add("--batch-size", type=arguments.count, default=128, help="images per process and step")
    add("--workers", type=int, help="loader processes per process; default: its share of the cores")
    add("--precision", choices=arguments.PRECISIONS, help=arguments.PRECISION_HELP)
    words = "CSV image_path, x1_px, y1_px, x2_px, y2_px: crop images to these boxes first"
    add("--boxes", metavar="FILE", help=words)
    words = "CSV image_path (the text's name), text, label, domain: also embed texts, by CLIP"
    add("--texts", metavar="FILE", help=words)
    add("--drop-bad", action="store_true", help="skip the images that cannot be decoded")
    arguments.add_engine(parser)
    arguments.add_check_content(parser)
    args = parser.parse_args(argv)
    if args.workers is not None and args.workers < 0:
        parser.error(f"--workers {args.workers}: must be 0 or more")
    for name in ("pool", "norm"):
        if getattr(args, name) and not args.layers:
            parser.error(f"--{name}: needs --layers; leave it out")
    if (args.size_px or args.fit) and ":" not in args.model:
        parser.error("--size-px and --fit: need a model LIBRARY:NAME:TAG; others have their own")
    return args


def main(argv: Sequence[str] | None = None) -> Path:
    """Open, find out what is missing, fill it, and write; return the path written."""
    args = parse_args(argv)
    arguments.set_environment(args)
    out = as_path(args.out)
    shard = "-of-".join(map(str, args.shard)) if args.shard else ""
    list_name = f"{out.name}.{shard}.dropped.csv" if shard else f"{out.name}.dropped.csv"
    if not url_of(out):
        inputs = [args.manifest, args.model, args.boxes, args.texts]
        refuse_replacing([out, out.with_name(list_name)], inputs)
    refuse_missing([args.manifest, args.boxes, args.texts])
    # Imported here, so that the help and refusals come at once.
    from guie.base.devices import from_main, make_accelerator
    from guie.base.slow_bf16 import float32_products
    from guie.data.shards.storage import written
    from guie.evaluation.opened import embed_texts, embedding_precision
    from guie.rows.checks import differing, readable
    from guie.training.process_guard import Interrupts, ProcessGroupGuard

    precision = embedding_precision(args.model, args.precision)
    interrupts, accelerator = Interrupts(), make_accelerator(mixed_precision=precision)
    with (
        written(out) as local,
        float32_products(accelerator),
        ProcessGroupGuard(accelerator, interrupts) as guard,
    ):
        job = open_job(args, accelerator, precision, local.parent, guard.check)
        opened, manifest, embeddings_without = job
        texts_TD = from_main(accelerator, partial(embed_texts, args.texts, opened))
        if args.missing:
            embeddings = embeddings_without(set())
            open_parts = from_main(accelerator, partial(embeddings.missing_parts, args.missing))
            accelerator.print(",".join(map(str, open_parts)))
            return out
        drop, dropped = args.drop_bad, local.with_name(list_name)
        check = partial(readable, accelerator, splits=SPLITS, drop_bad=drop, dropped=dropped)
        with interrupts:
            embeddings, new, bad = fill_readable(args, manifest, embeddings_without, check)
        if line := differing(embeddings.differences(new), len(embeddings.states)):
            accelerator.print(f"{args.manifest}: {line}", file=sys.stderr)
        if args.shard:
            folder = shown(embeddings.store.folder)
            accelerator.print(f"{folder}: {len(new):,} new images of part {shard}")
        elif accelerator.is_main_process:
            rows = embeddings.rows()
            kept = manifest.table[~manifest.table["image_path"].isin(bad)]
            write(local, kept, rows, args.texts, texts_TD)
            of_texts = f" and {len(texts_TD)} texts" if len(texts_TD) else ""
            count = f"{len(rows):,} images ({len(new):,} new){of_texts}"
            print(f"{shown(out)}: {count}, {rows.shape[1]} dimensions")
        # All processes exit together: one that outlives its process group aborts at exit.
        accelerator.wait_for_everyone()
        accelerator.end_training()
    return out


def open_job(
    args: argparse.Namespace,
    accelerator: Accelerator,
    precision: str | None,
    folder: Path,
    check: Check,
) -> tuple[EmbeddingModel, Manifest, Callable[[set[str]], FileEmbeddings]]:
    """Open the model and the manifest; the third result gives the embeddings but those of some paths.

    It raises UserError if another image cannot be read.
    """
    import numpy as np

    from guie.base.devices import from_main
    from guie.data.manifest import load_manifest
    from guie.data.manifest.companions import boxes_of, read_boxes
    from guie.evaluation.opened import load_embedding_model, open_in_actor
    from guie.rows.embedding import FileEmbeddings
    from guie.rows.store import Store

    given = {key: getattr(args, key) for key in ("pool", "norm") if getattr(args, key)}
    layers = LayersConfig(of=args.layers, **given) if args.layers else None
    settings = args.size_px, args.fit or "squash", args.batch_size, layers
    opened = load_embedding_model(args.model, accelerator, folder, *settings)
    model = os.path.abspath(args.model) if os.path.exists(args.model) else args.model
    reopen = partial(open_in_actor, precision, model, folder.absolute(), *settings)
    manifest = load_manifest(args.manifest, args.root)
    table = manifest.split(args.split) if args.split else manifest.table
    paths = table["image_path"].drop_duplicates().to_numpy(str)
    box_table = read_boxes(Path(args.boxes), {*paths}) if args.boxes else None
    out = as_path(args.out)
    store = Store(args.store or out.with_name(f"{out.name}.rows"), opened.recipe, np.float32)

    def embeddings_without(bad: set[str]) -> FileEmbeddings:
        boxes = None
        if box_table is not None:
            good = box_table[~box_table["image_path"].isin(bad)]
            decode = manifest.sidecar.decode
            find = partial(boxes_of, Path(args.boxes), good, manifest.root, paths, decode)
            boxes = from_main(accelerator, find)
        return FileEmbeddings(
            store,
            accelerator,
            opened.embedder,
            opened.preprocess,
            manifest.root,
            paths,
            boxes,
            manifest.sidecar.decode,
            without=np.flatnonzero(np.isin(paths, [*bad])),
            opens=reopen,
            batch_size=opened.batch_size,
            workers=args.workers,
            check=check,
        )

    return opened, replace(manifest, table=table), embeddings_without


def fill_readable(
    args: argparse.Namespace,
    manifest: Manifest,
    embeddings_without: Callable[[set[str]], FileEmbeddings],
    check: Callable[[Manifest], Manifest],
) -> tuple[FileEmbeddings, np.ndarray, set[str]]:
    """Embed a manifest's images, each decoded once.

    Only if an image cannot be read does `check` decode all of them. It lists the bad ones in an error, or
    drops them. An index of shards records which images were decoded before, so its check is quick and first.

    Returns the embeddings, the positions of new ones, and the image paths that `check` dropped.
    """
    from guie.data.shards.index import is_index
    from guie.training.process_guard import Cause, Stopped

    def unusable() -> set[str]:
        return {*manifest.table["image_path"]} - {*check(manifest).table["image_path"]}

    bad = unusable() if is_index(manifest.path) else set()
    while True:
        try:
            embeddings = embeddings_without(bad)
            return embeddings, embeddings.fill(part=args.shard or (0, 1)), bad
        except (UserError, Stopped) as fault:
            if isinstance(fault, Stopped) and fault.cause != Cause.FAULT:
                kept = "computed rows are kept, and the same command resumes"
                embeddings.accelerator.print(f"{shown(as_path(args.out))}: stopped; {kept}")
                raise
            found = unusable() - bad
            if not found:  # the fault is no image's
                raise
            bad |= found


def write(
    out: Path, table: pd.DataFrame, rows: Rows, texts: str | None, texts_TD: np.ndarray
) -> None:
    """Write the embeddings of a manifest's images, then those of the texts, as Parquet or npz."""
    import numpy as np
    import pandas as pd

    from guie.data.manifest.companions import read_companion
    from guie.evaluation.files import write_parquet

    about = table.drop_duplicates("image_path")
    if texts:
        about = pd.concat([about, read_companion(Path(texts), "texts")])
    if out.suffix == ".parquet":
        write_parquet(out, about, [rows, texts_TD])
        return
    embeddings = np.concatenate([rows, texts_TD]) if len(texts_TD) else rows
    with replacing(out) as temporary:
        paths = about["image_path"].to_numpy(str)
        save_arrays(temporary, image_path=paths, embedding=embeddings)


if __name__ == "__main__":
    run(main)
