"""The page that a mix is judged by: what came in, what each rule took, what is left."""

from guie.report.pages.funnel import left_after
from guie.report.pages.page import write_report
from guie.report.pages.sizes import class_sizes

__all__ = ["class_sizes", "left_after", "write_report"]
