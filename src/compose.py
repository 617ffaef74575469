"""Make one model of several, or of several views of one: a folder that every command takes as a run's.

python src/compose.py --config configs/compose/winner_4.yaml
python src/compose.py --config configs/compose/soup.yaml --set name=ab --set 'members=[runs/a, runs/b]'

A config says members, how they are joined (soup, heads, average, side_by_side), what they see of an
image (views) and what follows (reduce); configs/compose/ has one of each, guie/config/ensemble.py all
keys. With `val` the R@1 and mMP@5 of that val split, of each member and of all, are printed and
recorded. What is fitted is fitted on the train or val split; the test split is not looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.config import load_config
from guie.config.ensemble import ComposeConfig
from guie.ensembles.joining import EnsembleResult, make, refuse_existing, summary, write_run
from guie.ensembles.samples import Fits


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="YAML; see configs/compose/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, e.g. reduce.dim=32; may be repeated",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Compose, score, write; returns the new folder. Raises UserError where nothing fits."""
    args = parse_args(argv)
    config = load_config(args.config, ComposeConfig, args.set)
    out = Path(config.out) / config.name
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_existing(out))
    made = make(config, Fits(accelerator, config))
    if accelerator.is_main_process:
        write(out, made, config)
        print(summary(out, made))
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return out


def write(out: Path, made: EnsembleResult, config: ComposeConfig) -> None:
    """The folder: the model, its scores, and in record.json how it was made."""
    record = {"config": config.model_dump(), **made.record}
    write_run(out, made.model, config.manifest, made.scores, composition=record)


if __name__ == "__main__":
    errors.run(main)
