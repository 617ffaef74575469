"""The steps of curation in order: read, combine, label, filter."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import toydomains
from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.base.files import refuse_missing
from guie.config import MixConfig
from guie.config.data import (
    ClipConfig,
    DatasetSource,
    DomainShares,
    FolderSource,
    ManifestSource,
    ProxyEvaluatorConfig,
    PseudoLabelConfig,
    Source,
    ToySource,
)
from guie.curation.classes import (
    cap_diverse,
    cap_first,
    cap_large,
    choose_test_classes,
    drop_rare,
    move_to_test,
)
from guie.curation.duplicates.evidence import Embed
from guie.curation.duplicates.findings import COLUMNS as FINDINGS
from guie.curation.pseudo_labels import (
    contradicted,
    fit_scale,
    guess,
    least_confidence,
    match_shares,
    precision_curve,
    relabelled,
    sure,
    thinned,
)
from guie.curation.summary import CurationReport
from guie.curation.thinning import read_source
from guie.data.archives import SUFFIXES, unpacked
from guie.data.datasets import read_folder
from guie.data.manifest import DomainDeclaration, Manifest, Sidecar, check, load_manifest
from guie.data.manifest.companions import read_companions, renamed, within
from guie.data.manifest.reading import sidecar_path
from guie.data.names import refuse_alike
from guie.data.shards.address import as_path, shown, url_of
from guie.evaluation.text import ClassTexts, class_texts
from guie.models.loading import open_model, refuse_no_model
from guie.rows.checks import FINGERPRINTS, VERIFY, Checks
from guie.rows.embedding import stored_features
from guie.rows.readable import drop_unusable
from guie.rows.store import Rows


def read_sources(
    config: MixConfig, workers: int, account: CurationReport
) -> tuple[pd.DataFrame, Sidecar]:
    """Read all sources into one table and one sidecar; image_path is relative to the mix's root.

    The test split of `test_fraction` is cut here: no later rule changes it.
    Column `source` holds the number of the source. A `clean` block adds the columns of
    `FINGERPRINTS`. Raises UserError for an invalid source.
    """
    listed: list[pd.DataFrame] = []
    readable: list[pd.DataFrame] = []
    sidecars: dict[str, Sidecar] = {}
    for number, source in enumerate(config.sources):
        read, skipped = read_one(source, config.seed, workers)
        prefix = prefix_of(read.root, config.image_root)
        table = read.table
        dropped: list[dict[str, str]] = []
        if config.verify:
            assert source.path is not None  # `with_path` has found it
            checks = checks_of(config, table["image_path"].unique(), prefix)
            checks.fill(workers, source.path)
            found = checks.table()
            table, dropped = drop_unusable(table, read.root, found, source.path)
            verified = Checks(
                VERIFY, config.image_root, found.index, prefix=prefix, known=checks.states
            )
            new = verified.missing()  # so that training need not decode them again
            verified.store.begin()
            verified.store.add(verified.states.take(new), found[list(VERIFY.columns)].iloc[new])
        account.add_source(source, skipped, dropped)
        account.companions.append(renamed(read.companions, partial(add, prefix)))
        for tables, rows in ((listed, read.table), (readable, table)):
            tables.append(rows.assign(image_path=prefix + rows["image_path"], source=number))
        sidecars[f"{number} ({source.path})"] = read.sidecar
    everything, table = combine(listed), combine(readable)
    _refuse_alike(everything, config)
    sidecar = _merged(sidecars, set(table["domain"]))
    if config.test_fraction:
        classes = _test_classes(table, config, sidecar)
        everything, table = move_to_test(everything, classes), move_to_test(table, classes)
    account.after("read", everything)
    account.after("unusable", table)
    return table, sidecar


def checks_of(config: MixConfig, paths: Sequence[str], prefix: str) -> Checks:
    """Return what is to be found out about images below the prefix, within the mix's root."""
    check = FINGERPRINTS if config.clean else VERIFY
    return Checks(check, config.image_root, paths, prefix=prefix)


def _refuse_alike(table: pd.DataFrame, config: MixConfig) -> None:
    """Raise UserError if classes of folders differ only in form, unless `clean.merge` joins them."""
    folders = [n for n, source in enumerate(config.sources) if isinstance(source, FolderSource)]
    merge = config.clean.merge if config.clean else {}
    labels = table.loc[table["source"].isin(folders), "label"].unique()
    remedy = "rename the folders, or join the classes by clean.merge"
    refuse_alike(config.name, [merge.get(label, label) for label in labels], remedy)


def _test_classes(table: pd.DataFrame, config: MixConfig, sidecar: Sidecar) -> set[str]:
    leave = sidecar.whole()
    if config.pseudo_labels and config.pseudo_labels.mode == "label":
        leave += config.pseudo_labels.domains  # CLIP will label them: they have no true classes
    merge = config.clean.merge if config.clean else {}
    return choose_test_classes(table, config.test_fraction, config.seed, leave, merge)


def read_one(source: Source, seed: int, workers: int) -> tuple[Manifest, Counter[str]]:
    """Read a source as a manifest, and count the skipped files by reason."""
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
        return load_manifest(_drawn(source, workers)), Counter()
    manifest = load_manifest(source.path, source.root)
    if source.domains:
        manifest = _only(manifest, source.domains)
    companions = within(read_companions(manifest.path), manifest.table)
    rows = manifest.table.drop(columns="shard", errors="ignore")  # of an index: image_path names it
    return replace(manifest, table=rows, companions=companions), Counter()


def _drawn(source: ToySource, workers: int) -> Path:
    """Draw a toy set and return its manifest. Raises UserError if drawing fails."""
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


def _merged(sidecars: Mapping[str, Sidecar], domains: set[str]) -> Sidecar:
    """Merge what the sources declare about the mix's domains.

    Args:
        sidecars: by the name of the source.

    Raises UserError if the sources are to be decoded differently.
    """
    merged: dict[str, DomainDeclaration] = {}
    by_decode = {sidecar.decode: name for name, sidecar in sidecars.items()}
    if len(by_decode) > 1:
        raise UserError(
            f"sources {by_decode['seen']} and {by_decode['host']}: decode is seen for one, and host for the"
            " other; write the same into the sidecars of both; a source without one is seen, and needs a"
            " mix of its own first"
        )
    for sidecar in sidecars.values():
        for domain in sorted(domains & sidecar.domains.keys()):
            old, new = merged.get(domain, DomainDeclaration()), sidecar.domains[domain]
            merged[domain] = DomainDeclaration(
                shared_classes=old.shared_classes or new.shared_classes,
                index_is_train=old.index_is_train or new.index_is_train,
            )
    return Sidecar(domains=merged, decode=next(iter(by_decode)))


def prefix_of(source: Path, root: Path) -> str:
    """Return the prefix that makes a path in `source` relative to `root`: "toy/", or "".

    Links are not resolved: a data set linked into the root counts as inside it.
    Raises UserError if the source is outside the root.
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
    """Concatenate the tables in the order of the sources, indexed from 0.

    A column that only some sources have is empty for the others; a missing weight is 1.
    Raises UserError if an image is in two sources.
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


def limit_classes(
    table: pd.DataFrame, config: MixConfig, embed: Embed | None, account: CurationReport
) -> pd.DataFrame:
    """Drop rare classes and cap large ones, within each source.

    Raises UserError if a source has no class left.
    """
    large_enough, capped = [], []
    for number, source in enumerate(config.sources):
        rows = table[table["source"] == number].reset_index(drop=True)
        least, most = config.limits(source)
        rows = drop_rare(rows, least)
        if rows.empty:
            raise UserError(
                f"{source.path}: no class has {least} images, so no row is left; lower min_images"
            )
        large_enough.append(rows)
        capped.append(rows if most is None else _capped(rows, most, config, embed))
    account.after("min_images", pd.concat(large_enough, ignore_index=True))
    table = pd.concat(capped, ignore_index=True)
    account.after("max_images", table)
    return table


def _capped(rows: pd.DataFrame, most: int, config: MixConfig, embed: Embed | None) -> pd.DataFrame:
    choice = config.clean.cap if config.clean else "random"
    if choice == "first":
        return cap_first(rows, most)
    if choice == "diverse":
        assert embed is not None  # a config that cleans has one
        return cap_diverse(rows, most, embed)
    return cap_large(rows, most, config.seed)


def refuse_outside(config: MixConfig) -> None:
    """Raise UserError if a source is outside the mix's root, before any is drawn or read.

    An archive and an index of shards have roots that reading them finds.
    """
    for source in config.sources:
        assert source.path is not None  # `with_path` has found it
        path = Path(source.path)
        if isinstance(source, ManifestSource):
            if source.root or (path.suffix == ".csv" and path.is_file()):
                prefix_of(Path(source.root or path.parent), config.image_root)
        elif isinstance(source, ToySource) or path.is_dir():
            prefix_of(path, config.image_root)


def refuse_missing_inputs(config: MixConfig) -> None:
    """Raise UserError for a missing source, model or file that a later step needs, before any is read."""
    for source in config.sources:
        # A toy set is drawn. An archive may be gone once it is unpacked.
        if not isinstance(source, ToySource) and not str(source.path).endswith(SUFFIXES):
            refuse_missing([source.path])
    if config.pseudo_labels and config.pseudo_labels.calibration:
        refuse_missing([config.pseudo_labels.calibration.manifest])
    if config.clean and config.clean.model:
        refuse_no_model(config.clean.model)
    if config.selection:
        refuse_missing([config.selection.full])
        if config.selection.proxy:
            refuse_no_model(config.selection.proxy.model)


def refuse_overwriting(config: MixConfig) -> None:
    """Raise UserError if `out` is a source, or a manifest or sidecar that curate.py did not write."""
    for number, source in enumerate(config.sources):
        assert source.path is not None  # `with_path` has found it
        if os.path.realpath(source.path) == os.path.realpath(config.out):
            raise UserError(f"out: {config.out} is source {number}; write the mix elsewhere")
    out = Path(config.out)
    results = [out, sidecar_path(out), config.summary_path]
    if not _has_findings(config):  # else curate.py wrote them, and stopped
        results += [config.beside(end) for end in (".findings.csv", ".merges.csv", ".html")]
    standing = [path for path in results if os.path.lexists(path)]
    if standing and not _is_mix(config):
        raise UserError(
            f"out: {standing[0]} exists, and no {config.summary_path.name} next to it shows that"
            " curate.py wrote it; write the mix elsewhere, or move that file away"
        )


def _has_findings(config: MixConfig) -> bool:
    path = config.beside(".findings.csv")
    return path.is_file() and path.read_bytes().startswith(",".join(FINDINGS[:3]).encode())


def _is_mix(config: MixConfig) -> bool:
    """Return whether curate.py wrote `out` before, according to its summary."""
    try:
        summary = json.loads(config.summary_path.read_text(encoding="utf-8"))
        return Path(summary["config"]["out"]).name == Path(config.out).name
    except (OSError, ValueError, KeyError, TypeError):  # no summary, or not one of curate.py
        return False


def refuse_illegal(table: pd.DataFrame, sidecar: Sidecar, config: MixConfig) -> None:
    """Check the combined manifest: sources that are valid alone may overlap.

    Raises UserError for overlaps, and if a mix for training has no train images.
    """
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


def pseudo_label(
    table: pd.DataFrame,
    settings: PseudoLabelConfig,
    config: MixConfig,
    workers: int,
    account: CurationReport,
) -> pd.DataFrame:
    """Label the train images of the config's domains by zero-shot CLIP; drop the unsure ones.

    Raises UserError if there is no such image, or if no confidence reaches the required precision.
    """
    train = table[(table["split"] == "train") & table["domain"].isin(settings.domains)]
    if train.empty:
        raise UserError(
            f"pseudo_labels.domains: no train image in {', '.join(settings.domains)};"
            f" domains of the mix: {', '.join(sorted(table['domain'].unique()))}"
        )
    texts = class_texts(settings.clip, settings.classes)
    labels = list(settings.classes)
    scale, least, measured = _calibrated(settings, texts, config, workers)
    emb_ND = features_of(settings.clip, train["image_path"], config.image_root, config, workers)
    guesses = guess(emb_ND, texts.emb_CD, scale)
    sure_N = sure(guesses, least, settings.min_margin, settings.max_images)
    if settings.mode == "label":
        remaining = relabelled(train, guesses, sure_N, labels)
    else:
        remaining = train[~contradicted(train, guesses, sure_N, labels)]
    account.details["pseudo_labels"] = {
        "looked_at": len(train),
        "sure": int(sure_N.sum()),
        "kept": len(remaining),
        "min_confidence": round(least, 6),
        "scale": round(scale, 4),
        **measured,
    }
    table = pd.concat([table.drop(train.index), remaining]).sort_index(kind="stable")
    if "label_source" in table:
        table["label_source"] = table["label_source"].fillna("")
    table = table.reset_index(drop=True)
    account.after("pseudo_labels", table)
    return table


def match_domains(
    table: pd.DataFrame,
    shares: DomainShares,
    config: MixConfig,
    workers: int,
    account: CurationReport,
) -> pd.DataFrame:
    """Subsample the train images to the config's target shares of the domains."""
    domain_of_row = _domains_by_clip(table, shares, config, workers)
    table = match_shares(table, domain_of_row, shares.shares, config.seed)
    account.after("shares", table)
    return table


def _domains_by_clip(
    table: pd.DataFrame, shares: DomainShares, config: MixConfig, workers: int
) -> pd.Series:
    """Return the domain of every row: the manifest's, or CLIP's prediction for train images."""
    domain_of_row = table["domain"].copy()
    if shares.domain_source is not None:
        train = table.index[table["split"] == "train"]
        clip, names = shares.domain_source.clip, shares.domain_source.names
        texts = class_texts(clip, names)
        paths = table["image_path"][train]
        emb_ND = features_of(clip, paths, config.image_root, config, workers)
        domain_of_row[train] = np.asarray(list(names))[
            guess(emb_ND, texts.emb_CD, texts.scale).first_N
        ]
    return domain_of_row


def _calibrated(
    settings: PseudoLabelConfig, texts: ClassTexts, config: MixConfig, workers: int
) -> tuple[float, float, dict[str, Any]]:
    """Return the inverse temperature, the minimum confidence, and how they were calibrated."""
    sample = settings.calibration
    if sample is None:
        return texts.scale, settings.min_confidence, {"calibrated_on": 0, "calibration": []}
    manifest = load_manifest(sample.manifest, sample.root)
    labels = list(settings.classes)
    rows = manifest.table[manifest.table["label"].isin(labels)]
    if rows.empty:
        raise UserError(f"{sample.manifest}: none of its labels is in pseudo_labels.classes")
    emb_ND = features_of(settings.clip, rows["image_path"], manifest.root, config, workers)
    truth_N = rows["label"].map({label: row for row, label in enumerate(labels)}).to_numpy()
    scale = fit_scale(np.asarray(emb_ND, np.float32) @ texts.emb_CD.T, truth_N, texts.scale)
    guesses = guess(emb_ND, texts.emb_CD, scale)
    curve = precision_curve(guesses.confidence_N, guesses.first_N == truth_N)
    measured = {"calibrated_on": len(rows), "calibration": thinned(curve)}
    if sample.precision is None:
        return scale, settings.min_confidence, measured
    least = least_confidence(curve, sample.precision)
    if least is None:
        raise UserError(
            f"pseudo_labels.calibration.precision: no confidence reaches {sample.precision} on"
            f" {len(rows):,} images; the best is {curve['at_least'].max():.3f}, with 95 % certainty"
        )
    return scale, max(least, settings.min_confidence), measured


def features_of(
    by: ClipConfig | ProxyEvaluatorConfig,
    paths: pd.Series,
    root: Path,
    config: MixConfig,
    workers: int,
    part: tuple[int, int] = (0, 1),
) -> Rows:
    """Return the features of images by the model of a config; compute those of a part that are missing."""
    reopen = partial(open_model, by.model, by.size_px, by.fit)
    settings: dict[str, Any] = {"workers": workers, "part": part, "reopen": reopen}
    return stored_features(
        make_accelerator(), reopen(), paths.tolist(), root, config.features, **settings
    )
