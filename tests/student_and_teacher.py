"""Embeddings of a student and a teacher, and relations between them."""

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from guie.config.distillation import RelationConfig
from guie.losses.distillation import build_relation

DIM, TEACHER = 5, 7


def built(**values) -> nn.Module:
    return build_relation(TypeAdapter(RelationConfig).validate_python(values), DIM, TEACHER)


def embeddings(images: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of student and teacher, float64, of unit length."""
    torch.manual_seed(seed)
    student = torch.randn(images, DIM, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(images, TEACHER, dtype=torch.float64)
    return student, functional.normalize(teacher, dim=1)


def unit(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors, dim=1)
