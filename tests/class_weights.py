"""Class weights in a run's folder, as train.py leaves them."""

from pathlib import Path

import torch

from guie.config import RunConfig, load_config
from guie.losses.margin_softmax import MarginSoftmax
from guie.losses.rules import CosFace
from guie.models.weights import CLASS_WEIGHT, save_weights
from guie.training.run_folder import CLASS_WEIGHTS, keep_classes


def with_class_weights(folder: Path, labels: list[str], seed: int = 0) -> Path:
    """The run, knowing these classes by random weights."""
    head = load_config(folder / "config.yaml", RunConfig).model.head
    assert head
    torch.manual_seed(seed)
    classifier = MarginSoftmax(len(labels), head.dim, CosFace(0.0), scale=16.0, centers=2)
    keep_classes(folder, labels)
    weights = classifier.centers_of(torch.arange(len(labels)))
    save_weights({CLASS_WEIGHT: weights}, folder / CLASS_WEIGHTS)
    return folder
