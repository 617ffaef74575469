"""From the sources of a mix to its rows: what `src/curate.py` does, step by step."""

from guie.curation.steps.account import Account
from guie.curation.steps.cleaning import clean_rows, refuse_late_leaks
from guie.curation.steps.labelling import match_domains, pseudo_label
from guie.curation.steps.reading import read_sources
from guie.curation.steps.rules import limit_classes, refuse_illegal, refuse_overwriting
from guie.curation.steps.selecting import select_rows

__all__ = [
    "Account",
    "clean_rows",
    "limit_classes",
    "match_domains",
    "pseudo_label",
    "read_sources",
    "refuse_illegal",
    "refuse_late_leaks",
    "refuse_overwriting",
    "select_rows",
]
