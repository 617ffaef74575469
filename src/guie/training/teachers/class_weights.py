"""Class weights of a finished run, by the names of its classes: a teacher's logits come from them.

Shapes: C classes, k centres a class, T dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.losses import MarginSoftmax
from guie.model.frozen_weights import read_tensors
from guie.model.weights_file import save_weights
from guie.training.run.folder import CLASSES, read_classes

FILE, KEY = "model_classes.safetensors", "weight_CkT"


def save_class_weights(classifier: MarginSoftmax, path: Path) -> None:
    """Write them, in the order of the run's classes, atomically."""
    everyone = torch.arange(classifier.classes, device=classifier.weight_CD.device)
    with torch.no_grad():
        save_weights({KEY: classifier.centers_of(everyone)}, path)


def read_class_weights(folder: str | Path, labels: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Those that a run has of some classes: their places among these, (C,), and weights (C, k, T).

    Raises UserError where the folder keeps none.
    """
    folder = Path(folder)
    if not (folder / FILE).is_file() or not (folder / CLASSES).is_file():
        raise UserError(
            f"{folder}: has no {FILE}, so relation logits cannot learn from it; name a run of a margin"
            " softmax without projector, or take another relation"
        )
    known = read_classes(folder)
    row = {label: number for number, label in enumerate(known)}
    shared = [number for number, label in enumerate(labels) if label in row]
    weight_CkT = read_tensors(folder / FILE)[KEY]
    return torch.tensor(shared, dtype=torch.long), weight_CkT[
        [row[labels[number]] for number in shared]
    ]
