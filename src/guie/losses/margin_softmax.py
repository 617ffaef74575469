"""Margin softmax: a softmax over class cosines in which the own class has a handicap.

Shapes: B images of all processes, C classes, S sub-centres, D dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from guie.config.losses import RowLength, Start
from guie.losses.base import Criterion, at_least_fp32
from guie.losses.rules import CurricularFace, MarginRule
from guie.losses.streamed import Hardening, softmax_terms


def drawn(
    rows: int, dim: int, start: Start, generator: Generator | None = None, of: int = 0
) -> Tensor:
    """Random rows (C, D) as configured.

    Args:
        rows: C, how many to draw.
        dim: D.
        start: the root mean square of the rows' lengths, or one of Xavier's rules, by which it falls
            with the number of rows: sqrt(2 D / (C + D)) (Glorot and Bengio, AISTATS 2010, eq. 16).
        generator: None: torch's global one.
        of: rows of the whole matrix that these are a part of, for Xavier's rules; 0: these are all.
    """
    if isinstance(start, RowLength):
        deviation, normal = start.length / math.sqrt(dim), start.draw == "normal"
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

    With several centres it is sub-center ArcFace (Deng et al., ECCV 2020): a class is as near as its
    nearest centre. With edges it is a softmax per domain (UnED's USC).

    Args:
        classes: C, how many classes.
        dim: D, the embedding's dimension.
        rule: the margin.
        scale: s, the inverse temperature of the softmax.
        centers: k.
        start: how its class weights are drawn.
        edges: bounds of the domains' class ranges, from 0 to C; None: one softmax over all classes.
        block_logits: logits computed at a time; None: what suits the device.
    """

    stage_AD: nn.Parameter | None
    place_C: Tensor | None
    stage_edges: Sequence[int] | None

    def __init__(
        self,
        classes: int,
        dim: int,
        rule: MarginRule,
        *,
        scale: float,
        centers: int = 1,
        start: Start = UNIT,
        edges: Sequence[int] | None = None,
        block_logits: int | None = None,
    ):
        super().__init__()
        self.rule, self.scale, self.centers = rule, scale, centers
        self.edges, self.block_logits = edges, block_logits
        self.start = start
        self.weight_CD = nn.Parameter(drawn(classes * centers, dim, start))
        # In a stage whose classes compete among themselves: their rows, trained in place of
        # `weight_CD`, each class's place there (-1 for the others), and the edges.
        self.register_parameter("stage_AD", None)
        self.register_buffer("place_C", None, persistent=False)
        self.stage_edges = None

    @property
    def classes(self) -> int:
        """C, how many."""
        return len(self.weight_CD) // self.centers

    def set_epoch(self, epoch: float) -> None:
        """Tell a scheduled margin how far training is, in (fractional) epochs from 0."""
        self.rule.set_epoch(epoch)

    def begin_stage(
        self,
        class_ids: Sequence[int],
        *,
        margin: float | None = None,
        alone: bool = False,
        reset: Sequence[int] | None = None,
    ) -> None:
        """As of every criterion."""
        self._close_stage()
        self.rule.set_margin(margin)
        own_C = torch.zeros(self.classes, dtype=torch.bool)
        own_C[list(class_ids)] = True
        own_C = own_C.to(self.weight_CD.device)
        if reset is not None:
            self._reset(own_C, reset, alone)
        if alone:
            self._part(own_C)

    @torch.no_grad()
    def _close_stage(self) -> None:
        """Bring home the rows that were trained apart."""
        if self.stage_AD is not None and self.place_C is not None:
            self.weight_CD[self._rows(self.place_C >= 0)] = self.stage_AD
        self.stage_AD = self.place_C = None

    @torch.no_grad()
    def _reset(self, own_C: Tensor, seed: Sequence[int], alone: bool) -> None:
        number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1
        # On the CPU and apart from the global stream, so that all processes draw the same.
        generator = torch.Generator().manual_seed(number)
        whole, dim = self.weight_CD.shape
        rows = int(own_C.sum()) * self.centers
        fresh_AD = drawn(rows, dim, self.start, generator, of=rows if alone else whole)
        self.weight_CD[self._rows(own_C)] = fresh_AD.to(self.weight_CD)
        self.rule.reset(own_C)

    def _part(self, own_C: Tensor) -> None:
        """Train the rows of these classes apart: no optimiser, no decay reaches the others."""
        whole = self.weight_CD
        self.stage_AD = nn.Parameter(whole.detach()[self._rows(own_C)], whole.requires_grad)
        self.place_C = torch.where(own_C, own_C.cumsum(0) - 1, -1)
        self.stage_edges = self.edges and [int(own_C[:edge].sum()) for edge in self.edges]
        whole.requires_grad_(False)

    def _rows(self, own_C: Tensor) -> Tensor:
        """Which rows of `weight_CD` belong to these classes."""
        return own_C.repeat_interleave(self.centers)

    def forward(self, emb_BD: Tensor, label_B: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Unit-length embeddings and class ids -> mean loss, and the accuracy without margin."""
        with torch.autocast(emb_BD.device.type, enabled=False):
            label_B, order_B = label_B.sort(stable=True)
            emb_BD = at_least_fp32(emb_BD[order_B])
            weight_AD, place_B, edges = self._competing(label_B)
            weight_AD = weight_AD.to(emb_BD.dtype)
            terms = softmax_terms(
                self.scale * emb_BD,
                weight_AD,
                place_B,
                centers=self.centers,
                edges=edges,
                hardening=self._hardening(emb_BD.detach(), weight_AD.detach(), place_B, label_B),
                block_logits=self.block_logits,
            )
            own_B = self.scale * self.rule.own(terms.own_B / self.scale, label_B)
            # log(1 + exp(others - own)): exact where the softmax of the own class is nearly 1.
            loss = -functional.logsigmoid(own_B - terms.others_B).mean()
            accuracy = (terms.own_B.detach() > terms.nearest_B).float().mean()
        return loss, {"accuracy": accuracy}

    def cosines(self, emb_BD: Tensor, class_ids: Tensor) -> Tensor:
        """To these classes, (B, len(class_ids)): of several centres the nearest counts."""
        return cosines(emb_BD, self.centers_of(class_ids).to(emb_BD.dtype))

    def centers_of(self, class_ids: Tensor) -> Tensor:
        """Weights of these classes, (len(class_ids), k, D), as trained last: in a stage apart or not."""
        weight_NkD = self.weight_CD.unflatten(0, (-1, self.centers))[class_ids]
        if self.stage_AD is None or self.place_C is None:
            return weight_NkD
        place_N = self.place_C[class_ids]
        apart_NkD = self.stage_AD.unflatten(0, (-1, self.centers))[place_N.clamp_min(0)]
        return torch.where((place_N >= 0)[:, None, None], apart_NkD, weight_NkD)

    def _competing(self, label_B: Tensor) -> tuple[Tensor, Tensor, Sequence[int] | None]:
        """Weights of the classes that compete, each image's place among them, edges there."""
        if self.stage_AD is None or self.place_C is None:
            return self.weight_CD, label_B, self.edges
        return self.stage_AD, self.place_C[label_B], self.stage_edges

    def _hardening(
        self, emb_BD: Tensor, weight_AD: Tensor, place_B: Tensor, label_B: Tensor
    ) -> Hardening | None:
        if not isinstance(self.rule, CurricularFace):
            return None
        own_BkD = weight_AD.unflatten(0, (-1, self.centers))[place_B]
        own_BkD = functional.normalize(own_BkD, dim=-1)
        cos_B = (own_BkD * emb_BD[:, None]).sum(-1).amax(1)
        return self.rule.hardening(cos_B, label_B, self.scale)


def cosines(emb_BD: Tensor, weight_CkD: Tensor) -> Tensor:
    """Of unit-length embeddings to classes, (B, C): of several centres the nearest counts."""
    return (functional.normalize(weight_CkD, dim=-1) @ emb_BD.T).amax(1).T
