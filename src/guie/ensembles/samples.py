"""Embed the images that an ensemble is fitted on and scored with."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from accelerate import Accelerator
from torch.utils.data import ConcatDataset, TensorDataset

from guie.base.devices import from_main
from guie.base.errors import UserError
from guie.config.ensemble import ComposeConfig, SampleConfig
from guie.data.dataset import EvalDataset
from guie.data.loader import eval_loader
from guie.data.manifest import Manifest, load_manifest
from guie.data.preprocess import Inputs
from guie.evaluation.reduction import balanced_sample
from guie.evaluation.validation import flat_scores, quick_scores, refuse_unscorable
from guie.models.opening import LoadedModel
from guie.rows.embedding import embed_dataset

Scores = dict[str, float] | None  # as `validate` returns them; None if nothing is scored

# Limit for val images prepared once for all trials of a soup; above it they are decoded each time
MOST_KEPT_BYTES = 2 << 30


class Fits:
    """Embed samples of manifests, and score on the val split, with the same result in all processes.

    Raises UserError if the manifest has no val split, or no query in it has a positive.
    """

    def __init__(self, accelerator: Accelerator, config: ComposeConfig):
        self.accelerator, self.config = accelerator, config
        self.val: Manifest | None = None
        if config.val:
            self.val = load_manifest(config.val.manifest, config.val.root)
            self.val = self.val.without(config.val.leave_out)
            self.val.split("val")  # raises UserError if there is none
            from_main(accelerator, partial(refuse_unscorable, self.val))
        self._kept: tuple[Any, ConcatDataset] | None = None

    def warn(self, lines: Sequence[str]) -> None:
        """Print warnings to stderr, once."""
        for line in lines if self.accelerator.is_main_process else ():
            print(f"warning: {line}", file=sys.stderr)

    def embedded(
        self, model: LoadedModel, sample: SampleConfig
    ) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return embeddings (N, D) of a sample, its images' domains (N,), and a record of the sample.

        Raises UserError for a domain that is not in the manifest.
        """
        manifest = load_manifest(sample.manifest, sample.root).without(sample.leave_out)
        rows = manifest.split(sample.split)
        known = sorted(rows["domain"].unique())
        missing = [name for name in sample.domains or [] if name not in known]
        if missing:
            raise UserError(
                f"{sample.manifest}: the {sample.split} split has no domain {missing[0]!r}; available:"
                f" {', '.join(known)}"
            )
        rows = rows[rows["domain"].isin(sample.domains or known)]
        rows = balanced_sample(rows, sample.per_domain, sample.seed)
        emb_ND = self._embed(model, manifest, rows, "fit")
        images = rows["domain"].value_counts().sort_index().to_dict()
        basis = {"manifest": sample.manifest, "split": sample.split, "seed": sample.seed}
        return emb_ND, rows["domain"].to_numpy(str), basis | {"images": images}

    def scores(self, model: LoadedModel, keep: bool = False) -> Scores:
        """Return R@1 and mMP@5 of the val split, and R@1 of each domain; None without `val`.

        `keep` keeps prepared images for later models with the same preprocessing.
        """
        if self.val is None:
            return None
        rows = self.val.split("val")
        emb_ND = self._embed(model, self.val, rows, "val", keep)
        return flat_scores(from_main(self.accelerator, lambda: quick_scores(emb_ND, rows)))

    def _embed(
        self,
        model: LoadedModel,
        manifest: Manifest,
        rows: pd.DataFrame,
        title: str,
        keep: bool = False,
    ) -> np.ndarray:
        files = [manifest.file(path) for path in rows["image_path"]]
        dataset = EvalDataset(files, model.preprocess, decode=manifest.sidecar.decode)
        kept = keep and self.accelerator.num_processes == 1 and self._prepared(model, dataset)
        views = len(model.preprocess.sides_px) if isinstance(model.preprocess, Inputs) else 1
        return embed_dataset(
            self.accelerator,
            model.embedder.to(self.accelerator.device),
            kept or dataset,
            batch_size=max(1, self.config.batch_size // views),
            workers=0 if kept else self.config.workers,
            title=title,
        )

    def _prepared(self, model: LoadedModel, dataset: EvalDataset) -> Any:
        """Return the preprocessed images, kept in memory; None if they need too much."""
        recipe = model.preprocess.recipe()
        if self._kept is None or self._kept[0] != recipe:
            size, step = len(dataset), self.config.batch_size
            if dataset[0][0].nbytes * size > MOST_KEPT_BYTES:
                return None
            batches = [range(n, min(n + step, size)) for n in range(0, size, step)]
            loaded = eval_loader(dataset, batches, self.config.workers)
            self._kept = (recipe, ConcatDataset([TensorDataset(*batch) for batch in loaded]))
        return self._kept[1]
