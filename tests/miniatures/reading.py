"""Read a miniature like the data set, without its real counts."""

from dataclasses import replace
from pathlib import Path

from guie.data.datasets import DATASETS, Reading, read_dataset
from guie.data.datasets.finding import find
from miniatures import SMALL_SPLITS


def read_small(root: Path, name: str, **how: object) -> Reading:
    """Read the miniature that is found below `root`."""
    dataset = replace(DATASETS[name], expected=())
    return read_dataset(dataset, find(dataset, [root]), **{**SMALL_SPLITS.get(name, {}), **how})
