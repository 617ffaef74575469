"""The page that an embedding is judged by: scores, and the pictures behind them."""

from guie.report.pages.evaluation.page import write_evaluation
from guie.report.pages.evaluation.scored import Scored

__all__ = ["Scored", "write_evaluation"]
