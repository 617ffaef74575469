"""Make a mix: run the steps of curation in order, or compute one part of what they need."""

from __future__ import annotations

import hashlib
import re
from functools import partial

import pandas as pd

from guie.base.errors import UserError
from guie.config import MixConfig, RunConfig, load_config
from guie.config.data import CleaningConfig, ClipConfig, ProxyEvaluatorConfig, SelectionConfig
from guie.config.training import refuse_untrainable
from guie.curation.classes import oversample, split_validation
from guie.curation.cleaning import clean_rows, refuse_late_leaks
from guie.curation.duplicates.comparing import Pixels
from guie.curation.duplicates.links import images_of, measured
from guie.curation.features import embed_for
from guie.curation.pipeline import (
    checks_of,
    combine,
    limit_classes,
    prefix_of,
    read_one,
    read_sources,
    refuse_illegal,
)
from guie.curation.proxy import Proxy
from guie.curation.pseudo_labels import match_domains, pseudo_label
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


def curate(config: MixConfig, workers: int, report: CurationReport) -> tuple[pd.DataFrame, Sidecar]:
    """Run the steps of a mix in order; return its rows and the overlaps its sidecar declares.

    Raises UserError for whatever a step refuses.
    """
    table, sidecar = read_sources(config, workers, report)
    embed = links = None
    if config.pseudo_labels:
        table = pseudo_label(table, config.pseudo_labels, config, workers, report)
    if config.clean:
        embed = embed_for(config.clean, config.image_root, config.features, workers)
        table, links = clean_rows(table, config.clean, config, embed, workers, report)
    table = limit_classes(table, config, embed, report)
    if config.shares:
        table = match_domains(table, config.shares, config, workers, report)
    table = split_validation(table, config.val_fraction, config.seed, leave=sidecar.whole())
    if config.clean and links is not None:
        table = refuse_late_leaks(table, links, config.clean, report)
    if config.selection:
        table = select_rows(table, config.selection, config, workers, report, sidecar)
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
    report: CurationReport,
    sidecar: Sidecar,
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
        assert selection.proxy is not None  # checked with the config
        embed = embed_for(selection.proxy, config.image_root, config.features, workers)
        feat_NF = embed(table["image_path"].tolist(), "whole")
        proxy = Proxy(feat_NF, table, selection.proxy, selection.metric)
        identity = proxy.identity()

        def evaluate(mix: Mix, seed: int) -> Score:
            return proxy.score(rows_of(mix), seed)
    else:
        full = FullTraining(table, selection, config, sidecar)
        identity = full.identity

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
    report.gains = gains(steps)
    table = pd.concat([rows_of(steps[-1].mix), table[table["split"] != "train"]], ignore_index=True)
    report.after("selection", table)
    return table


class FullTraining:
    """Score train rows by a full training run: the best score on a fixed val split.

    Args:
        table: rows of a manifest, including train and val.
        sidecar: the overlaps that it declares.

    Raises UserError if the config of the training is at fault.
    """

    def __init__(
        self, table: pd.DataFrame, selection: SelectionConfig, config: MixConfig, sidecar: Sidecar
    ):
        assert selection.full is not None  # the evaluator is `full`
        # Each training gets its own name and manifest.
        given = ["name=run", "data.manifest=mix"]
        self.run = load_config(selection.full, RunConfig, given)
        refuse_untrainable(self.run)
        self.metric, self.root, self.sidecar = selection.metric, config.image_root, sidecar
        self.val = table[table["split"] == "val"]
        rows = table[["image_path", "label", "domain", "split", "role"]]
        whole = hashlib.sha256(self.run.model_dump_json().encode())
        whole.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
        digest = whole.hexdigest()[:16]
        self.folder = config.beside(".selection") / digest
        # Everything that a score depends on except the rows and the seed
        self.identity = f"{digest} {self.metric}"

    def score(self, rows: pd.DataFrame, name: str, seed: int) -> Score:
        """Train on some of the table's train rows, the mix `name`, and score on val."""
        slug = re.sub(r"[^\w.-]", "_", name)[:SLUG_CHARS]
        # Names of several sources or caps contain characters that a run's name must not have
        if slug != name:
            slug += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        manifest = self.folder / f"{slug}.csv"
        save_manifest(pd.concat([rows, self.val], ignore_index=True), manifest, self.sidecar)
        data = {"manifest": str(manifest), "root": str(self.root)}
        changed = {
            "name": f"{slug}-{seed}",
            "out": str(self.folder),
            "seed": seed,
            "data": self.run.data.model_copy(update=data),
        }
        # Imported here: most mixes train nothing
        from guie.training.loop import run_config

        done = run_config(self.run.model_copy(update=changed), resume=True)
        lines = [line for line in read_metrics(done / METRICS_FILE) if "val_r_at_1" in line]
        best = max(lines, key=lambda line: line[f"val_{self.metric}"])
        prefix = "val_r_at_1/"
        domains = {key.removeprefix(prefix): best[key] for key in best if key.startswith(prefix)}
        return Score(best[f"val_{self.metric}"], domains)


def compute_part(config: MixConfig, part: tuple[int, int], workers: int) -> str:
    """Compute part n of m of what curating reads from stores, and return what was done.

    Every job checks its images. If all images of the mix are checked by then, it also computes its part of
    the features and compares its part of the similar pictures. Later steps may drop an image that got
    features here. Raises UserError.
    """
    done, missing, good = 0, 0, []
    for source in config.sources:
        read, _ = read_one(source, config.seed, workers)
        prefix = prefix_of(read.root, config.image_root)
        rows = read.table
        if config.verify:
            checks = checks_of(config, rows["image_path"].unique(), prefix)
            done += len(checks.fill(workers, str(source.path), part))
            missing += len(checks.missing())
            if missing:
                continue
            found = checks.table()
            rows = rows.merge(found, left_on="image_path", right_index=True, suffixes=("_", ""))
            rows = rows[rows["reason"] == ""]
        good.append(rows.assign(image_path=prefix + rows["image_path"]))
    checked = f"{done:,} images checked"
    if missing:
        return f"{checked}; {missing:,} of other parts are not yet: run all parts again for the features"
    table = combine(good)
    _compute_features(config, table, workers, part)
    if config.clean is None or config.clean.near is None:
        return f"{checked}, features computed"
    images = images_of(table).drop_duplicates("pixels").reset_index(drop=True)
    embed = embed_for(config.clean, config.image_root, config.features, workers)
    digests = dict(zip(images["image_path"], images["pixels"], strict=True))
    pixels = Pixels(config.image_root, workers, digests)
    pairs = measured(images, config.clean.near, embed, pixels, part)
    return f"{checked}, features computed, {len(pairs):,} pairs of similar images compared"


def _compute_features(
    config: MixConfig, table: pd.DataFrame, workers: int, part: tuple[int, int]
) -> None:
    """Compute a part of the features that the steps of curation ask for, of the rows that need them."""
    train = table[table["split"] == "train"]
    wanted: list[tuple[CleaningConfig | ClipConfig | ProxyEvaluatorConfig, pd.DataFrame]] = []
    if labels := config.pseudo_labels:
        wanted.append((labels.clip, train[train["domain"].isin(labels.domains)]))
    clean = config.clean
    if clean and clean.model:
        if clean.outliers or clean.cap == "diverse" or clean.suggest_merges is not None:
            wanted.append((clean, train))
    if config.shares and config.shares.domain_source:
        wanted.append((config.shares.domain_source.clip, train))
    if config.selection and config.selection.evaluator == "proxy":
        assert config.selection.proxy is not None  # checked with the config
        wanted.append((config.selection.proxy, table))
    for by, rows in wanted:
        embed = embed_for(by, config.image_root, config.features, workers, part)
        embed(rows["image_path"].unique().tolist(), "whole")
