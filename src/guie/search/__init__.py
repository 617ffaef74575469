"""Search your own images: an index on disk, queries, a local web page, duplicates, shards.

This package loads models with `evaluation`, draws pages with `report` and finds duplicates with `curation`.
"""

from guie.search.searcher import Searcher, open_index

__all__ = ["Searcher", "open_index"]
