"""Base class of all tasks: embedder, stages, and retention terms.

Shapes: B images, F backbone features.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from guie.config import RunConfig
from guie.data.dataset import Batch
from guie.losses.base import HostCounters, LossAndLogs, LossStage
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import MarginRule
from guie.models.embedder import Embedder
from guie.models.weights import CLASS_WEIGHT, save_model, save_weights
from guie.training.micro_batches import in_micro_batches
from guie.training.retention import Retention


class Task(nn.Module):
    """Map a `Batch` to loss and logs. DDP synchronises everything inside the module."""

    embedder: Embedder

    @property
    def classifier(self) -> MarginSoftmax | None:
        """The loss whose class weights are in the embedding space; None if there is none."""
        return None

    def __init__(self, config: RunConfig):
        super().__init__()
        self.config = config
        self.retention = Retention(config) if config.retention else None

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        """Return part name -> its parameters by name, for rates, decay, freezing and statistics.

        Every parameter that may be trained belongs to exactly one part.
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

    def split_criteria(self) -> list[MarginSoftmax]:
        """Return the losses to which all processes give equally many images; FSDP splits their classes."""
        return []

    def unused_parameters(self) -> set[nn.Parameter]:
        """Return the parameters after the tapped layers, which receive no gradient and never train."""
        backbone = self.embedder.backbone
        if backbone.layers is None:
            return set()
        named = dict(backbone.tower.named_parameters())
        return {named[name] for name in backbone.layers.unused_parameters}

    def forward(self, batch: Batch) -> LossAndLogs:
        """Return the loss of a batch, with a gradient, and scalars for the log."""
        raise NotImplementedError

    def features(self, batch: Batch) -> Tensor:
        """Return the backbone's features of a batch, (B, F), not normalised: cached, or of its images."""
        if batch.feat_BF is not None:
            return batch.feat_BF
        assert batch.images_BCHW is not None
        return in_micro_batches(self.embedder.backbone, batch.pieces, batch.images_BCHW)

    def set_epoch(self, epoch: float) -> None:
        """Update all scheduled margins to the run's progress, in (fractional) epochs from 0."""
        for module in self.modules():
            if isinstance(module, MarginRule):
                module.set_epoch(epoch)

    def begin_stage(self, number: int, class_ids: Sequence[int]) -> None:
        """Prepare for a stage of the config, by its number and the classes with training images in it.

        Call it after `freeze`, and before building the optimiser and loading a checkpoint of this stage.
        The checkpoint overrides what this method sets.
        """
        if self.retention:
            self.retention.begin_stage(number, self.embedder.backbone)
        for module in self.modules():
            if isinstance(module, HostCounters):
                module.read_counts()  # a weight average has buffers of its own

    def loss_stage(self, number: int) -> LossStage:
        """Return what a stage of the config sets in the task's losses."""
        stage = self.config.stages[number]
        return LossStage(
            stage.margin,
            alone=stage.softmax_over == "stage",
            reset=(self.config.seed, number) if stage.classes == "reset" else None,
        )

    def sampler_loss(self, logs: dict[str, Tensor]) -> Tensor:
        """Return, from a step's logs, the loss that drives a loss-driven sampler."""
        return logs["loss"]

    def with_shared_terms(
        self, batch: Batch, feat_BF: Tensor, loss: Tensor, logs: Mapping[str, Tensor]
    ) -> LossAndLogs:
        """Return the output of `forward`: the task's loss plus terms of prompts and retention, all logs.

        The logged `loss` excludes these terms, so that runs with and without them are comparable.
        """
        logs = {"loss": loss.detach(), **logs}
        prompts = self.embedder.backbone.prompts
        if prompts and prompts.orthogonality:
            penalty = prompts.penalty()
            loss = loss + prompts.orthogonality * penalty
            logs["orthogonality"] = penalty.detach()
        if self.retention is None:
            return loss, logs
        more, terms = self.retention(self.embedder.backbone, batch, feat_BF)
        return loss + more, logs | terms

    def save(self, folder: Path, stem: str, frozen_file: str | None = None) -> None:
        """Write the embedder to `<stem>.safetensors`, and any class weights, in the order of the classes.

        The class weights, `<stem>_classes.safetensors`, give the logits for students of this run.
        """
        file, softmax = folder / f"{stem}.safetensors", self.classifier
        save_model(self.embedder, file, pretrained=self.config.base, frozen_file=frozen_file)
        if softmax:
            everyone = torch.arange(softmax.classes, device=softmax.weight_CD.device)
            weights = {CLASS_WEIGHT: softmax.centers_of(everyone).detach()}
            save_weights(weights, folder / f"{stem}_classes.safetensors")
