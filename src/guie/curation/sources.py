"""The sources of a mix: refuse what cannot be read, read and combine them, and limit their classes."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.base.files import refuse_missing
from guie.config.data import (
    DatasetSource,
    FolderSource,
    ManifestSource,
    MixConfig,
    Source,
    ToySource,
)
from guie.curation.classes import cap, choose_test_classes, drop_rare, move_to_test
from guie.curation.features import Embed, Job
from guie.curation.findings import COLUMNS as FINDINGS
from guie.curation.thinning import read_source
from guie.data.archives import SUFFIXES, unpacked
from guie.data.datasets import read_folder
from guie.data.manifest import DomainDeclaration, Manifest, Sidecar, check, load_manifest
from guie.data.manifest.companions import read_companions, renamed, within
from guie.data.manifest.reading import sidecar_path
from guie.data.names import refuse_alike
from guie.data.shards.storage import as_path, shown, url_of
from guie.models.opening import refuse_no_model
from guie.rows.checks import VERIFY, Checks, drop_unusable
from guie.rows.fingerprints import FINGERPRINTS

# Of this clone. `python -m` finds the package toydomains in its working folder
INPUT = Path(__file__).parents[3] / "input"


def refuse_inputs(config: MixConfig) -> None:
    """Check what later steps need, before any source is drawn or read.

    Raises UserError for a missing source, model or file, and for a source outside the mix's root. An archive
    and an index of shards have roots that reading them finds.
    """
    # A toy set is drawn. An archive may be gone once it is unpacked.
    read = [source.path for source in config.sources if not isinstance(source, ToySource)]
    refuse_missing(path for path in read if not str(path).endswith(SUFFIXES))
    if config.pseudo_labels and config.pseudo_labels.calibration:
        refuse_missing([config.pseudo_labels.calibration.manifest])
    if config.clean and config.clean.model:
        refuse_no_model(config.clean.model)
    if config.selection:
        refuse_missing([config.selection.full])
        if config.selection.proxy:
            refuse_no_model(config.selection.proxy.model)
    for source in config.sources:
        path = Path(str(source.path))
        if isinstance(source, ManifestSource):
            if source.root or (path.suffix == ".csv" and path.is_file()):
                prefix_of(Path(source.root or path.parent), config.image_root)
        elif isinstance(source, ToySource) or path.is_dir():
            prefix_of(path, config.image_root)


def refuse_overwriting(config: MixConfig) -> None:
    """Raise UserError if `out` is a source, or a manifest or sidecar that curate.py did not write."""
    for number, source in enumerate(config.sources):
        if os.path.realpath(str(source.path)) == os.path.realpath(config.out):
            raise UserError(f"out: {config.out} is source {number}; write the mix elsewhere")
    out, findings = Path(config.out), config.beside(".findings.csv")
    results = [out, sidecar_path(out), config.summary_path]
    head = ",".join(FINDINGS[:3]).encode()
    # A run that stopped at its findings wrote no summary
    if not (findings.is_file() and findings.read_bytes().startswith(head)):
        results += [findings, config.beside(".merges.csv"), config.beside(".html")]
    taken = [path for path in results if os.path.lexists(path)]
    if not taken:
        return
    try:
        summary = json.loads(config.summary_path.read_text(encoding="utf-8"))
        is_mix = Path(summary["config"]["out"]).name == out.name
    except (OSError, ValueError, KeyError, TypeError):  # no summary, or not one of curate.py
        is_mix = False
    if not is_mix:
        raise UserError(
            f"out: {taken[0]} exists, and no {config.summary_path.name} next to it shows that"
            " curate.py wrote it; write the mix elsewhere, or move that file away"
        )


def read_sources(job: Job) -> tuple[pd.DataFrame, Sidecar]:
    """Read all sources into one table and one sidecar. Raises UserError for an invalid source.

    The test split of `test_fraction` is cut here: no later rule changes it. Column `source` holds the number
    of the source. A `clean` block adds the columns of `FINGERPRINTS`.
    """
    config, report = job.config, job.report
    listed: list[pd.DataFrame] = []
    readable: list[pd.DataFrame] = []
    sidecars: dict[str, Sidecar] = {}
    for number, source in enumerate(config.sources):
        read, skipped = read_one(source, config.seed, job.workers)
        prefix = prefix_of(read.root, config.image_root)
        table = read.table
        if config.verify:
            table = _verified(read, str(source.path), prefix, job)
        counts = dict(sorted(skipped.items()))
        report.sources.append({"kind": source.kind, "path": source.path, "skipped": counts})
        report.companions.append(renamed(read.companions, partial(add, prefix)))
        for tables, rows in ((listed, read.table), (readable, table)):
            tables.append(rows.assign(image_path=prefix + rows["image_path"], source=number))
        sidecars[f"{number} ({source.path})"] = read.sidecar
    everything, table = combine(listed), combine(readable)
    merge = config.clean.merge if config.clean else {}
    folders = [n for n, source in enumerate(config.sources) if isinstance(source, FolderSource)]
    labels = everything.loc[everything["source"].isin(folders), "label"].unique()
    remedy = "rename the folders, or join the classes by clean.merge"
    refuse_alike(config.name, [merge.get(label, label) for label in labels], remedy)
    sidecar = _merged(sidecars, set(table["domain"]))
    if config.test_fraction:
        leave = sidecar.whole()
        if config.pseudo_labels and config.pseudo_labels.mode == "label":
            leave += config.pseudo_labels.domains  # CLIP will label them: they have no true classes
        classes = choose_test_classes(table, config.test_fraction, config.seed, leave, merge)
        everything, table = move_to_test(everything, classes), move_to_test(table, classes)
    report.after("read", everything)
    report.after("unusable", table)
    return table, sidecar


def checks_of(config: MixConfig, paths: Sequence[str], prefix: str) -> Checks:
    """Return the checks of images below the prefix, within the mix's root."""
    check = FINGERPRINTS if config.clean else VERIFY
    return Checks(check, config.image_root, paths, prefix=prefix)


def _verified(read: Manifest, name: str, prefix: str, job: Job) -> pd.DataFrame:
    """Decode a source's images; return the rows that can be used, and report the dropped files."""
    checks = checks_of(job.config, read.table["image_path"].unique(), prefix)
    checks.fill(job.workers, name)
    found = checks.table()
    table, dropped = drop_unusable(read.table, read.root, found, name)
    job.report.dropped_files += dropped
    # Stored for training too, so that it need not decode them again
    root = job.config.image_root
    verified = Checks(VERIFY, root, found.index, prefix=prefix, known=checks.states)
    new = verified.missing()
    verified.store.begin()
    verified.store.add(verified.states.take(new), found[list(VERIFY.columns)].iloc[new])
    return table


def read_one(source: Source, seed: int, workers: int) -> tuple[Manifest, Counter[str]]:
    """Read a source as a manifest; count skipped files by reason. Raises UserError; SystemExit as `draw`."""
    if isinstance(source, DatasetSource):
        read, skipped = read_source(source, seed, workers)
        for warning in read.warnings:
            print(f"{source.kind}: warning: {warning}", file=sys.stderr)
        return read, skipped
    if isinstance(source, FolderSource):
        folder = unpacked(as_path(source.path), source.encoding)
        table, skipped = read_folder(folder, source.domain, source.split)
        return Manifest(table, folder, folder, Sidecar()), skipped
    if isinstance(source, ToySource):
        draw(source, workers)
        return load_manifest(Path(source.path) / "manifest.csv"), Counter()
    manifest = load_manifest(source.path, source.root)
    rows = manifest.table
    if source.domains:
        present = sorted(rows["domain"].unique())
        if unknown := sorted(set(source.domains) - set(present)):
            raise UserError(
                f"{manifest.path}: no domain {', '.join(unknown)}; it has: {', '.join(present)}"
            )
        rows = rows[rows["domain"].isin(source.domains)].reset_index(drop=True)
    companions = within(read_companions(manifest.path), rows)
    rows = rows.drop(columns="shard", errors="ignore")  # of an index: image_path names it
    return replace(manifest, table=rows, companions=companions), Counter()


def draw(source: ToySource, workers: int) -> None:
    """Draw a toy set in a process of its own, unless it is complete: toydomains is not part of guie.

    Raises SystemExit with its code if it failed and has printed why, UserError if a signal ended it.
    """
    words = [f"--out={Path(source.path).absolute()}", f"--images={source.images}"]
    words += [f"--seed={source.seed}", f"--part={source.part}", f"--workers={workers}"]
    command = [sys.executable, "-m", "guie.base.child", str(os.getpid()), "toydomains/__main__.py"]
    with subprocess.Popen([*command, *words], cwd=INPUT) as drawing:
        try:
            code = drawing.wait()
        except KeyboardInterrupt:
            drawing.send_signal(signal.SIGINT)  # a terminal has done so, `kill` has not
            drawing.wait()
            sys.exit(130)  # it has printed "interrupted"
    if code < 0:
        name = signal.Signals(-code).name
        raise UserError(f"{source.path}: drawing was ended by {name}; run the command again")
    if code:
        sys.exit(code)


def _merged(sidecars: Mapping[str, Sidecar], domains: set[str]) -> Sidecar:
    """Merge what the sources, by name, declare. Raises UserError if they are to be decoded differently."""
    by_decode = {sidecar.decode: name for name, sidecar in sidecars.items()}
    if len(by_decode) > 1:
        raise UserError(
            f"sources {by_decode['seen']} and {by_decode['host']}: decode is seen for one, and host for the"
            " other; write the same into the sidecars of both; a source without one is seen, and needs a"
            " mix of its own first"
        )
    merged: dict[str, DomainDeclaration] = {}
    for sidecar in sidecars.values():
        for domain in sorted(domains & sidecar.domains.keys()):
            old, new = merged.get(domain, DomainDeclaration()), sidecar.domains[domain]
            merged[domain] = DomainDeclaration(
                shared_classes=old.shared_classes or new.shared_classes,
                index_is_train=old.index_is_train or new.index_is_train,
            )
    return Sidecar(domains=merged, decode=next(iter(by_decode)))


def prefix_of(source: Path, root: Path) -> str:
    """Return the prefix that makes a path in `source` relative to `root`: "toy/", or "". Raises UserError.

    Links are not resolved: a data set linked into the root counts as inside it.
    """
    inside, outside = os.path.abspath(root), os.path.abspath(source)
    common = os.path.commonpath([inside, outside])
    if url_of(outside) and not url_of(common):
        raise UserError(
            f"{shown(source)}: is outside the mix's root {shown(root)}; a mix with an object has all images"
            f" in its bucket: set root: {shown(source.parent)}"
        )
    if common != inside:
        raise UserError(
            f"{source}: is outside the mix's root {root}; set root to a folder that contains"
            f" every source, for example root: {common}"
        )
    return "" if inside == outside else Path(outside).relative_to(inside).as_posix() + "/"


def combine(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the tables of the sources, indexed from 0. Raises UserError for an image that is in two.

    A column that only some sources have is empty for the others; a missing weight is 1.
    """
    seen: dict[str, int] = {}
    for number, table in enumerate(tables):
        for path in table["image_path"].unique():
            if seen.setdefault(path, number) != number:
                raise UserError(
                    f"sources {seen[path]} and {number} both contain {path}; remove one of them"
                )
    table = pd.concat(tables, ignore_index=True)
    if "weight" in table:
        table["weight"] = table["weight"].fillna(1.0)
    for column in {"width", "height"} & set(table.columns):
        table[column] = pd.to_numeric(table[column], errors="coerce").astype("Int64")
    text = table.columns.difference(["weight", "width", "height"])
    table[text] = table[text].where(table[text].notna(), "")
    return table


def drop_rare_classes(table: pd.DataFrame, config: MixConfig) -> pd.DataFrame:
    """Drop the rare classes of each source. Raises UserError if a source has no class left."""
    tables = []
    for number, source in enumerate(config.sources):
        least, _ = config.limits(source)
        rows = drop_rare(table[table["source"] == number].reset_index(drop=True), least)
        if rows.empty:
            raise UserError(
                f"{source.path}: no class has {least} images, so no row is left; lower min_images"
            )
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def cap_classes(table: pd.DataFrame, config: MixConfig, embed: Embed | None) -> pd.DataFrame:
    """Cap the large classes of each source; `embed` is for diverse caps."""
    choice, tables = config.clean.cap if config.clean else "random", []
    for number, source in enumerate(config.sources):
        rows = table[table["source"] == number].reset_index(drop=True)
        _, most = config.limits(source)
        tables.append(cap(rows, most, choice, seed=config.seed, embed=embed) if most else rows)
    return pd.concat(tables, ignore_index=True)


def refuse_illegal(table: pd.DataFrame, sidecar: Sidecar, config: MixConfig) -> None:
    """Raise UserError for sources that overlap, or a mix for training without train images."""
    if not config.benchmark and not (table["split"] == "train").any():
        raise UserError(
            f"{config.out}: no source has train images; add one, or set benchmark: true for a mix"
            " that is only scored"
        )
    faults = check(table, sidecar)
    if faults:
        line, what = faults[0]
        raise UserError(
            f"{config.out}: not written, the sources conflict ({len(faults)} faults):"
            f" {table['image_path'][line - 2]}: {what}; remove a source, or some domains of it"
        )
