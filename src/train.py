"""Train an image embedding; the loop itself is in guie/training/loop.py.

python src/train.py --config configs/demo/train.yaml
python src/train.py --config configs/demo/train.yaml --set train.epochs=2 --set name=short
python src/train.py --config configs/demo/train.yaml --resume
accelerate launch --config_file configs/accelerate/ddp.yaml src/train.py --config configs/vit_h14.yaml

The last command trains on two GPUs; --num_processes 8 in front of src/train.py takes eight.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from guie.base import arguments, errors
from guie.config import RunConfig, load_config
from guie.config.training import refuse_untrainable


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--config", required=True, help="YAML file, see configs/")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key")
    add("--resume", action="store_true", help="resume from the last checkpoint")
    add("--overwrite", action="store_true", help="delete that run's files first")
    add("--drop-bad", action="store_true", help="skip images that cannot be decoded")
    add("--max-hours", type=_hours, metavar="H", help="save and exit after H hours, then --resume")
    arguments.add_check_content(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Train as configured; return the run folder."""
    args = parse_args(argv)
    arguments.set_environment(args)
    config = load_config(args.config, RunConfig, args.set)
    refuse_untrainable(config)
    # Imports torch, which takes seconds: --help and a refused config do not wait for it.
    from guie.training.loop import run_config

    return run_config(
        config,
        resume=args.resume,
        overwrite=args.overwrite,
        drop_bad=args.drop_bad,
        max_hours=args.max_hours,
    )


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 <= hours < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of hours, 0 or more")
    return hours


if __name__ == "__main__":
    errors.run(main)
