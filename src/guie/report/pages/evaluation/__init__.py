"""The page that an embedding is judged by: scores, and the pictures behind them."""

from guie.report.pages.evaluation.page import write_evaluation
from guie.report.pages.evaluation.scored import Scored, judged_models

__all__ = ["Scored", "judged_models", "write_evaluation"]
