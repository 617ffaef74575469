"""Self-contained HTML pages: the report of a mix here, of an embedding's scores in `evaluation`."""

from guie.report.pages.mix import class_sizes, left_after, write_report

__all__ = ["class_sizes", "left_after", "write_report"]
