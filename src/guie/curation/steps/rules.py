"""Class sizes, and what a mix may not be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.config import MixConfig
from guie.curation.classes.caps import cap_diverse, cap_first
from guie.curation.classes.filters import cap_large, drop_rare
from guie.curation.steps.account import Account
from guie.data.manifest import Sidecar, check
from guie.data.manifest.sidecar import sidecars
from guie.evaluation.features import Embed


def limit_classes(
    table: pd.DataFrame, config: MixConfig, embed: Embed | None, account: Account
) -> pd.DataFrame:
    """Drop rare classes and cap large ones, within each source.

    Raises UserError if nothing is left of a source.
    """
    large_enough, capped = [], []
    for number, source in enumerate(config.sources):
        rows = table[table["source"] == number].reset_index(drop=True)
        least, most = config.limits(source)
        rows = drop_rare(rows, least)
        if rows.empty:
            raise UserError(
                f"{source.path}: no class has {least} images, nothing is left; lower min_images"
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


def refuse_overwriting(config: MixConfig) -> None:
    """A mix must not replace one of its sources, nor a manifest or a sidecar that is not a mix's."""
    for number, source in enumerate(config.sources):
        assert source.path is not None  # `with_path` has found it
        if os.path.realpath(source.path) == os.path.realpath(config.out):
            raise UserError(f"out: {config.out} is source {number}; write the mix elsewhere")
    out = Path(config.out)
    standing = [path for path in (out, *sidecars(out)) if path.exists()]
    if standing and not _is_mix(config):
        raise UserError(
            f"out: {standing[0]} would be replaced, and no {config.summary_path.name} beside it shows"
            " that it is of a mix; write the mix elsewhere, or move that file away"
        )


def _is_mix(config: MixConfig) -> bool:
    """Whether curate.py has written `out` before: its summary says so."""
    try:
        summary = json.loads(config.summary_path.read_text(encoding="utf-8"))
        return Path(summary["config"]["out"]).name == Path(config.out).name
    except (OSError, ValueError, KeyError, TypeError):  # none, or somebody else's
        return False


def refuse_illegal(table: pd.DataFrame, sidecar: Sidecar, config: MixConfig) -> None:
    """Each source passes the manifest's checks, but together they may overlap."""
    if not config.benchmark and not (table["split"] == "train").any():
        raise UserError(
            f"{config.out}: no source brings train images; nothing to train on (a mix that is only"
            " scored says benchmark: true)"
        )
    faults = check(table, sidecar)
    if faults:
        line, what = faults[0]
        raise UserError(
            f"{config.out}: not written, the sources do not fit together ({len(faults)} faults):"
            f" {table['image_path'][line - 2]}: {what}; drop one, or keep only some domains of it"
        )
