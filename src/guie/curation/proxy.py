"""A proxy for training: train only the head, on features of a frozen backbone computed once.

It scores a mix in seconds. Shapes: N images, B images of a batch, F features, D dimensions.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from guie.config.data import ProxyEvaluatorConfig
from guie.config.stages import CosineSchedule
from guie.curation.selection import Score
from guie.data.sampling import Stream
from guie.evaluation.validation import quick_scores
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import ArcFace
from guie.models.head import Head
from guie.rows.store import Rows
from guie.training.optim import schedule_factor


class Proxy:
    """Score training rows: train a head on them and evaluate it on a fixed val split.

    Args:
        feat_NF: features of the table's rows, any float type; may be memory-mapped.
        table: rows of a manifest, including train and val.
        config: settings of the head and its training.
        metric: r_at_1 or mmp_at_5, on the merged val index, mean over domains.
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

    def score(self, rows: pd.DataFrame, seed: int) -> Score:
        """Train on some of the table's train rows and score on val; deterministic for a seed."""
        head = self._train(rows, seed).eval()
        with torch.inference_mode():
            emb_ND = functional.normalize(head(self.val_feat_NF), dim=-1).numpy()
        scores = quick_scores(emb_ND, self.val)
        domains = {name: values[self.metric] for name, values in scores["domains"].items()}
        return Score(scores[self.metric], domains)

    def identity(self) -> str:
        """Return a hash of everything that a score depends on except the rows and the seed."""
        digest = hashlib.sha256(f"{self.config.model_dump_json()} {self.metric}".encode())
        rows = self.table[["image_path", "label", "domain", "split", "role"]]
        digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
        digest.update(np.ascontiguousarray(self.feat_NF).data)
        return digest.hexdigest()[:16]

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
                batch_B = torch.from_numpy(stream.take(step * config.batch_size, config.batch_size))
                emb_BD = functional.normalize(head(feat_NF[batch_B]), dim=-1)
                optimizer.zero_grad()
                loss(emb_BD, label_N[batch_B])[0].backward()
                optimizer.step()
        return head

    def _load(self, row_N: np.ndarray) -> Tensor:
        return torch.from_numpy(self.feat_NF[row_N].astype(np.float32))
