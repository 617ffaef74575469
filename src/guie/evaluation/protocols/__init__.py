"""Research protocols: who is searched where, and how values become a report."""

from guie.evaluation.protocols.base import Headline, Part, Protocol, with_subsets, with_texts
from guie.evaluation.protocols.catalogue import INDEXES, PROTOCOLS, QUIRKS
from guie.evaluation.protocols.certainty import DRAWS, against, compare
from guie.evaluation.protocols.evaluating import (
    QUICK,
    Given,
    as_units,
    evaluate,
    protocol_of,
    quick_scores,
    run_protocol,
    score_part,
    share_protocol,
)
from guie.evaluation.protocols.retrieval import HARMONIC, Scores, refuse_unanswerable
from guie.evaluation.protocols.side_by_side import run_models, share_models

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
