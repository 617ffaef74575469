"""The sources of a mix, read and verified, as one table."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path

import pandas as pd

import toydomains
from guie.base.errors import UserError
from guie.config import MixConfig
from guie.config.mix import FolderSource, Source, ToySource
from guie.config.sources import DatasetSource
from guie.curation.steps.account import Account
from guie.curation.steps.combining import combine, prefix_of
from guie.data.archives import unpacked
from guie.data.datasets import READERS
from guie.data.datasets.source import read_source
from guie.data.images import decoder_key, open_as_seen
from guie.data.looks.decoded import Decoded, absolute, decoded_folder, file_states
from guie.data.looks.decoding import drop_unusable, verify
from guie.data.looks.fingerprints import fingerprints
from guie.data.manifest import DomainDeclaration, Manifest, Sidecar, load_manifest
from guie.data.manifest.companions import read_companions, renamed, within


def read_sources(config: MixConfig, workers: int, account: Account) -> tuple[pd.DataFrame, Sidecar]:
    """One table of all sources, image_path relative to the mix's root, and what they declare.

    Column `source` holds the number of the source. With a `clean` block the columns of
    `fingerprints` stand beside. Raises UserError where a source is at fault.
    """
    listed: list[pd.DataFrame] = []
    readable: list[pd.DataFrame] = []
    sidecars: list[Sidecar] = []
    out = Path(config.out)
    decoded = Decoded(decoded_folder(out, fallback=out.parent))  # training need not look again
    for number, source in enumerate(config.sources):
        read, skipped = _read(source, config.seed, workers)
        prefix = prefix_of(read.root, config.image_root)
        table = read.table
        dropped: list[dict[str, str]] = []
        if config.verify:
            assert source.path is not None  # `with_path` has found it
            look = fingerprints if config.clean else verify
            paths = table["image_path"].unique()
            states = file_states(absolute(read.root, paths), decoder_key(open_as_seen))
            table, dropped = drop_unusable(
                table, read.root, open_as_seen, workers, source.path, look
            )
            decoded.add(states[pd.Index(paths).isin(table["image_path"])])
        account.add_source(source, skipped, dropped)
        account.companions.append(renamed(read.companions, partial(add, prefix)))
        for tables, rows in ((listed, read.table), (readable, table)):
            tables.append(rows.assign(image_path=prefix + rows["image_path"], source=number))
        sidecars.append(read.sidecar)
    account.after("read", combine(listed))
    table = combine(readable)
    account.after("unusable", table)
    return table, _merged(sidecars, set(table["domain"]))


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
        return load_manifest(_drawn(source, workers)), Counter()
    manifest = load_manifest(source.path, source.root)
    if source.domains:
        manifest = _only(manifest, source.domains)
    companions = within(read_companions(manifest.path), manifest.table)
    return replace(manifest, companions=companions), Counter()


def _drawn(source: ToySource, workers: int) -> Path:
    """The manifest of a drawn set. Raises UserError where it cannot be drawn."""
    try:
        return toydomains.draw(
            source.path, images=source.images, seed=source.seed, part=source.part, workers=workers
        )
    except toydomains.DrawingError as error:
        raise UserError(str(error)) from error


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
