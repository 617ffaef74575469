"""Curate a training mix: read, check and clean sources, split validation, select, write.

python src/curate.py --list
python src/curate.py --config configs/demo/mix.yaml
python src/curate.py --config configs/demo/mix.yaml --set max_images=5 --set out=input/few.csv

Writes the manifest to the config's `out`. Next to it are `<out>.summary.json` (classes and images
of each domain, what each rule dropped, every dropped file with the reason), `<out>.html` (the same
as a page), and the findings of cleaning and selection. The output depends only on the sources, the
config and the seed, not on the number of workers.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from guie.base.errors import run
from guie.base.files import quoted
from guie.config import MixConfig, load_config


def main(argv: Sequence[str] | None = None) -> None:
    """Curate the mix that a config describes. Raises UserError for invalid input."""
    args = parse_args(argv)
    if args.list:
        from guie.data.datasets.finding import listing

        print(listing())
        return
    started = time.perf_counter()
    config = load_config(args.config, MixConfig, args.set)
    # Imported here, so that the help and refusals come at once.
    import train
    from guie.curation import summary
    from guie.curation.mix import curate
    from guie.curation.pipeline import refuse_overwriting
    from guie.data.datasets.finding import with_path
    from guie.data.manifest import save_manifest

    config = config.model_copy(update={"sources": [with_path(s) for s in config.sources]})
    refuse_overwriting(config)
    account = summary.CurationReport(config, _command(args))
    table, sidecar = curate(config, args.workers, account, train.main)
    report = account.write(table)
    save_manifest(table, config.out, sidecar)  # last: an existing mix always has its report
    print(summary.render(report))
    seconds = time.perf_counter() - started
    print(f"{len(table):,} rows -> {config.out} in {seconds:.1f} s; see {account.page}")
    if config.image_root != Path(config.out).parent:
        root = quoted(config.image_root)
        print(f"image_path is relative to {root}: pass it to other commands as --root")


def _command(args: argparse.Namespace) -> str:
    words = ["python", "src/curate.py", "--config", args.config]
    words += [word for override in args.set for word in ("--set", override)]
    return " ".join(map(quoted, words))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="YAML file, see configs/demo/mix.yaml and configs/mixes/")
    what.add_argument("--list", action="store_true", help="list the data sets in input/")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="decoding processes (default: cores)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
