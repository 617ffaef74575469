"""Curate a training mix: read, check and clean sources, split validation, select, write.

    python src/curate.py --list
    python src/curate.py --config configs/mix_demo.yaml
    python src/curate.py --config configs/mix_real.yaml --set max_images=50 --set out=input/cap.csv

Writes the manifest to the config's `out`. Next to it are `<out>.summary.json` (classes and images
of each domain, what each rule dropped, every dropped file with the reason), `<out>.html` (the same
as a page), and the findings of cleaning and selection. The output depends only on the sources, the
config and the seed, not on the number of workers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd

import train
from guie.base.errors import run
from guie.base.files import quoted
from guie.config import MixConfig, load_config
from guie.config.data import SelectionConfig
from guie.curation import summary
from guie.curation.classes import oversample, split_validation
from guie.curation.cleaning import clean_rows, refuse_late_leaks
from guie.curation.duplicates.evidence import embed_for
from guie.curation.pipeline import (
    limit_classes,
    match_domains,
    pseudo_label,
    read_sources,
    refuse_illegal,
    refuse_overwriting,
    select_rows,
)
from guie.curation.selection import Score
from guie.curation.summary import CurationReport
from guie.data.datasets.finding import listing, with_path
from guie.data.manifest import Sidecar, save_manifest
from guie.training.run_folder import METRICS_FILE, read_metrics

SLUG_CHARS = 80  # characters of a mix's name that its file names use


def main(argv: Sequence[str] | None = None) -> None:
    """Curate the mix that a config describes. Raises UserError for invalid input."""
    args = _parse(argv)
    if args.list:
        print(listing())
        return
    started = time.perf_counter()
    config = load_config(args.config, MixConfig, args.set)
    config = config.model_copy(update={"sources": [with_path(s) for s in config.sources]})
    refuse_overwriting(config)
    account = CurationReport(config, _command(args))
    table, sidecar = curate(config, args.workers, account)
    report = account.write(table)
    save_manifest(table, config.out, sidecar)  # last: an existing mix always has its report
    print(summary.render(report))
    seconds = time.perf_counter() - started
    print(f"{len(table):,} rows -> {config.out} in {seconds:.1f} s; see {account.page}")
    if config.image_root != Path(config.out).parent:
        root = quoted(config.image_root)
        print(f"image_path is relative to {root}: pass it to other commands as --root")


def curate(
    config: MixConfig, workers: int, account: CurationReport
) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and the overlaps its sidecar declares."""
    table, sidecar = read_sources(config, workers, account)
    embed = links = None
    if config.pseudo_labels:
        table = pseudo_label(table, config.pseudo_labels, config, workers, account)
    if config.clean:
        embed = embed_for(config.clean, config.image_root, Path(config.features), workers)
        table, links = clean_rows(table, config.clean, config, embed, workers, account)
    table = limit_classes(table, config, embed, account)
    if config.shares:
        table = match_domains(table, config.shares, config, workers, account)
    # Met-like domains use their train images as the test index, so none of them can move to val.
    whole = [name for name, declared in sidecar.domains.items() if declared.index_is_train]
    table = split_validation(table, config.val_fraction, config.seed, leave=whole)
    if config.clean and links is not None:
        table = refuse_late_leaks(table, links, config.clean, account)
    if config.selection:
        evaluate = partial(_train_on, config=config, selection=config.selection)
        table = select_rows(table, config.selection, config, workers, account, evaluate)
    if config.clean and config.clean.oversample:
        table = oversample(table, config.clean.oversample)
    table = table.drop(columns="source")
    refuse_illegal(table, sidecar, config)
    return table, sidecar


def _train_on(
    rows: pd.DataFrame, name: str, seed: int, config: MixConfig, selection: SelectionConfig
) -> Score:
    """Score a mix by a full run of train.py: the best val score of the metric."""
    assert selection.full is not None  # the evaluator is `full`
    folder = config.beside(".selection")
    slug = re.sub(r"[^\w.-]", "_", name)[:SLUG_CHARS]
    if (
        slug != name
    ):  # names of several sources or caps contain characters that a run's name must not
        slug += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    manifest = folder / f"{slug}.csv"
    save_manifest(rows, manifest)
    words = [f"data.manifest={manifest}", f"data.root={config.image_root}", f"seed={seed}"]
    words += [f"name={slug}-{seed}", f"out={folder}"]
    done = train.main(
        ["--config", selection.full, "--resume", *(w for word in words for w in ("--set", word))]
    )
    lines = [line for line in read_metrics(done / METRICS_FILE) if "val_r_at_1" in line]
    best = max(lines, key=lambda line: line[f"val_{selection.metric}"])
    prefix = "val_r_at_1/"
    domains = {key.removeprefix(prefix): best[key] for key in best if key.startswith(prefix)}
    return Score(best[f"val_{selection.metric}"], domains)


def _command(args: argparse.Namespace) -> str:
    words = ["python", "src/curate.py", "--config", args.config]
    words += [word for override in args.set for word in ("--set", override)]
    return " ".join(map(quoted, words))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="YAML file, see configs/mix_demo.yaml and configs/mixes/")
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
