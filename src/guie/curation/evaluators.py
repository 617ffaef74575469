"""Evaluators of a mix for the selection: train a head on frozen features in seconds, or a whole run.

Shapes: N images, B images of a batch, F features, D dimensions.
"""

import hashlib
import re
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from guie.config import RunConfig, load_config
from guie.config.data import MixConfig, ProxyEvaluatorConfig, SelectionConfig
from guie.config.stages import CosineSchedule
from guie.config.training import refuse_untrainable
from guie.data.manifest import Sidecar, save_manifest
from guie.data.sampling import Stream
from guie.evaluation.validation import quick_scores
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace
from guie.models.head import Head
from guie.rows.store import Rows
from guie.training.optim import schedule_factor
from guie.training.run_folder import METRICS_FILE, read_metrics

COMPARED = ["image_path", "label", "domain", "split", "role"]  # of the rows that a score depends on
SLUG_CHARS = 80  # characters of a mix's name that its file names use


class Score(NamedTuple):
    """The val score of training on a mix."""

    value: float  # the metric that the search maximizes
    domains: dict[str, float]  # the same metric for each domain


class Proxy:
    """Score training rows: train a head on them and evaluate it on a fixed val split.

    Args:
        feat_NF: features of the table's rows, any float type; may be memory-mapped.
        table: rows of a manifest, including train and val.
        metric: r_at_1 or mmp_at_5, on the merged val index, mean over domains.

    Attributes: `identity`, a hash of everything that a score depends on except the rows and the seed.
    """

    def __init__(
        self,
        feat_NF: np.ndarray | Rows,
        table: pd.DataFrame,
        config: ProxyEvaluatorConfig,
        metric: str = "r_at_1",
    ):
        self.feat_NF, self.table, self.config, self.metric = feat_NF, table, config, metric
        train = np.flatnonzero(table["split"] == "train")
        self.row_of = pd.Series(train, table["image_path"].iloc[train])
        val = np.flatnonzero(table["split"] == "val")
        self.val, self.val_feat_NF = table.iloc[val].reset_index(drop=True), self._load(val)
        digest = hashlib.sha256(f"{config.model_dump_json()} {metric}".encode())
        digest.update(_hashed(table))
        digest.update(np.ascontiguousarray(feat_NF).data)
        self.identity = digest.hexdigest()[:16]

    def score(self, rows: pd.DataFrame, seed: int, name: str = "") -> Score:
        """Train on some of the table's train rows and score on val; deterministic for a seed."""
        head = self._train(rows, seed).eval()
        with torch.inference_mode():
            emb_ND = functional.normalize(head(self.val_feat_NF), dim=-1).numpy()
        scores = quick_scores(emb_ND, self.val)
        domains = {name: values[self.metric] for name, values in scores["domains"].items()}
        return Score(scores[self.metric], domains)

    def _train(self, rows: pd.DataFrame, seed: int) -> Head:
        config = self.config
        feat_NF = self._load(self.row_of[rows["image_path"]].to_numpy())
        ids_N, classes = pd.factorize(rows["label"], sort=True)
        label_N = torch.from_numpy(ids_N)
        steps = max(config.min_steps, round(config.epochs * len(feat_NF) / config.batch_size))
        stream = Stream(np.arange(len(feat_NF)), (seed,))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            head = Head(config.head, feat_NF.shape[1])
            rule = ArcFace(config.margin_rad)
            loss = MarginSoftmax(len(classes), config.head.dim, rule, scale=config.scale)
            optimizer = torch.optim.AdamW(
                [*head.parameters(), *loss.parameters()],
                lr=config.lr,
                weight_decay=config.weight_decay,
            )
            for step in range(steps):
                factor = schedule_factor(CosineSchedule(), step, steps, 0)
                optimizer.param_groups[0]["lr"] = config.lr * factor
                _, rows_B = stream.draw(step * config.batch_size, config.batch_size)
                batch_B = torch.from_numpy(rows_B)
                emb_BD = functional.normalize(head(feat_NF[batch_B]), dim=-1)
                optimizer.zero_grad()
                loss(emb_BD, label_N[batch_B])[0].backward()
                optimizer.step()
        return head

    def _load(self, row_N: np.ndarray) -> Tensor:
        return torch.from_numpy(self.feat_NF[row_N].astype(np.float32))


class FullTraining:
    """Score train rows by a full run: the best score on the table's val split. Raises UserError."""

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
        digest = hashlib.sha256(self.run.model_dump_json().encode())
        digest.update(_hashed(table))
        self.folder = config.beside(".selection") / digest.hexdigest()[:16]
        self.identity = f"{self.folder.name} {self.metric}"

    def score(self, rows: pd.DataFrame, seed: int, name: str) -> Score:
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


def _hashed(table: pd.DataFrame) -> bytes:
    return pd.util.hash_pandas_object(table[COMPARED], index=False).to_numpy().tobytes()
