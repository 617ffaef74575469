"""Classification: train an embedding with a loss on class labels, as the challenge's winners did.

Shapes: B images, F backbone features, D dimensions of the vectors that the loss compares.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn
from torch.nn import functional

from guie.config import RunConfig
from guie.config.training import ClassificationConfig
from guie.data.dataset import Batch, Classes
from guie.losses.base import Criterion, LossAndLogs
from guie.losses.build import build_loss
from guie.losses.composite import MetaclassLoss, NestedLoss
from guie.losses.margin_softmax import MarginSoftmax
from guie.models.embedder import build_embedder
from guie.training.tasks.base import Task


class ClassificationTask(Task):
    """An embedder and a criterion on labels, with its class weights."""

    def __init__(self, config: RunConfig, classes: Classes, pretrained: bool = True):
        super().__init__(config)
        self.embedder = build_embedder(config.model, pretrained)
        assert isinstance(config.task, ClassificationConfig)  # see `build_task`
        self.relu_first = config.task.projector_input == "relu"
        self.projector = projector(self.embedder.dim, config.task.projector, self.relu_first)
        loss, groups = config.task.loss, config.task.metaclasses
        dim = (config.task.projector or [self.embedder.dim])[-1]
        self.criterion: Criterion
        if groups:
            members = config.model.head.parts if config.model.head else 1
            self.criterion = MetaclassLoss(
                loss, groups, dim, members, classes.sizes, classes.domains
            )
        elif config.task.nested:
            widths = [*config.task.nested, dim]
            self.criterion = NestedLoss(loss, widths, classes.sizes, classes.domains)
        else:
            self.criterion = build_loss(loss, dim, classes.sizes, classes.domains)

    @property
    def classifier(self) -> MarginSoftmax | None:
        if len(self.projector) or not isinstance(self.criterion, MarginSoftmax):
            return None
        return self.criterion

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        parts = super().parts() | {"classes": dict(self.criterion.named_parameters())}
        if len(self.projector):
            parts["projector"] = dict(self.projector.named_parameters())
        return parts

    def split_criteria(self) -> list[MarginSoftmax]:
        return [one for one in self.criterion.modules() if isinstance(one, MarginSoftmax)]

    def begin_stage(self, number: int, class_ids: Sequence[int]) -> None:
        super().begin_stage(number, class_ids)
        self.criterion.begin_stage(class_ids, self.loss_stage(number))

    def forward(self, batch: Batch) -> LossAndLogs:
        feat_BF = self.features(batch)
        raw_BD = self.embedder.project(feat_BF, batch.shapes_B3)
        emb_BD = self.embedder.unit(raw_BD)
        if len(self.projector):  # with `relu_first` its first layer is the ReLU
            raw_BD = self.projector(raw_BD if self.relu_first else emb_BD).float()
            emb_BD = functional.normalize(raw_BD, dim=-1)
        loss, logs = self.criterion(emb_BD, batch.label_B, raw_BD)
        return self.with_shared_terms(batch, feat_BF, loss, logs)


def projector(dim: int, widths: Sequence[int], relu_first: bool = False) -> nn.Sequential:
    """Build Linears between an embedding and its loss, a ReLU between each two, or also before the first."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([dim, *widths]):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*(layers if relu_first else layers[1:]))
