"""What every task has in common: an embedder, stages, and terms against forgetting.

Shapes: B images, F backbone features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from guie.config import RunConfig
from guie.data.dataset import Batch
from guie.losses import MarginSoftmax
from guie.models import save_model
from guie.models.embedder import Embedder
from guie.training.teachers import Retention, save_class_weights


class Output(NamedTuple):
    """What a task makes of a batch: the loss, a number with a gradient, and numbers for the log."""

    loss: Tensor
    logs: dict[str, Tensor]


class Task(nn.Module):
    """Takes a `Batch` and returns an `Output`. What stands inside, DDP synchronises."""

    embedder: Embedder

    @property
    def classifier(self) -> MarginSoftmax | None:
        """Whose class weights live among the embeddings, where there is one."""
        return None

    def __init__(self, config: RunConfig):
        super().__init__()
        self.config = config
        self.retention = Retention(config) if config.retention else None

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        """Part name -> its parameters by name: what rates, decay, freezing and figures go by.

        Every parameter that may be trained stands in one of them, and in no two.
        """
        backbone, head = self.embedder.backbone, self.embedder.head
        named = dict(backbone.tower.named_parameters())
        parts = {"backbone": named}
        if backbone.adapters:
            tuned = {name: named.pop(name) for name in backbone.adapters.tuned}
            parts["adapters"] = tuned | dict(backbone.adapters.named_parameters())
        for name, module in (("prompts", backbone.prompts), ("head", head)):
            if module:
                parts[name] = dict(module.named_parameters())
        return parts

    def unused_parameters(self) -> set[nn.Parameter]:
        """Those that no feature depends on, where layers before the last give them: never trained."""
        backbone = self.embedder.backbone
        if backbone.layers is None:
            return set()
        named = dict(backbone.tower.named_parameters())
        return {named[name] for name in backbone.layers.unused_parameters}

    def forward(self, batch: Batch) -> Output:
        """The loss of a batch."""
        raise NotImplementedError

    def set_epoch(self, epoch: float) -> None:
        """Tell what changes with training how far the run is, in epochs."""

    def begin_stage(self, number: int, class_ids: Sequence[int]) -> None:
        """Make ready for a stage of the config.

        Its place is after `freeze`, and before the optimiser is built and a checkpoint of this
        stage is loaded: where that says otherwise, it has the last word.

        Args:
            number: of the stage, from 0.
            class_ids: classes with training images in the stage.
        """
        if self.retention:
            self.retention.begin_stage(number, self.embedder.backbone)

    def sampler_loss(self, logs: dict[str, Tensor]) -> Tensor:
        """Of what a step logged the loss that a loss-driven sampler goes by."""
        return logs["loss"]

    def finished(
        self,
        batch: Batch,
        feat_BF: Tensor,
        loss: Tensor,
        logs: Mapping[str, Tensor],
    ) -> Output:
        """What `forward` returns: the loss with what prompts and retention add, and all logs.

        The logged `loss` is without these terms: runs with and without compare.

        Args:
            feat_BF: the backbone's features of the batch's images, of any length.
            loss, logs: of the task itself.
        """
        logs = {"loss": loss.detach(), **logs}
        prompts = self.embedder.backbone.prompts
        if prompts and prompts.orthogonality:
            penalty = prompts.penalty()
            loss = loss + prompts.orthogonality * penalty
            logs["orthogonality"] = penalty.detach()
        if self.retention is None:
            return Output(loss, logs)
        more, terms = self.retention(self.embedder.backbone, batch, feat_BF)
        return Output(loss + more, logs | terms)

    def save(self, folder: Path, stem: str) -> None:
        """Write `<stem>.safetensors`, the embedder, and the class weights if there are any.

        These, `<stem>_classes.safetensors`, are what a student of this run takes its logits from.
        """
        file = folder / f"{stem}.safetensors"
        save_model(self.embedder, file, pretrained=self.config.base)
        if self.classifier:
            save_class_weights(self.classifier, folder / f"{stem}_classes.safetensors")
