"""Training tasks: each maps a `Batch` to loss and logs, which is all the training loop uses."""

from collections.abc import Callable

from guie.config import RunConfig
from guie.data.dataset import Classes
from guie.training.tasks.base import Task
from guie.training.tasks.classification import ClassificationTask
from guie.training.tasks.contrastive import ContrastiveTask
from guie.training.tasks.distillation import DistillationTask
from guie.training.tasks.online import OnlineTask


def build_task(config: RunConfig, classes: Classes, pretrained: bool = True) -> Task:
    """Build the configured task; `pretrained=False` skips pretrained weights, for a checkpoint to load."""
    kinds: dict[str, Callable[[RunConfig, Classes, bool], Task]] = {
        "classification": ClassificationTask,
        "contrastive": ContrastiveTask,
        "distillation": DistillationTask,
        "online": OnlineTask,
    }
    return kinds[config.task.name](config, classes, pretrained)
