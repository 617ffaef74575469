"""Where an embedding is wrong: what a report's page is made of, as tables and arrays."""

from guie.evaluation.diagnosis.confusion import class_confusions, domain_shares, strayed
from guie.evaluation.diagnosis.difficulty import by_class
from guie.evaluation.diagnosis.gaps import Gaps, gaps
from guie.evaluation.diagnosis.hubs import hubness, occurrences, skewness, wrong_firsts
from guie.evaluation.diagnosis.nearest import DEPTH, SHOWN, Nearest, nearest
from guie.evaluation.diagnosis.outcomes import outcomes

__all__ = [
    "DEPTH",
    "SHOWN",
    "Gaps",
    "Nearest",
    "by_class",
    "class_confusions",
    "domain_shares",
    "gaps",
    "hubness",
    "nearest",
    "occurrences",
    "outcomes",
    "skewness",
    "strayed",
    "wrong_firsts",
]
