"""Distillation: a student learns from teachers, and optionally from labels.

Shapes: B images, N those of all processes, C channels, H height, W width, D dimensions of the student,
T of a teacher.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config import RunConfig
from guie.config.distillation import (
    DistillationConfig,
    LogitsConfig,
    MatchingConfig,
    RelationConfig,
)
from guie.data.dataset import Batch, Classes
from guie.losses.base import (
    Criterion,
    LossAndLogs,
    at_least_fp32,
    gather_rows,
    on_device_of,
    rows_of,
)
from guie.losses.build import build_loss
from guie.losses.distillation import Logits, build_relation
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.matching import mean_of
from guie.models.embedder import build_embedder, build_preprocess
from guie.models.pretrained import state_hash
from guie.training.run_folder import read_class_weights
from guie.training.tasks.base import Task
from guie.training.teachers import Teacher, mask_of_domains, open_teachers, outputs_of


class DistillationTask(Task):
    """An embedder, criteria on labels, and one criterion per relation and teacher.

    A term is weighted by the share of the batch that it applies to. In a mixed batch each image counts
    in its own terms; in a batch of one domain, that domain's terms count fully. Feng et al., Unifying
    Specialist Image Embedding into Universal Image Embedding, 4.

    Raises UserError as `open_teachers`, and for a criterion of an unknown domain.
    """

    def __init__(self, config: RunConfig, classes: Classes, pretrained: bool = True):
        super().__init__(config)
        assert isinstance(config.task, DistillationConfig)  # see `build_task`
        self.task = config.task
        self.embedder = build_embedder(config.model, pretrained)
        self.teachers = open_teachers(self.task.teachers, classes.domains)
        dim = self.embedder.dim
        self.criteria = nn.ModuleDict()
        self.relations = nn.ModuleDict()
        self.masks: list[Tensor] = []  # the classes (C,) of each term, on the CPU, like labels
        for number, term in enumerate(self.task.criteria):
            if term.loss:
                built = build_loss(term.loss, dim, classes.sizes, classes.domains)
                self.criteria[str(number)] = built
            if term.relation:
                self.relations[str(number)] = nn.ModuleList(
                    _relation(term.relation, dim, teacher, classes.labels)
                    for teacher in self.teachers
                )
            where = f"task.criteria.{number}"
            self.masks.append(mask_of_domains(term.domains, classes.domains, where))

    @property
    def classifier(self) -> MarginSoftmax | None:
        found = [one for one in self._criteria() if isinstance(one, MarginSoftmax)]
        return found[0] if len(found) == 1 else None

    def parts(self) -> dict[str, dict[str, nn.Parameter]]:
        parts = super().parts()
        for name, modules in (("classes", self.criteria), ("matching", self.relations)):
            if parameters := dict(modules.named_parameters()):
                parts[name] = parameters
        return parts

    def begin_stage(self, number: int, class_ids: Sequence[int]) -> None:
        super().begin_stage(number, class_ids)
        for place, criterion in enumerate(self._criteria()):
            criterion.begin_stage(class_ids, self.loss_stage(number).of_part(place))
        backbone = self.embedder.backbone
        device = next(backbone.parameters()).device
        preprocess = build_preprocess(self.config.model, backbone, backbone.size_px)
        self.preprocess = preprocess.to(device)
        for teacher in self.teachers:
            teacher.to(device)

    def forward(self, batch: Batch) -> LossAndLogs:
        feat_BF = self.features(batch)
        raw_BD = self.embedder.project(feat_BF, batch.shapes_B3)
        emb_BD = self.embedder.unit(raw_BD)
        taught = outputs_of(self.teachers, batch, self.preprocess)
        total = emb_BD.new_zeros((), dtype=torch.float32)
        logs: dict[str, Tensor] = {}
        for number, term in enumerate(self.task.criteria):
            rows_B = self.masks[number][batch.label_B]
            own_logs: dict[str, Tensor] = {}
            if term.relation:
                value, own_logs = self._of_teachers(number, emb_BD, batch.label_B, taught, rows_B)
            elif rows_B.all():
                value, own_logs = self.criteria[str(number)](emb_BD, batch.label_B, raw_BD)
                own_logs = {"labels": value.detach(), **own_logs}
            else:  # a batch of one domain that the term excludes
                # Include its parameters: distributed processes wait for a gradient of each
                parameters = self.criteria[str(number)].parameters()
                value = sum((p.sum() for p in parameters), emb_BD.float().sum()) * 0.0
            total = total + term.weight * value
            logs |= {f"{k}_{number}" if k in logs else k: v for k, v in own_logs.items()}
        return self.with_shared_terms(batch, feat_BF, total, logs)

    @cached_property
    def _hashes(self) -> list[str]:
        """Hashes of each teacher's weights, with its class weights if a relation uses them."""
        embedders = [teacher.model.embedder for teacher in self.teachers]
        known = [state_hash(embedder.state_dict()) for embedder in embedders]
        for relations in self.relations.values():
            for number, relation in enumerate(cast(nn.ModuleList, relations)):
                if isinstance(relation, Logits):
                    known[number] += state_hash({"classes": relation.weight_CkT})
        return known

    def get_extra_state(self) -> list[str]:
        return self._hashes

    def set_extra_state(self, state: list[str]) -> None:
        for number, (then, now) in enumerate(zip(state, self._hashes, strict=True)):
            if then != now:
                raise UserError(
                    f"task.teachers.{number}.model: the weights of {self.task.teachers[number].model}"
                    " changed since this run started; restore the old ones, or --overwrite the run"
                )

    def _of_teachers(
        self, number: int, emb_BD: Tensor, label_B: Tensor, taught: Sequence[Tensor], rows_B: Tensor
    ) -> LossAndLogs:
        """Return the relation's loss over all teachers, each weighted by its share of the images.

        `taught` has their embeddings of the batch, `rows_B` masks the images that the term is for.
        """
        config = self.task.criteria[number].relation
        assert config is not None
        values, own_rows, logs = [], [], {}
        relations = cast(nn.ModuleList, self.relations[str(number)])
        with torch.autocast(emb_BD.device.type, enabled=False):
            emb_ND = gather_rows(at_least_fp32(emb_BD))
            shown_N = gather_rows(rows_B)
            triples = zip(self.teachers, relations, taught, strict=True)
            for teacher, relation, emb_BT in triples:
                own_N = gather_rows(teacher.classes_C[label_B]) & shown_N
                emb_NT = gather_rows(at_least_fp32(emb_BT))
                own = on_device_of(rows_of(own_N), emb_ND)
                compared = emb_ND[own]
                if isinstance(relation, Logits):
                    assert self.classifier is not None  # see the config
                    compared = self.classifier.cosines(compared, relation.class_ids)
                value = relation(compared, emb_NT[own])
                values.append(value)
                own_rows.append(own_N)
                if own_N.any():
                    logs[f"{config.name}/{teacher.name}"] = value.detach().mean()
            if isinstance(config, MatchingConfig):
                loss = mean_of(values, own_rows, config.drop if self.training else 0.0)
                loss = loss * torch.stack(own_rows).any(0).float().mean()
            else:
                shares = [own_N.float().mean() for own_N in own_rows]
                loss = sum(value * share for value, share in zip(values, shares, strict=True))
        return loss, logs

    def _criteria(self) -> list[Criterion]:
        return cast("list[Criterion]", list(self.criteria.values()))


def _relation(
    config: RelationConfig, dim: int, teacher: Teacher, labels: Sequence[str]
) -> nn.Module:
    """Build the relation to one teacher; for logits, over the classes that it teaches and knows."""
    if not isinstance(config, LogitsConfig):
        return build_relation(config, dim, teacher.dim)
    shared_C, weight_CkT = read_class_weights(teacher.model.source, labels)
    taught_C = teacher.classes_C[shared_C]
    if int(taught_C.sum()) < 2:
        raise UserError(
            f"{teacher.model.source}: knows {int(taught_C.sum())} of the classes that it must teach;"
            " relation logits needs two: use another relation"
        )
    return Logits(shared_C[taught_C], weight_CkT[taught_C], config.temperature)
