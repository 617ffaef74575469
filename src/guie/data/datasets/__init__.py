"""Read downloaded data sets: from a folder to manifest rows and a report.

| module | content |
|---|---|
| `declared.yaml` | where data sets are found, how they are read, how many images they have |
| `declared` | the rows of one: its lists, matched with its files and counted |
| `readers` | of most: lists, and names of files, by a layout in the declaration; parsers of lists |
| `special` | readers of the others |
| `folder` | plain image folders |
| `finding`, `download` | its folder in `input/`, and how to fetch it |
"""

from guie.data.datasets.declared import DATASETS, Dataset, Reading, read_dataset
from guie.data.datasets.folder import read_folder

__all__ = ["DATASETS", "Dataset", "Reading", "read_dataset", "read_folder"]
