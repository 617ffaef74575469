"""Curate a training mix: read sources, check them, filter classes, split validation, write.

    python src/curate.py --list
    python src/curate.py --config configs/mix_demo.yaml
    python src/curate.py --config configs/mix_real.yaml --set max_images=50 --set out=input/cap.csv

Writes the manifest that the config's `out` names and, beside it, `<out>.summary.json`: per domain
the classes and images, what each rule dropped, every dropped file with the reason. The same
sources and seed give the same bytes, whatever the number of workers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from guie import toy
from guie.archives import unpacked
from guie.config import MixConfig, load_config
from guie.config.mix import FolderSource, Source, ToySource
from guie.config.sources import DatasetSource
from guie.curation import summary
from guie.curation.filters import cap_large, drop_rare
from guie.curation.sources import combine, prefix_of
from guie.curation.splits import split_validation
from guie.curation.verify import drop_unusable
from guie.datasets import READERS
from guie.datasets.finding import listing
from guie.datasets.source import read_source, with_path
from guie.errors import UserError, run
from guie.files import write_json
from guie.images import open_as_seen
from guie.manifest import (
    DomainDeclaration,
    Manifest,
    Sidecar,
    check,
    load_manifest,
    queries_without_positive,
    read_sidecar,
    save_manifest,
)


@dataclass(frozen=True)
class Curated:
    """What a source brings to the mix, and the account of what it does not bring."""

    table: pd.DataFrame  # image_path relative to the mix's root
    sidecar: Sidecar
    losses: dict[str, summary.Counts]
    dropped_files: list[dict[str, str]]
    report: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Curate the mix that a config describes. Raises UserError where the input is at fault."""
    args = _parse(argv)
    if args.list:
        print(listing())
        return
    started = time.perf_counter()
    config = load_config(args.config, MixConfig, args.set)
    config = config.model_copy(update={"sources": [with_path(s) for s in config.sources]})
    _refuse_overwriting(config)
    parts = [curate_source(source, config, args.workers) for source in config.sources]

    table = combine([part.table for part in parts])
    sidecar = _merged((part.sidecar for part in parts), set(table["domain"]))
    # an image of a Met-like domain is in train and in the test index: it cannot move to val
    whole = [name for name, declared in sidecar.domains.items() if declared.index_is_train]
    table = split_validation(table, config.val_fraction, config.seed, leave=whole)
    _refuse_illegal(table, sidecar, config)

    command = ["python", "src/curate.py", "--config", args.config]
    command += [word for override in args.set for word in ("--set", override)]
    report = _report(config, shlex.join(command), table, parts)
    write_json(config.summary_path, report)
    save_manifest(table, config.out, sidecar)
    print(summary.render(report))
    seconds = time.perf_counter() - started
    print(f"{len(table):,} rows -> {config.out} and {config.summary_path} in {seconds:.1f} s")
    if config.image_root != Path(config.out).parent:
        print(f"image_path starts from {config.image_root}: give it to other commands as --root")


def curate_source(source: Source, config: MixConfig, workers: int) -> Curated:
    """Read, verify and filter one source."""
    read, skipped = _read(source, config.seed, workers)
    prefix = prefix_of(read.root, config.image_root)
    table, dropped = read.table, []
    if config.verify:
        table, dropped = drop_unusable(table, read.root, open_as_seen, workers, source.path)
    stages = {"read": read.table, "unusable": table}
    min_images, max_images = config.limits(source)
    stages["min_images"] = table = drop_rare(table, min_images)
    if table.empty:
        raise UserError(
            f"{source.path}: no class has {min_images} images, nothing is left; lower min_images"
        )
    if max_images is not None:
        stages["max_images"] = table = cap_large(table, max_images, config.seed)
    return Curated(
        table=table.assign(image_path=prefix + table["image_path"]),
        sidecar=read.sidecar,
        losses=summary.losses(stages),
        dropped_files=dropped,
        report={"kind": source.kind, "path": source.path, "skipped": dict(sorted(skipped.items()))},
    )


def _read(source: Source, seed: int, workers: int) -> tuple[Manifest, Counter[str]]:
    """A source as a manifest, and a count of the files that were passed over, by reason."""
    if isinstance(source, DatasetSource):
        read, skipped, warnings = read_source(source, seed, workers)
        for warning in warnings:
            print(f"{source.kind}: warning: {warning}", file=sys.stderr)
        return read, skipped
    if isinstance(source, FolderSource):
        folder = unpacked(source.path)
        table, skipped = READERS[source.kind](folder, source.domain, source.split)
        return Manifest(table, folder, folder, Sidecar()), skipped
    if isinstance(source, ToySource):
        path = toy.draw(
            source.path, images=source.images, seed=source.seed, part=source.part, workers=workers
        )
        return load_manifest(path), Counter()
    manifest = load_manifest(source.path, source.root)
    return _only(manifest, source.domains) if source.domains else manifest, Counter()


def _only(manifest: Manifest, domains: list[str]) -> Manifest:
    present = sorted(manifest.table["domain"].unique())
    unknown = sorted(set(domains) - set(present))
    if unknown:
        raise UserError(
            f"{manifest.path}: no domain {', '.join(unknown)}; it has: {', '.join(present)}"
        )
    rows = manifest.table[manifest.table["domain"].isin(domains)].reset_index(drop=True)
    return replace(manifest, table=rows)


def _merged(sidecars: Iterable[Sidecar], domains: set[str]) -> Sidecar:
    """What any source declares of the mix's domains."""
    merged: dict[str, DomainDeclaration] = {}
    for sidecar in sidecars:
        for domain in sorted(domains & sidecar.domains.keys()):
            old, new = merged.get(domain, DomainDeclaration()), sidecar.domains[domain]
            merged[domain] = DomainDeclaration(
                shared_classes=old.shared_classes or new.shared_classes,
                index_is_train=old.index_is_train or new.index_is_train,
            )
    return Sidecar(domains=merged)


def _report(
    config: MixConfig, command: str, table: pd.DataFrame, parts: list[Curated]
) -> dict[str, Any]:
    """The summary: a function of the sources and the config, so without times."""
    held_out = (table[table["split"] == split] for split in ("val", "test"))
    alone = pd.concat([queries_without_positive(rows) for rows in held_out])
    domains = summary.by_domain(table, [part.losses for part in parts], alone)
    dropped_files = [file for part in parts for file in part.dropped_files]
    return {
        "name": config.name,
        "command": command,
        "rows": len(table),
        "domains": domains,
        "notes": summary.notes(domains, dropped_files),
        "dropped_files": dropped_files,
        "sources": [part.report for part in parts],
        "config": config.model_dump(),
    }


def _refuse_overwriting(config: MixConfig) -> None:
    """A mix must not replace one of its sources, nor its sidecar another YAML file."""
    for number, source in enumerate(config.sources):
        if os.path.realpath(source.path) == os.path.realpath(config.out):
            raise UserError(f"out: {config.out} is source {number}; write the mix elsewhere")
    read_sidecar(Path(config.out))


def _refuse_illegal(table: pd.DataFrame, sidecar: Sidecar, config: MixConfig) -> None:
    """Each source passes the manifest's checks, but together they may overlap."""
    if not (table["split"] == "train").any():
        raise UserError(f"{config.out}: no source brings train images; nothing to train on")
    faults = check(table, sidecar)
    if faults:
        line, what = faults[0]
        raise UserError(
            f"{config.out}: not written, the sources do not fit together ({len(faults)} faults):"
            f" {table['image_path'][line - 2]}: {what}; drop one, or keep only some domains of it"
        )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", help="YAML file, see configs/mix_demo.yaml and configs/mixes/")
    what.add_argument("--list", action="store_true", help="which data sets lie in input/")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="decoding processes (default: cores)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
