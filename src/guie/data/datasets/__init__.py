"""Read downloaded data sets: from a folder to manifest rows and a report.

`declared.yaml` says where a data set is found, how it is read, and how many images it has. `declared` matches
its lists with files, and counts. `readers` reads most by a layout in the declaration, `special` the others,
and `folder` plain image folders. `finding` looks for its folder in `input/`, and `download` fetches it.
"""

from guie.data.datasets.declared import DATASETS, Dataset, Reading, read_dataset
from guie.data.datasets.folder import read_folder

__all__ = ["DATASETS", "Dataset", "Reading", "read_dataset", "read_folder"]
