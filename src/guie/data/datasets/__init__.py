"""Read downloaded data sets: from a folder to manifest rows and a report.

| module | content |
|---|---|
| `declared.yaml`, `declared` | where data sets are found, how they are read, how many images they have |
| `layouts` | the readers of most: lists, and names of files, by a layout in the declaration |
| `special` | readers of the others |
| `parsing` | tables, words, JSON and MATLAB files |
| `reading` | the rows of one, matched with its files |
| `folder` | plain image folders |
| `finding`, `download` | its folder in `input/`, and how to fetch it |
"""

from guie.data.datasets.declared import DATASETS, Dataset
from guie.data.datasets.folder import read_folder
from guie.data.datasets.reading import Reading, read_dataset

__all__ = ["DATASETS", "Dataset", "Reading", "read_dataset", "read_folder"]
