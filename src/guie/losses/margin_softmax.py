"""Margin softmax, over class cosines with a margin on the own class; plain softmax of a Linear.

Shapes: B images, of all processes where FSDP shards the weights and else of this one, C classes of k
sub-centres each (C * k rows in `weight_CD`), A rows of a stage's classes, N given classes, D dimensions.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import Init, LinearSoftmaxConfig, RowLength
from guie.losses.base import (
    Criterion,
    LossAndLogs,
    LossStage,
    at_least_fp32,
    gather_rows,
    gather_uneven,
    local,
    on_device_of,
)
from guie.losses.rules import CurricularFace, MarginRule
from guie.losses.streamed import Hardening, Part, softmax_terms


def drawn(
    rows: int, dim: int, start: Init, generator: Generator | None = None, of: int = 0
) -> Tensor:
    """Draw random rows (C, D).

    Args:
        start: root mean square length of the rows, or a rule that lowers it with their number:
            Xavier's, sqrt(2 D / (C + D)) (Glorot and Bengio, AISTATS 2010, eq. 16); he_uniform,
            sqrt(2 D / C) (He et al., ICCV 2015, eq. 14, on the rows); torch_uniform, sqrt(D / (3 C)).
        of: number of rows of the whole matrix, for these rules; 0: `rows`.
    """
    if isinstance(start, RowLength):
        deviation, normal = start.length / math.sqrt(dim), start.draw == "normal"
    elif start in ("he_uniform", "torch_uniform"):
        squared = 2 if start == "he_uniform" else 1 / 3  # gain
        deviation, normal = math.sqrt(squared / (of or rows)), False
    else:
        deviation, normal = math.sqrt(2 / ((of or rows) + dim)), start == "xavier_normal"
    values_CD = torch.empty(rows, dim)
    if normal:
        return values_CD.normal_(0.0, deviation, generator=generator)
    bound = math.sqrt(3) * deviation
    return values_CD.uniform_(-bound, bound, generator=generator)


UNIT = RowLength()


class MarginSoftmax(Criterion):
    """Cross-entropy of a margin softmax, with its class weights.

    With several centres it is sub-center ArcFace (Deng et al., ECCV 2020): the nearest centre of a
    class counts. With edges it is a softmax per domain (UnED's USC).

    Args:
        classes: C.
        dim: D, the embedding's dimension.
        rule: the margin.
        scale: s, the inverse temperature of the softmax.
        centers: k.
        start: initialisation of the class weights.
        edges: bounds of the domains' class ranges, from 0 to C; None: one softmax over all classes.
        block_logits: logits computed at a time; None: by device.
    """

    stage_AD: nn.Parameter | None
    stage_index_C: Tensor | None
    stage_index_cpu_C: Tensor | None  # the same on the CPU, for labels
    stage_edges: Sequence[int] | None

    def __init__(
        self,
        classes: int,
        dim: int,
        rule: MarginRule,
        *,
        scale: float,
        centers: int = 1,
        start: Init = UNIT,
        edges: Sequence[int] | None = None,
        block_logits: int | None = None,
    ):
        super().__init__()
        self.rule, self.scale, self.centers = rule, scale, centers
        self.edges, self.block_logits = edges, block_logits
        self.start = start
        self.weight_CD = nn.Parameter(drawn(classes * centers, dim, start))
        # In a stage with a softmax over its own classes only: their rows, trained instead of
        # `weight_CD`, each class's index there (-1 for other classes), and the edges.
        self.register_parameter("stage_AD", None)
        self.register_buffer("stage_index_C", None, persistent=False)
        self.stage_index_cpu_C = None
        self.stage_edges = None
        self.part: Part | None = None

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return len(self.weight_CD) // self.centers

    def split(self, mesh: DeviceMesh) -> set[nn.Parameter]:
        """Leave each process an equal part of the class weights, and return the parameters that have it.

        Processes then pass equally many images, and each computes its classes' terms for all of them. The
        parameters are DTensors, as FSDP's. If the sub-centres of a class would be at two processes, or a
        process would have none, nothing changes and the result is empty.
        """
        from torch.distributed.tensor import Shard, distribute_tensor  # takes a second; for FSDP

        rows = self.weight_CD if self.stage_AD is None else self.stage_AD
        own = math.ceil(len(rows) / mesh.size())
        if own % self.centers or own * (mesh.size() - 1) >= len(rows):
            return set()
        self.part = Part(own * mesh.get_local_rank() // self.centers, len(rows) // self.centers)
        for name, whole in list(self.named_parameters(recurse=False)):
            # Every process has the whole, so nothing needs to be sent
            spread = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
            setattr(self, name, nn.Parameter(spread, whole.requires_grad))
        return set(self.parameters(recurse=False))

    def begin_stage(self, class_ids: Sequence[int], stage: LossStage) -> None:
        if self.stage_AD is not None and self.stage_index_cpu_C is not None:
            with torch.no_grad():  # the rows that were trained separately
                self.weight_CD[self._rows(self.stage_index_cpu_C >= 0)] = self.stage_AD
        self.stage_AD = self.stage_index_C = self.stage_index_cpu_C = None
        self.rule.set_margin(stage.margin)
        own_C = torch.zeros(self.classes, dtype=torch.bool)
        own_C[list(class_ids)] = True
        if stage.reset is not None:
            self._reset(own_C, stage.reset, stage.alone)
        if stage.alone:
            self._separate(own_C)

    @torch.no_grad()
    def _reset(self, own_C: Tensor, seed: Sequence[int], alone: bool) -> None:
        number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1
        # On the CPU with its own generator, so that all processes draw the same.
        generator = torch.Generator().manual_seed(number)
        whole_CD = self.weight_CD
        whole, dim = whole_CD.shape
        rows = int(own_C.sum()) * self.centers
        fresh_AD = drawn(rows, dim, self.start, generator, of=rows if alone else whole)
        whole_CD[self._rows(own_C)] = fresh_AD.to(whole_CD)
        self.rule.reset(own_C.to(whole_CD.device))

    def _separate(self, own_C: Tensor) -> None:
        """Train the rows of these classes separately, so that no weight decay changes the others."""
        whole = self.weight_CD
        self.stage_AD = nn.Parameter(whole.detach()[self._rows(own_C)], whole.requires_grad)
        self.stage_index_cpu_C = torch.where(own_C, own_C.cumsum(0) - 1, -1)
        self.stage_index_C = self.stage_index_cpu_C.to(whole.device)
        self.stage_edges = self.edges and [int(own_C[:edge].sum()) for edge in self.edges]
        whole.requires_grad_(False)

    def _rows(self, own_C: Tensor) -> Tensor:
        """Return a mask of the rows of `weight_CD` that belong to these classes, on its device."""
        return own_C.repeat_interleave(self.centers).to(self.weight_CD.device)

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return the mean loss, the accuracy without margin, and the mean norm if the rule uses norms."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            label_B, emb_BD = label_B.cpu(), at_least_fp32(emb_BD)
            if self.part:
                label_B, emb_BD = gather_rows(label_B), gather_rows(emb_BD)
            label_B, order_B = label_B.sort(stable=True)
            order_B = on_device_of(order_B, emb_BD)
            emb_BD = emb_BD[order_B]
            norm_B = self._norms(raw_BD)[order_B] if self.rule.uses_norms else emb_BD[:0, 0]
            # The classes in the softmax; of split class weights only this process's rows
            weight_AD, place_B, edges = local(self.weight_CD), label_B, self.edges
            if self.stage_AD is not None and self.stage_index_cpu_C is not None:
                weight_AD, edges = local(self.stage_AD), self.stage_edges
                place_B = self.stage_index_cpu_C[label_B]
            label_B = on_device_of(label_B, emb_BD)
            weight_AD = weight_AD.to(emb_BD.dtype)
            terms = softmax_terms(
                self.scale * emb_BD,
                weight_AD,
                place_B,
                centers=self.centers,
                edges=edges,
                hardening=self._hardening(emb_BD.detach(), weight_AD.detach(), place_B, label_B),
                block_logits=self.block_logits,
                part=self.part,
            )
            own_B = self.scale * self.rule.own(terms.own_B / self.scale, label_B, norm_B)
            # log(1 + exp(others - own)): exact if the softmax of the own class is close to 1.
            loss = -functional.logsigmoid(own_B - terms.others_B).mean()
            logs = {"accuracy": (terms.own_B.detach() > terms.nearest_B).float().mean()}
            if self.rule.uses_norms:
                loss = loss + self.rule.penalty(norm_B)
                logs["norm"] = norm_B.detach().mean()
        return loss, logs

    def cosines(self, emb_BD: Tensor, class_ids: Tensor) -> Tensor:
        """Return cosines to these classes, (B, len(class_ids)), each to the nearest centre."""
        return cosines(emb_BD, self.centers_of(class_ids).to(emb_BD.dtype))

    def centers_of(self, class_ids: Tensor) -> Tensor:
        """Return the current weights of these classes, (len(class_ids), k, D)."""
        weight_NkD = self.weight_CD.unflatten(0, (-1, self.centers))[class_ids]
        if self.stage_AD is None or self.stage_index_C is None:
            return weight_NkD
        place_N = self.stage_index_C[class_ids]
        apart_NkD = self.stage_AD.unflatten(0, (-1, self.centers))[place_N.clamp_min(0)]
        return torch.where((place_N >= 0)[:, None, None], apart_NkD, weight_NkD)

    def _norms(self, raw_BD: Tensor | None) -> Tensor:
        """Return the norms of the raw embeddings (B,); training shows the rule those of all processes."""
        if raw_BD is None:
            raise ValueError("this margin rule needs the embeddings before normalisation")
        norm_B = torch.linalg.vector_norm(at_least_fp32(raw_BD), dim=1)
        whole_B = gather_rows(norm_B) if self.part else norm_B
        if self.training:
            (seen_B,) = (whole_B,) if self.part else gather_uneven(norm_B)
            self.rule.observe(seen_B.detach())
        return whole_B

    def _hardening(
        self, emb_BD: Tensor, weight_AD: Tensor, place_B: Tensor, label_B: Tensor
    ) -> Hardening | None:
        if not isinstance(self.rule, CurricularFace):
            return None
        weight_AkD = weight_AD.unflatten(0, (-1, self.centers))
        row_B = place_B - (self.part.first if self.part else 0)
        here_B = (row_B >= 0) & (row_B < len(weight_AkD))
        row_B = row_B.clamp(0, len(weight_AkD) - 1)
        own_BkD = functional.normalize(weight_AkD[on_device_of(row_B, weight_AD)], dim=-1)
        cos_B = (own_BkD * emb_BD[:, None]).sum(-1).amax(1)
        if self.part:
            cos_B = cos_B * on_device_of(here_B, cos_B)
            distributed.all_reduce(cos_B)
        return self.rule.hardening(cos_B, label_B, self.scale)


def cosines(emb_BD: Tensor, weight_CkD: Tensor) -> Tensor:
    """Return cosines of unit-length embeddings to classes, (B, C), each to the nearest centre."""
    return (functional.normalize(weight_CkD, dim=-1) @ emb_BD.T).amax(1).T


class LinearSoftmax(Criterion):
    """Mean cross-entropy of the logits W x, without bias, as of Vo and Hays' nams.py:508-518.

    With weights `identity` the logits are x itself: W is the fixed identity of DREML's _code/Loss.py:7-22.

    Raises UserError if the embedding is to be the logits, and has not one number per class.
    """

    def __init__(self, config: LinearSoftmaxConfig, classes: int, dim: int):
        super().__init__()
        self.raw = config.embedding == "raw"
        self.register_parameter("weight_CD", None)
        if config.weights == "linear":
            self.weight_CD = nn.Parameter(drawn(classes, dim, config.init))
        elif dim != classes:
            raise UserError(
                f"task.loss.weights: identity needs one number per class, but the embedding has {dim} for"
                f" {classes} classes; set model.head.dim to {classes}, or weights to linear"
            )

    def forward(self, emb_BD: Tensor, label_B: Tensor, raw_BD: Tensor | None = None) -> LossAndLogs:
        """Return the mean loss of this process's images, and the accuracy."""
        seen_BD = raw_BD if self.raw else emb_BD
        assert seen_BD is not None  # training gives both
        with torch.autocast(emb_BD.device.type, enabled=False):
            logit_BC = at_least_fp32(seen_BD)
            if self.weight_CD is not None:
                logit_BC = logit_BC @ self.weight_CD.to(logit_BC.dtype).T
            label_B = on_device_of(label_B, emb_BD)
            accuracy = (logit_BC.detach().argmax(1) == label_B).float().mean()
            return functional.cross_entropy(logit_BC, label_B), {"accuracy": accuracy}
