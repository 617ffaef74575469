"""Curate a training mix: read, check and clean sources, split validation, select, write.

python src/curate.py --list
python src/curate.py --config configs/demo/mix.yaml
python src/curate.py --config configs/demo/mix.yaml --set max_images=5 --set out=input/few.csv
python src/curate.py --config configs/demo/mix.yaml --shard 2/8
python src/curate.py --config configs/demo/mix.yaml --shards input/demo_shards
python src/curate.py --manifest input/mix_demo.csv --shards input/demo_shards --shard-mb 64
python src/curate.py --index-shards DIR --domain products --split train

Writes the manifest to the config's `out`. Next to it are `<out>.summary.json` (classes and images
of each domain, what each rule dropped, every dropped file with the reason), `<out>.html` (the same
as a page), and the findings of cleaning and selection. The output depends only on the sources, the
config, the seed and a person's verdicts (`<out>.verdicts.csv`), not on the number of workers.

`--shard 2/8` checks only the third eighth of the images, as one of eight jobs. Once all parts are checked,
the same command computes its part of the features, and compares its images with similar ones. The command
without `--shard` finds all of that and writes the mix.

`--shards DIR` also writes the images into tars (WebDataset's convention) and `DIR/index.parquet`, which every
command takes as a manifest. The same command resumes after an interruption. `--index-shards DIR` writes the
index of existing WebDataset tars. See input/README.md, "Shards and object storage".
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from guie.base import arguments
from guie.base.errors import run
from guie.base.files import STORE, quoted, refuse_no_folder, shown
from guie.base.processes import usable_cores
from guie.config import load_config
from guie.config.data import MixConfig

NAMED = 8  # reasons for leaving members of tars out that are printed


def main(argv: Sequence[str] | None = None) -> None:
    """Do what the arguments name. Raises UserError for invalid input."""
    args = parse_args(argv)
    arguments.set_environment(args)
    if args.shards:
        refuse_no_folder(args.shards)
    if args.list:
        from guie.data.datasets.finding import listing

        print(listing())
    elif args.index_shards:
        index_shards(args)
    elif args.manifest:
        from guie.curation.packing import pack
        from guie.data.manifest import load_manifest

        manifest = load_manifest(args.manifest, args.root)
        index = pack(manifest, args.shards, round(args.shard_mb * 1e6), args.workers)
        print(f"{len(manifest.table):,} rows -> {index}")
    else:
        curate_mix(args)


def index_shards(args: argparse.Namespace) -> None:
    """Write the index of existing tars."""
    from guie.curation.indexing import DROPPED, index_tars
    from guie.data.shards import storage

    done = index_tars(args.index_shards, args.domain, args.split, args.workers)
    print(f"{done.images:,} images in {done.shards:,} shards -> {storage.shown(done.path)}")
    reasons = done.dropped.groupby("reason")["image_path"].agg(["first", "size"])
    for row in reasons.sort_values("size", ascending=False).head(NAMED).itertuples():
        more = f" (and {row.size - 1:,} more)" if row.size > 1 else ""
        print(f"left out: {shown(row.first)}: {row.Index}{more}")
    if len(done.dropped):
        listed = storage.shown(done.path.with_name(DROPPED))
        print(f"{len(done.dropped):,} members left out, listed in {listed}")


def curate_mix(args: argparse.Namespace) -> None:
    """Curate the mix that a config describes, or check one part of its images."""
    started = time.perf_counter()
    config = load_config(args.config, MixConfig, args.set)
    # Imported here, so that the help and refusals come at once.
    from guie.curation import summary
    from guie.curation.features import Job
    from guie.curation.mix import compute_part, curate
    from guie.curation.sources import refuse_inputs, refuse_overwriting
    from guie.data.datasets.finding import with_path
    from guie.data.manifest import save_manifest

    config = config.model_copy(update={"sources": [with_path(s) for s in config.sources]})
    if args.store:
        os.environ[STORE] = args.store
        config = config.model_copy(update={"features": f"{args.store}/features"})
    refuse_inputs(config)
    words = ["python", "src/curate.py", "--config", args.config]
    words += [word for override in args.set for word in ("--set", override)]
    report = summary.CurationReport(config, " ".join(map(quoted, words)))
    job = Job(config, args.workers, report)
    if args.shard:
        computed = compute_part(job, args.shard)
        print(f"shard {'/'.join(map(str, args.shard))}: {computed}")
        return
    refuse_no_folder(Path(config.out).parent)
    refuse_overwriting(config)
    table, sidecar = curate(job)
    written = report.write(table)
    save_manifest(table, config.out, sidecar)  # last: an existing mix always has its report
    print(summary.render(written))
    seconds = time.perf_counter() - started
    print(f"{len(table):,} rows -> {config.out} in {seconds:.1f} s; see {report.page}")
    if config.image_root != Path(config.out).parent:
        root = quoted(config.root or config.image_root)
        print(f"image_path is relative to {root}: pass it to other commands as --root")
    if args.shards:
        from guie.curation.packing import pack_mix

        index = pack_mix(config, table, args.shards, round(args.shard_mb * 1e6), args.workers)
        print(f"{len(table):,} rows -> {index}")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="YAML file, see configs/demo/mix.yaml and configs/mixes/")
    what.add_argument("--list", action="store_true", help="list the data sets in input/")
    what.add_argument("--manifest", help="only write the shards of this manifest, see --shards")
    of_tars = "write the index of WebDataset tars"
    what.add_argument("--index-shards", type=Path, metavar="DIR", help=of_tars)
    add = parser.add_argument
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key")
    cores = "decoding processes (default: cores)"
    add("--workers", type=arguments.count, default=usable_cores(), help=cores)
    one_part = "only compute part N of M, counted from 0"
    add("--shard", type=arguments.shard, metavar="N/M", help=one_part)
    rows = "folder of computed rows, also s3://... (default: the cache, and the mix's features)"
    add("--store", metavar="DIR", help=rows)
    add("--root", help="folder of --manifest's images; default: the manifest's")
    add("--shards", type=Path, metavar="DIR", help="also write tars and DIR/index.parquet")
    add("--shard-mb", type=float, default=256.0, help="megabytes a tar, at most (default: 256)")
    add("--domain", help="domain of --index-shards")
    splits = ("train", "val", "test")
    add("--split", choices=splits, default="train", help="split of --index-shards")
    arguments.add_engine(parser)
    arguments.add_check_content(parser)
    args = parser.parse_args(argv)
    if bool(args.index_shards) != bool(args.domain):
        parser.error("--index-shards and --domain: need each other")
    if args.shard and (args.shards or not args.config):
        parser.error("--shard: needs --config, without --shards")
    if args.manifest and not args.shards:
        parser.error("--manifest: needs --shards DIR")
    if args.shards and not (args.config or args.manifest):
        parser.error("--shards: needs --config or --manifest")
    if not 0 < args.shard_mb < 1e6:
        parser.error(f"--shard-mb {args.shard_mb:g}: must be above 0 and below 1,000,000")
    return args


if __name__ == "__main__":
    run(main)
