"""Several models, or several views of one, behind the surface of one model.

Shapes: B images, M numbers that the members see of an image, V views, N domains, D dimensions of the
embedding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.ensemble import CompositionConfig, ViewConfig
from guie.models.embedder import Embedder
from guie.models.head import Reduction
from guie.models.views import ViewSpec

# Takes a member and an example of what it is called with
Exchange = Callable[[Embedder, tuple[Tensor, Tensor]], nn.Module]


class Domains(nn.Module):
    """Tells domains apart by an embedding: which views an image is worth (the challenge's 5th place).

    Linear; buffers, not parameters, for they are fitted. (B, D) of unit length -> (B, N) logits.
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
    """The members' embeddings of each view, joined; the mean of all views; perhaps reduced.

    side_by_side: one row of them, so that the cosine is the mean of the members' cosines, by weight.
    So the challenge's 4th place joins its two families, to reduce 1024 numbers to 64, and DREML its
    members (Xuan et al., ECCV 2018, 3.2). average: their mean, which is of use where they share a
    space: models that went out from one head (1st place).

    Where the image's shape or domain decides about a view, a pass that nobody asks for is left out. It
    is scripted for that, around traced members (`exchanged`).

    Attributes: `dim` (D); `looks`, what `prepared_BM` is made of.

    Raises UserError where the members cannot be averaged, or a reduction gives more than it takes.
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
        self.side_by_side = config.join == "side_by_side"
        weights = config.weights or [1.0] * len(members)
        # Side by side it is the cosine that a weight is of
        self.scales = [math.sqrt(w) if self.side_by_side else w for w in weights]
        self._see(config.views, members, looks)
        self.joined_dim = _joined_dim(config, members)
        self._choose(config)
        dim = config.reduced_dim
        self.reduction = Reduction(self.joined_dim, dim) if dim else None
        self.dim = dim or self.joined_dim

    def _see(
        self,
        views: Sequence[ViewConfig],
        members: Sequence[Embedder | Ensemble],
        looks: Sequence[Sequence[ViewSpec]],
    ) -> None:
        """Note which looks each member takes in each view, alike ones once, and where they lie."""
        seen = [[[look.through(view) for look in own] for own in looks] for view in views]
        self.looks = tuple(dict.fromkeys(look for view in seen for own in view for look in own))
        place = {look: number for number, look in enumerate(self.looks)}
        self.taken = [[[place[look] for look in own] for own in view] for view in seen]
        ends = [0]
        for look in self.looks:
            ends.append(ends[-1] + 3 * look.size_px**2)
        self.ends = ends
        self.shapes = [
            [-1, member.ends[-1]]
            if isinstance(member, Ensemble)
            else [-1, 3, own[0].size_px, own[0].size_px]
            for member, own in zip(members, looks, strict=True)
        ]

    def _choose(self, config: CompositionConfig) -> None:
        """Note which views are of which shapes and domains."""
        views, domains = config.views, config.domains
        limits = [view.aspect for view in views]
        self.above = [limit.above if limit else 0.0 for limit in limits]
        self.most = [limit.most if limit and limit.most else math.inf for limit in limits]
        self.of_domains = [view.domains is not None for view in views]
        self.conditional = any(limit is not None for limit in limits) or any(self.of_domains)
        self.classifier = Domains(self.joined_dim, len(domains)) if domains else None
        asked = [view.domains is None or d in view.domains for d in domains for view in views]
        self.asked_NV: Tensor
        rows = torch.tensor(asked, dtype=torch.bool).reshape(len(domains), len(views))
        self.register_buffer("asked_NV", rows, persistent=False)

    def forward(self, prepared_BM: Tensor, shapes_B3: Tensor) -> Tensor:
        """(B, M) of `Inputs` -> (B, D) float32 embeddings of unit length.

        Args:
            shapes_B3: `image_shapes` of the original images.
        """
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
        """The sum with one view more, of these rows of the batch alone."""
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
        """The members' embeddings of one view, joined: (B, D) of unit length."""
        embs = []
        for number, member in enumerate(self.members):
            parts = []
            for look in self.taken[view][number]:
                parts.append(prepared_BM[:, self.ends[look] : self.ends[look + 1]])
            row = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            embs.append(member(row.reshape(self.shapes[number]), shapes_B3) * self.scales[number])
        if self.side_by_side:
            return unit(torch.cat(embs, dim=1))
        return unit(torch.stack(embs).sum(dim=0))

    @torch.jit.ignore
    def exchanged(self, exchange: Exchange) -> Ensemble:
        """The same composition of other members, `exchange` of each; this one stays as it is."""
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
    """Rows of length 1: functional.normalize, which compiles to operators that PyTorch 1.11 lacks."""
    return emb_BD / emb_BD.norm(2, 1, True).clamp_min(1e-12)


def _joined_dim(config: CompositionConfig, members: Sequence[Embedder | Ensemble]) -> int:
    dims = [member.dim for member in members]
    if config.join == "average" and len(set(dims)) > 1:
        raise UserError(
            f"join: average: the members have {', '.join(map(str, dims))} dimensions; a mean is of"
            " members of as many, so join them side_by_side"
        )
    dim = sum(dims) if config.join == "side_by_side" else dims[0]
    if config.reduced_dim and config.reduced_dim > dim:
        raise UserError(f"reduced_dim: {config.reduced_dim}: above the {dim} that members give")
    return dim
