"""Research protocols: queries and index of each search, and the report of their scores."""

from guie.evaluation.protocols.base import Headline, Part, Protocol, with_subsets, with_texts
from guie.evaluation.protocols.catalogue import INDEXES, PROTOCOLS, QUIRKS
from guie.evaluation.protocols.evaluating import (
    DRAWS,
    QUICK,
    Given,
    against,
    as_units,
    compare,
    evaluate,
    protocol_of,
    quick_scores,
    run_models,
    run_protocol,
    score_part,
    share_models,
    share_protocol,
)
from guie.evaluation.protocols.retrieval import HARMONIC, Scores, refuse_unanswerable

__all__ = [
    "DRAWS",
    "HARMONIC",
    "INDEXES",
    "Given",
    "PROTOCOLS",
    "QUICK",
    "QUIRKS",
    "Headline",
    "Part",
    "Protocol",
    "Scores",
    "against",
    "as_units",
    "compare",
    "evaluate",
    "protocol_of",
    "quick_scores",
    "refuse_unanswerable",
    "run_models",
    "run_protocol",
    "score_part",
    "share_models",
    "share_protocol",
    "with_subsets",
    "with_texts",
]
