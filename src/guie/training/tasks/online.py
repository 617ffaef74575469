"""Online distillation: teacher heads are trained together with the student that learns from them.

Shapes: B images, N of them of one domain, F backbone features, D dimensions of the student, T of a
teacher, C classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.config import RunConfig
from guie.config.distillation import OnlineConfig
from guie.data.dataset import Batch, Classes
from guie.losses.base import (
    LossAndLogs,
    LossStage,
    at_least_fp32,
    gather_rows,
    on_device_of,
    rows_of,
)
from guie.losses.build import build_loss
from guie.losses.distillation import Similarity, kl_of_logits
from guie.losses.margin_softmax import MarginSoftmax
from guie.models.embedder import build_embedder
from guie.models.head import L2Norm, lecun_normal_
from guie.training.tasks.base import Task


class OnlineTeacher(nn.Module):
    """One domain's teacher: a Linear on the shared features, and a classifier of the domain's classes."""

    def __init__(
        self, config: OnlineConfig, features: int, class_ids: Sequence[int], classes: Classes
    ):
        super().__init__()
        self.head = nn.Linear(features, config.teacher_dim)
        self.norm: nn.Module = nn.Identity()
        if config.teacher_norm == "l2":  # as in UDON's code
            self.norm = L2Norm()
            lecun_normal_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        sizes = [classes.sizes[number] for number in class_ids]
        domains = [classes.domains[number] for number in class_ids]
        built = build_loss(config.loss, config.teacher_dim, sizes, domains)
        self.criterion = cast(MarginSoftmax, built)
        self.class_ids: Tensor
        self.register_buffer("class_ids", torch.tensor(list(class_ids)), persistent=False)
        # Index of every class among the domain's, else -1; on the CPU, like labels
        self.place_C = torch.full((len(classes),), -1)
        self.place_C[list(class_ids)] = torch.arange(len(class_ids))

    def forward(self, feat_NF: Tensor, label_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings (N, T), cosines to the domain's classes (N, C), and the loss.

        Labels are on the CPU.
        """
        raw_NT = self.head(self.norm(feat_NF)).float()
        emb_NT = functional.normalize(raw_NT, dim=-1)
        loss, _ = self.criterion(emb_NT, self.place_C[label_N], raw_NT)
        everyone = torch.arange(len(self.class_ids), device=emb_NT.device)
        return emb_NT, self.criterion.cosines(emb_NT, everyone), loss


class OnlineTask(Task):
    """An embedder, its criterion, and a teacher for each domain, trained with one loss.

    Ypsilantis et al., UDON: Universal Dynamic Online Distillation for Generic Image Representations,
    NeurIPS 2024: (classification of student and of teachers + KL of logits + differences of cosines) /
    the sum of the weights. In a mixed batch each domain is weighted by its share.
    """

    def __init__(self, config: RunConfig, classes: Classes, pretrained: bool = True):
        super().__init__(config)
        assert isinstance(config.task, OnlineConfig)  # see `build_task`
        self.task = config.task
        self.embedder = build_embedder(config.model, pretrained)
        built = build_loss(self.task.loss, self.embedder.dim, classes.sizes, classes.domains)
        self.criterion = cast(MarginSoftmax, built)
        features = self.embedder.backbone.dim
        teachers = nn.ModuleList()
        for domain in sorted(set(classes.domains)):
            own = [number for number, other in enumerate(classes.domains) if other == domain]
            teachers.append(OnlineTeacher(self.task, features, own, classes))
        self.teachers = cast("Sequence[OnlineTeacher]", teachers)
        self.similarity = Similarity()

    @property
    def classifier(self) -> MarginSoftmax:
        return self.criterion

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        criteria = [self.criterion, *(teacher.criterion for teacher in self.teachers)]
        heads = [teacher.head for teacher in self.teachers]
        return super().parts() | {
            "classes": dict(nn.ModuleList(criteria).named_parameters()),
            "teachers": dict(nn.ModuleList(heads).named_parameters()),
        }

    def begin_stage(self, number: int, class_ids: Sequence[int]) -> None:
        super().begin_stage(number, class_ids)
        stage = self.loss_stage(number)
        self.criterion.begin_stage(class_ids, stage)
        # Where the stage lacks a domain, no rows of it can be drawn, or stand alone
        lacking = LossStage(stage.margin)
        for place, teacher in enumerate(self.teachers):
            own = teacher.place_C[list(class_ids)]
            own_ids = own[own >= 0].tolist()
            teacher.criterion.begin_stage(own_ids, stage.of_part(place) if own_ids else lacking)

    def forward(self, batch: Batch) -> LossAndLogs:
        feat_BF = self.features(batch)
        raw_BD = self.embedder.project(feat_BF, batch.shapes_B3)
        emb_BD = self.embedder.unit(raw_BD)
        taught_BD = emb_BD
        if self.task.backprop_to == "head":
            with freeze_batch_stats(self.embedder.head):
                taught_BD = self.embedder.embed(feat_BF.detach(), batch.shapes_B3)
        loss, logs = self.criterion(emb_BD, batch.label_B, raw_BD)
        terms = {"student": loss, **self._teacher_losses(feat_BF, taught_BD, batch.label_B)}
        weights = {name: float(getattr(self.task, name)) for name in terms}
        total = sum(weights[name] * term for name, term in terms.items()) / sum(weights.values())
        logs |= {name: term.detach() for name, term in terms.items()}
        return self.with_shared_terms(batch, feat_BF, cast(Tensor, total), logs)

    def sampler_loss(self, logs: dict[str, Tensor]) -> Tensor:
        """Return the teachers' loss: it drives a loss-driven sampler, as in UDON."""
        return logs["teachers"]

    def _teacher_losses(
        self, feat_BF: Tensor, emb_BD: Tensor, label_B: Tensor
    ) -> dict[str, Tensor]:
        """Return the losses of teachers and of the student towards them, domains weighted by share."""
        nothing = emb_BD.new_zeros((), dtype=torch.float32)
        terms = {"teachers": nothing, "logits": nothing}
        # Of each image, the embedding by its domain's teacher
        emb_BT = feat_BF.new_zeros((len(label_B), self.task.teacher_dim), dtype=torch.float32)
        for teacher in self.teachers:
            own_B = teacher.place_C[label_B] >= 0
            own = on_device_of(rows_of(own_B), feat_BF)
            emb_NT, theirs_NC, loss = teacher(feat_BF[own], label_B[own_B])
            if own_B.any():
                ours_NC = self.criterion.cosines(emb_BD[own].float(), teacher.class_ids)
                apart = kl_of_logits(ours_NC, theirs_NC, self.task.temperature)
                share = own_B.float().mean()
                terms["teachers"] = terms["teachers"] + share * loss
                terms["logits"] = terms["logits"] + share * apart
                emb_BT[own] = emb_NT.detach()
            else:
                # Other processes wait for this one: for its rows of CurricularFace's running mean,
                # and for a gradient of each parameter
                unused = sum((p.sum() for p in teacher.parameters()), nothing) * 0.0
                terms["teachers"] = terms["teachers"] + unused
        return terms | {"similarity": self._unlike(emb_BD, emb_BT, label_B)}

    def _unlike(self, emb_BD: Tensor, emb_BT: Tensor, label_B: Tensor) -> Tensor:
        """Return how cosines differ within each domain, over all processes, domains weighted by share."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            label_N, emb_NT = gather_rows(label_B), gather_rows(emb_BT)
            student_ND = gather_rows(at_least_fp32(emb_BD))
            total = emb_BD.new_zeros((), dtype=torch.float32)
            for teacher in self.teachers:
                own_N = teacher.place_C[label_N] >= 0
                own = on_device_of(rows_of(own_N), emb_BD)
                unlike = self.similarity(student_ND[own], emb_NT[own]) * own_N.float().mean()
                total = total + unlike
            return total


@contextmanager
def freeze_batch_stats(head: nn.Module | None) -> Iterator[None]:
    """Context in which forward passes do not change running statistics: they saw this batch already."""
    before = [(buffer, buffer.clone()) for buffer in head.buffers()] if head else []
    yield
    for buffer, value in before:
        buffer.data.copy_(value)  # hidden from autograd, which saved but does not use them
