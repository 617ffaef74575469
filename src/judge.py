"""Evaluate a model with mteb: on its image retrieval tasks, or on a split of your own manifest.

python src/judge.py --model runs/demo --tasks CUB200I2IRetrieval SOPI2IRetrieval --out runs/demo/mteb
python src/judge.py --model runs/demo --manifest input/mix_demo.csv --split test --out runs/demo/mteb

mteb is not in requirements.txt; `make judges` installs it into .venv-judges. Public tasks are
downloaded, and their scores are cached in --out by the model's weights. A manifest is scored again
each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import arguments, errors
from guie.base.errors import UserError
from guie.base.files import refuse_no_folder

SHOWN = ("hit_rate_at_1", "map_at_5", "ndcg_at_10")  # the main metrics of these tasks


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="run folder or LIBRARY:NAME:TAG")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--tasks", nargs="+", metavar="NAME", help="mteb tasks")
    asked.add_argument("--manifest", help="CSV or Parquet")
    parser.add_argument("--split", choices=("val", "test"), default="test", help="manifest split")
    parser.add_argument("--root", help="folder of its images; default: the manifest's")
    parser.add_argument("--batch-size", type=arguments.count, default=128, help="images per step")
    parser.add_argument("--workers", type=int, default=2, help="loader processes")
    parser.add_argument("--out", required=True, help="folder of mteb's results")
    args = parser.parse_args(argv)
    if args.workers < 0:
        parser.error(f"--workers {args.workers}: must be 0 or more")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Let mteb score the model, on its own tasks or on a manifest."""
    args = parse_args(argv)
    refuse_no_folder(Path(args.out))
    try:
        import mteb

        from judges import ManifestTask, RunEncoder, public_tasks
    except ModuleNotFoundError as error:
        raise UserError(f"no module {error.name}: run by .venv-judges (make judges)") from error
    # Imported here, so that the help and refusals come at once.
    from guie.data.manifest import load_manifest
    from guie.models import open_model

    if args.manifest:
        tasks = [ManifestTask(load_manifest(args.manifest, args.root), args.split)]
    else:
        tasks = public_tasks(args.tasks)
    try:
        scored = mteb.evaluate(
            RunEncoder(open_model(args.model)),
            tasks,
            encode_kwargs={"batch_size": args.batch_size},
            cache=mteb.ResultCache(args.out),
            overwrite_strategy="always" if args.manifest else "only-missing",
            num_proc=args.workers or None,
        )
    except ConnectionError as error:
        raise UserError(f"--tasks: {error}") from error
    for result in scored.task_results:
        for split, (row, *_) in result.scores.items():
            message = ", ".join(f"{metric} {row[metric]:.4f}" for metric in SHOWN)
            print(f"{result.task_name} {split}: {message}")


if __name__ == "__main__":
    errors.run(main)
