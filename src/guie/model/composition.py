"""Several models side by side, behind the surface of one.

Shapes: B images, M numbers that the members see of an image, D dimensions of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from guie.model.embedder import Embedder
from guie.model.preprocess import Preprocess
from guie.model.reduction import Reduction


class EnsemblePreprocess(nn.Module):
    """Preprocesses an image for every member and flattens the results into one row of numbers.

    So a loader stacks and sends it like an image. What several members preprocess alike is computed
    once.

    Attributes: `views`, the preprocessings that differ; `view_of`, for each member the number of its
    view; `sides_px`, the side of each view; `size_px`, that of the largest.
    """

    def __init__(self, preprocesses: Iterable[Preprocess]):
        super().__init__()
        preprocesses = list(preprocesses)
        recipes = [preprocess.recipe() for preprocess in preprocesses]
        first = [recipes.index(recipe) for recipe in recipes]
        distinct = sorted(set(first))
        views = [preprocesses[number] for number in distinct]
        self.views = nn.ModuleList(views)
        self.view_of = [distinct.index(number) for number in first]
        self.sides_px = [view.size_px for view in views]
        self.size_px = max(self.sides_px)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), as `Preprocess` takes them -> (B, M) float32."""
        rows = []
        for view in self.views:
            rows.append(view(images).flatten(1))
        return torch.cat(rows, dim=1)

    def recipe(self) -> dict[str, Any]:
        """What it does, as JSON has it."""
        views = cast("Iterable[Preprocess]", self.views)  # a ModuleList says not of what
        return {"views": [view.recipe() for view in views], "view_of": self.view_of}


# Of one model, and of several
AnyPreprocess = Preprocess | EnsemblePreprocess


class Ensemble(nn.Module):
    """The members' embeddings, each of unit length, side by side, as one of unit length.

    Their cosine is the mean of the members' cosines. So the challenge's 4th place joins its two
    families, to reduce 1024 numbers to 64, and DREML its members (Xuan et al., ECCV 2018, 3.2).

    Attributes: `dim` (D).
    """

    def __init__(
        self,
        members: Sequence[Embedder],
        preprocess: EnsemblePreprocess,
        reduced_dim: int | None = None,
    ):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.sides_px = list(preprocess.sides_px)
        self.view_of = list(preprocess.view_of)
        dim = sum(member.dim for member in members)
        self.reduction = Reduction(dim, reduced_dim) if reduced_dim else None
        self.dim = reduced_dim or dim

    def forward(self, prepared_BM: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """(B, M) of `EnsemblePreprocess` -> (B, D) float32 embeddings of unit length.

        Args:
            shapes_B3: `image_shapes` of the original images, for heads that take them.
        """
        rows = prepared_BM.split([3 * side * side for side in self.sides_px], dim=1)
        views = [
            row.reshape(-1, 3, side, side) for row, side in zip(rows, self.sides_px, strict=True)
        ]
        embs = [
            member(views[view], shapes_B3)
            for member, view in zip(self.members, self.view_of, strict=True)
        ]
        emb_BD = functional.normalize(torch.cat(embs, dim=-1), dim=-1)
        if self.reduction:
            emb_BD = functional.normalize(self.reduction(emb_BD).float(), dim=-1)
        return emb_BD
