"""A model whose embedding is reduced by principal components.

Shapes: N images or texts, D dimensions, R dimensions they are reduced to.
"""

from __future__ import annotations

import torch

from guie.base.errors import UserError
from guie.config.model import HeadConfig
from guie.evaluation.components import Components
from guie.model import LoadedModel, rebuild


def reduced(model: LoadedModel, components: Components) -> LoadedModel:
    """The model with its embedding reduced. Raises UserError for one that is reduced already.

    Behind a head, or several models, stands a `Reduction`. A model without a head gets one that does
    the same: features of unit length through a Linear layer.
    """
    dim = components.weight_DR.shape[1]
    weight_DR, mean_D = torch.tensor(components.weight_DR), torch.tensor(components.mean_D)
    state = dict(model.embedder.state_dict())
    if model.embedder.reduction:
        raise UserError(f"{model.source}: is reduced already; reduce the run that it was made of")
    fitted = {"reduction.mean_D": mean_D, "reduction.weight_DR": weight_DR}
    if len(model.members) > 1:
        return rebuild(model.members, state | fitted, model.source, reduced_dim=dim)
    (member,) = model.self_contained()
    if member.model.head:
        head = member.model.head.model_copy(update={"reduced_dim": dim})
    else:
        head = HeadConfig(norm="l2", dim=dim)
        fitted = {"head.linear.weight": weight_DR.T, "head.linear.bias": -mean_D @ weight_DR}
    with_head = member.model.model_copy(update={"head": head})
    member = member.model_copy(update={"model": with_head})
    return rebuild([member], state | fitted, model.source)
