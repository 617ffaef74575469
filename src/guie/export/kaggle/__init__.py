"""The way of a submission to Kaggle: a folder for the official client, and a log of what came of it."""

from guie.export.kaggle.folder import check_kaggle_folder, client_commands, write_kaggle_folder
from guie.export.kaggle.log import LOG_COLUMNS, enter, log_row, read_log

__all__ = [
    "LOG_COLUMNS",
    "check_kaggle_folder",
    "client_commands",
    "enter",
    "log_row",
    "read_log",
    "write_kaggle_folder",
]
