"""Combine several models, or several views of one, behind the interface of one model.

Shapes: B images, M input values of all members per image, V views, N domains, D embedding dimensions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.ensemble import AspectConfig, CompositionConfig
from guie.data.preprocess import ViewSpec
from guie.models.embedder import Embedder
from guie.models.head import Reduction


class Domains(nn.Module):
    """Classify an embedding's domain, to choose an image's views (the challenge's 5th place).

    Its weights are buffers, because they are fitted. Embeddings (B, D) of unit length -> logits (B, N).
    """

    def __init__(self, dim: int, domains: int):
        super().__init__()
        self.weight_DN: Tensor
        self.bias_N: Tensor
        self.register_buffer("weight_DN", torch.zeros(dim, domains))
        self.register_buffer("bias_N", torch.zeros(domains))

    def forward(self, emb_BD: Tensor) -> Tensor:
        return emb_BD @ self.weight_DN + self.bias_N


class Ensemble(nn.Module):
    """Join the members' embeddings of each view, average over views, and optionally reduce.

    side_by_side: concatenation, so that the cosine is the weighted mean of the members' cosines. The
    challenge's 4th place joins its two families so, then reduces 1024 dimensions to 64; so does DREML
    with its members (Xuan et al., ECCV 2018, 3.2). average: the mean, useful if members share an
    embedding space, as models trained from one head do (1st place).

    Embeddings have unit length before their mean. With `average: raw` the members' raw outputs
    are averaged, and normalised afterwards (5th place, make_torchscript_wcls.py:161).

    If a view depends on the image's shape or domain, forward passes that no image needs are skipped. For
    this the module is scripted around traced members (`exchanged`).

    Attributes: `dim` (D); `looks`, the view specs concatenated in `prepared_BM`.

    Raises UserError if the members cannot be averaged, or a reduction has more outputs than inputs.
    """

    cache_key = "Ensemble"  # of cached features; stays if the class is renamed

    def __init__(
        self,
        config: CompositionConfig,
        members: Sequence[Embedder | Ensemble],
        looks: Sequence[Sequence[ViewSpec]],
    ):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.raw = config.average == "raw"
        if self.raw:
            for member in members:  # models, never ensembles: the config refuses those
                cast(Embedder, member).normalises = False
        self.side_by_side = config.join == "side_by_side"
        weights = config.weights or [1.0] * len(members)
        # With side_by_side a weight applies to the cosine, hence the square root
        self.scales = [math.sqrt(w) if self.side_by_side else w for w in weights]

        # The view specs of each member in each view, without duplicates, and where each starts and ends
        views = config.views
        seen = [[[look.through(view) for look in own] for own in looks] for view in views]
        self.looks = tuple(dict.fromkeys(look for view in seen for own in view for look in own))
        place = {look: number for number, look in enumerate(self.looks)}
        self.taken = [[[place[look] for look in own] for own in view] for view in seen]
        self.ends = [0, *accumulate(3 * look.size_px**2 for look in self.looks)]
        self.shapes = [
            [-1, member.ends[-1]]
            if isinstance(member, Ensemble)
            else [-1, 3, own[0].size_px, own[0].size_px]
            for member, own in zip(members, looks, strict=True)
        ]
        dims = [member.dim for member in members]
        if not self.side_by_side and len(set(dims)) > 1:
            raise UserError(
                f"join: average: the members have {', '.join(map(str, dims))} dimensions; averaging needs"
                " equal dimensions: use join: side_by_side"
            )
        self.joined_dim = sum(dims) if self.side_by_side else dims[0]

        # Which views apply to which aspect ratios and domains
        limits = [view.aspect or AspectConfig() for view in views]
        self.above = [limit.above for limit in limits]
        self.most = [limit.max or math.inf for limit in limits]
        self.of_domains = [view.domains is not None for view in views]
        self.conditional = any(view.aspect or view.domains for view in views)
        domains = config.domains
        self.classifier = Domains(self.joined_dim, len(domains)) if domains else None
        asked = [view.domains is None or d in view.domains for d in domains for view in views]
        self.asked_NV: Tensor
        rows = torch.tensor(asked, dtype=torch.bool).reshape(len(domains), len(views))
        self.register_buffer("asked_NV", rows, persistent=False)

        dim = config.reduced_dim
        if dim and dim > self.joined_dim:
            raise UserError(
                f"reduced_dim: {dim}: the members have {self.joined_dim} dimensions; use fewer"
            )
        self.reduction = Reduction(self.joined_dim, dim) if dim else None
        self.dim: int = dim or self.joined_dim

    def forward(self, prepared_BM: Tensor, shapes_B3: Tensor) -> Tensor:
        """Map (B, M) from `Inputs` and `image_shapes` (B, 3) to float32 embeddings (B, D) of unit length."""
        if self.conditional:
            emb_BD = self._of_chosen_views(prepared_BM, shapes_B3)
        else:
            emb_BD = self._of_view(0, prepared_BM, shapes_B3)
            for view in range(1, len(self.taken)):
                emb_BD = emb_BD + self._of_view(view, prepared_BM, shapes_B3)
            emb_BD = unit(emb_BD)
        if self.reduction is not None:
            emb_BD = unit(self.reduction(emb_BD).float())
        return emb_BD

    def _of_chosen_views(self, prepared_BM: Tensor, shapes_B3: Tensor) -> Tensor:
        sides_B2 = shapes_B3[:, 1:]
        aspect_B = sides_B2.max(dim=1)[0] / sides_B2.min(dim=1)[0]
        sum_BD = torch.zeros([prepared_BM.size(0), self.joined_dim], device=prepared_BM.device)
        for view in range(len(self.taken)):
            if not self.of_domains[view]:
                rows_B = (aspect_B > self.above[view]) & (aspect_B <= self.most[view])
                sum_BD = self._add(sum_BD, rows_B, view, prepared_BM, shapes_B3)
        if self.classifier is not None:
            domain_B = self.classifier(unit(sum_BD)).argmax(1)
            asked_BV = self.asked_NV.index_select(0, domain_B)
            for view in range(len(self.taken)):
                if self.of_domains[view]:
                    rows_B = (aspect_B > self.above[view]) & (aspect_B <= self.most[view])
                    rows_B = rows_B & asked_BV[:, view]
                    sum_BD = self._add(sum_BD, rows_B, view, prepared_BM, shapes_B3)
        return unit(sum_BD)

    def _add(
        self, sum_BD: Tensor, rows_B: Tensor, view: int, prepared_BM: Tensor, shapes_B3: Tensor
    ) -> Tensor:
        """Return the sum with one more view, added for these rows of the batch only."""
        if not bool(rows_B.any()):
            return sum_BD
        if bool(rows_B.all()):
            return sum_BD + self._of_view(view, prepared_BM, shapes_B3)
        rows = rows_B.nonzero().flatten()
        own = self._of_view(
            view, prepared_BM.index_select(0, rows), shapes_B3.index_select(0, rows)
        )
        return sum_BD.index_add(0, rows, own)

    def _of_view(self, view: int, prepared_BM: Tensor, shapes_B3: Tensor) -> Tensor:
        """Return the members' embeddings of one view, joined: (B, D), of unit length unless raw."""
        embs = []
        for number, member in enumerate(self.members):
            parts = []
            for look in self.taken[view][number]:
                parts.append(prepared_BM[:, self.ends[look] : self.ends[look + 1]])
            row = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            embs.append(member(row.reshape(self.shapes[number]), shapes_B3) * self.scales[number])
        if self.side_by_side:  # one model alone, too
            joined_BD = torch.cat(embs, dim=1)
        else:
            joined_BD = torch.stack(embs).sum(dim=0)
        return joined_BD if self.raw else unit(joined_BD)

    @torch.jit.ignore
    def exchanged(
        self, exchange: Callable[[Embedder, tuple[Tensor, Tensor]], nn.Module]
    ) -> Ensemble:
        """Return the ensemble with `exchange(member, example inputs)` for each; this one is not changed."""
        shell = copy.copy(self)
        shell._modules = dict(self._modules)
        members = []
        for member, (_, *shape) in zip(self.members, self.shapes, strict=True):
            if isinstance(member, Ensemble):
                members.append(member.exchanged(exchange))
                continue
            weight = next(member.parameters())
            example = (weight.new_zeros(1, *shape), weight.new_ones(1, 3))
            members.append(exchange(cast(Embedder, member), example))
        shell.members = nn.ModuleList(members)
        return shell


def unit(emb_BD: Tensor) -> Tensor:
    """Normalise rows to length 1. functional.normalize compiles to operators that PyTorch 1.11 lacks."""
    return emb_BD / emb_BD.norm(2, 1, True).clamp_min(1e-12)
