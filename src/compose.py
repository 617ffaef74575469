"""Combine several models, or several views of one, into one model in a run folder.

Every command accepts the new folder in place of a training run's.

python src/compose.py --config configs/compose/winner_4.yaml
python src/compose.py --config configs/compose/soup.yaml --set name=ab --set 'members=[runs/a, runs/b]'

The config names the members, how they are joined (soup, heads, average, side_by_side), their views of
an image (views) and an optional dimension reduction (reduce). configs/compose/ has one example of each;
configs/README.md lists all keys. With `val`, R@1 and mMP@5 on that val split are printed and
recorded, for each member and for the result. Reductions and classifiers are fitted on the train or val
split; the test split is never read.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.config import load_config
from guie.config.ensemble import ComposeConfig


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True, help="YAML; see configs/compose/")
    words = "override a key, e.g. reduce.dim=32; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=words)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Build, score and write the ensemble; return its folder. Raises UserError if members do not fit."""
    args = parse_args(argv)
    config = load_config(args.config, ComposeConfig, args.set)
    # Imported here, so that the help and refusals come at once.
    from guie.base.devices import from_main, make_accelerator
    from guie.ensembles.joining import make, refuse_unfit, summary, write
    from guie.ensembles.samples import Fits

    out = Path(config.out) / config.name
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_unfit(out, config))
    made = make(config, Fits(accelerator, config))
    if accelerator.is_main_process:
        write(out, made, config)
        print("\n".join(summary(str(out), made)))
    # All processes exit together: one that outlives its process group aborts at exit.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return out


if __name__ == "__main__":
    errors.run(main)
