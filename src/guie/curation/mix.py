"""Make a mix: run the steps of curation in order, and select sources by scores of mixes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, load_config
from guie.config.data import SelectionConfig
from guie.curation.classes import oversample, split_validation
from guie.curation.cleaning import clean_rows, refuse_late_leaks
from guie.curation.duplicates.evidence import embed_for
from guie.curation.pipeline import (
    features_of,
    limit_classes,
    match_domains,
    pseudo_label,
    read_sources,
    refuse_illegal,
)
from guie.curation.proxy import Proxy
from guie.curation.selection import (
    Evaluations,
    Mix,
    Score,
    candidates_of,
    gains,
    mix_name,
    mix_rows,
    render,
    search,
)
from guie.curation.summary import CurationReport
from guie.data.manifest import Sidecar, save_manifest
from guie.training.run_folder import METRICS_FILE, read_metrics

SLUG_CHARS = 80  # characters of a mix's name that its file names use
Train = Callable[[Sequence[str]], Path]  # from the arguments of train.py to the run folder


def curate(
    config: MixConfig, workers: int, account: CurationReport, train: Train
) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and the overlaps its sidecar declares.

    Args:
        train: `main` of train.py, for a selection by full trainings.
    """
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
    table = split_validation(table, config.val_fraction, config.seed, leave=sidecar.whole())
    if config.clean and links is not None:
        table = refuse_late_leaks(table, links, config.clean, account)
    if config.selection:
        table = select_rows(table, config.selection, config, workers, account, sidecar, train)
    if config.clean and config.clean.oversample:
        table = oversample(table, config.clean.oversample)
    table = table.drop(columns="source")
    refuse_illegal(table, sidecar, config)
    return table, sidecar


def select_rows(
    table: pd.DataFrame,
    selection: SelectionConfig,
    config: MixConfig,
    workers: int,
    account: CurationReport,
    sidecar: Sidecar,
    train: Train,
) -> pd.DataFrame:
    """Return the train rows of the best mix found, with all of val and test.

    Raises UserError if there is no val split to score on, or the budget ends within the first step.
    """
    if not (table["split"] == "val").any():
        raise UserError("selection: needs a val split to score mixes on; raise val_fraction")
    if selection.by not in table or (table[selection.by] == "").any():
        raise UserError(f"selection.by: some rows have no {selection.by}; set it to domain")
    rows_of = partial(mix_rows, table, by=selection.by, seed=config.seed)
    if selection.evaluator == "proxy":
        by = selection.proxy
        assert by is not None
        feat_NF = features_of(by, table["image_path"], config.image_root, config, workers)
        proxy = Proxy(feat_NF, table, by, selection.metric)
        identity = proxy.identity()

        def evaluate(mix: Mix, seed: int) -> Score:
            return proxy.score(rows_of(mix), seed)
    else:
        full = FullTraining(table, selection, config, sidecar, train)
        identity = full.identity()

        def evaluate(mix: Mix, seed: int) -> Score:
            return full.score(rows_of(mix), mix_name(mix), seed)

    log = Evaluations(
        config.beside(".selection.jsonl"),
        f"{identity} {selection.by} {config.seed}",
        evaluate,
        selection.rule.max_evaluations,
        selection.rule.max_minutes,
    )
    candidates = candidates_of(table, selection.by, selection.caps)
    steps = search(candidates, log, selection.rule, config.beside(".selection.json"))
    print(render(steps))
    account.gains = gains(steps)
    table = pd.concat([rows_of(steps[-1].mix), table[table["split"] != "train"]], ignore_index=True)
    account.after("selection", table)
    return table


class FullTraining:
    """Score train rows by a full run of train.py: the best score on a fixed val split.

    Args:
        table: rows of a manifest, including train and val.
        sidecar: the overlaps that it declares.
        train: `main` of train.py.
    """

    def __init__(
        self,
        table: pd.DataFrame,
        selection: SelectionConfig,
        config: MixConfig,
        sidecar: Sidecar,
        train: Train,
    ):
        assert selection.full is not None  # the evaluator is `full`
        self.full, self.metric, self.config = selection.full, selection.metric, config
        self.sidecar, self.train, self.val = sidecar, train, table[table["split"] == "val"]
        given = ["name=run", "data.manifest=mix"]  # a training gets its own
        settings = load_config(self.full, RunConfig, given).model_dump_json()
        rows = table[["image_path", "label", "domain", "split", "role"]]
        digest = hashlib.sha256(settings.encode())
        digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
        self.trained = digest.hexdigest()[:16]

    def identity(self) -> str:
        """Return everything that a score depends on except the rows and the seed."""
        return f"{self.trained} {self.metric}"

    def score(self, rows: pd.DataFrame, name: str, seed: int) -> Score:
        """Train on some of the table's train rows, the mix `name`, and score on val."""
        folder = self.config.beside(".selection") / self.trained
        slug = re.sub(r"[^\w.-]", "_", name)[:SLUG_CHARS]
        # Names of several sources or caps contain characters that a run's name must not have
        if slug != name:
            slug += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        manifest = folder / f"{slug}.csv"
        save_manifest(pd.concat([rows, self.val], ignore_index=True), manifest, self.sidecar)
        root = self.config.image_root
        words = [f"data.manifest={_text(manifest)}", f"data.root={_text(root)}", f"seed={seed}"]
        words += [f"name={slug}-{seed}", f"out={_text(folder)}"]
        done = self.train(
            ["--config", self.full, "--resume", *(w for word in words for w in ("--set", word))]
        )
        lines = [line for line in read_metrics(done / METRICS_FILE) if "val_r_at_1" in line]
        best = max(lines, key=lambda line: line[f"val_{self.metric}"])
        prefix = "val_r_at_1/"
        domains = {key.removeprefix(prefix): best[key] for key in best if key.startswith(prefix)}
        return Score(best[f"val_{self.metric}"], domains)


def _text(path: Path) -> str:
    """Return a path as YAML text: without quotes `2024` is a number, and ` #1` a comment."""
    return json.dumps(str(path), ensure_ascii=False)
