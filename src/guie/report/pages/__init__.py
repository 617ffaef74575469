"""Pages that need nothing beside them: of a mix here, of an embedding's scores in `evaluation`."""

from guie.report.pages.funnel import left_after
from guie.report.pages.page import write_report
from guie.report.pages.sizes import class_sizes

__all__ = ["class_sizes", "left_after", "write_report"]
