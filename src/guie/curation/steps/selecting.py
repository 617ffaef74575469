"""Greedy selection as a step of a mix: which sources, under which caps, earn their place."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from guie.base.devices import make_accelerator
from guie.base.errors import UserError
from guie.config import MixConfig
from guie.config.selection import SelectionConfig
from guie.curation.selection.candidates import candidates_of, mix_name, mix_rows
from guie.curation.selection.earned import earned, render
from guie.curation.selection.evaluations import Evaluations, Score
from guie.curation.selection.proxy import Proxy
from guie.curation.selection.search import search
from guie.curation.steps.account import Account
from guie.evaluation.features import cached_features
from guie.model import open_model

# The train and val rows of a mix, its name and a seed -> its score: a whole training.
Train = Callable[[pd.DataFrame, str, int], Score]


def select_rows(
    table: pd.DataFrame,
    selection: SelectionConfig,
    config: MixConfig,
    workers: int,
    account: Account,
    train: Train,
) -> pd.DataFrame:
    """The train rows of the best mix that was found, with all of val and test.

    Args:
        train: the evaluator `full`: trains on a mix and scores it on val.

    Raises:
        UserError: there is no val split to judge by, or the budget ends within the first step.
    """
    if not (table["split"] == "val").any():
        raise UserError("selection: needs a val split to judge by; raise val_fraction")
    if selection.by not in table or (table[selection.by] == "").any():
        raise UserError(f"selection.by: some rows have no {selection.by}; use domain")
    held_out = table[table["split"] != "train"]
    judge: Train
    if selection.evaluator == "proxy" and selection.proxy is not None:
        model = open_model(selection.proxy.model, selection.proxy.size_px, selection.proxy.fit)
        paths = table["image_path"].tolist()
        feat_NF = cached_features(
            make_accelerator(), model, paths, config.image_root, config.features, workers=workers
        )
        proxy = Proxy(feat_NF, table, selection.proxy, selection.metric)
        identity = proxy.identity()
        judge = lambda rows, name, seed: proxy.score(rows, seed)  # noqa: E731
    else:
        rows = table[["image_path", "label", "domain", "split", "role"]]
        identity = f"{selection.full} {pd.util.hash_pandas_object(rows, index=False).sum():x}"
        val = table[table["split"] == "val"]
        judge = lambda rows, name, seed: train(  # noqa: E731
            pd.concat([rows, val], ignore_index=True), name, seed
        )
    log = Evaluations(
        config.beside(".selection.jsonl"),
        f"{identity} {selection.by} {config.seed}",
        lambda mix, seed: judge(
            mix_rows(table, mix, selection.by, config.seed), mix_name(mix), seed
        ),
        selection.rule.max_evaluations,
        selection.rule.max_minutes,
    )
    candidates = candidates_of(table, selection.by, selection.caps)
    result = search(candidates, log, selection.rule, config.beside(".selection.json"))
    print(render(result.steps))
    account.earned = earned(result.steps)
    chosen = mix_rows(table, result.mix, selection.by, config.seed)
    table = pd.concat([chosen, held_out], ignore_index=True)
    account.after("selection", table)
    return table
