"""Search over one's own pictures: an index on disk, queries, a local page, copies, shards.

The last room but one: it opens any model (`evaluation`), draws pages (`report`) and knows copies by their
evidence (`curation`).
"""

from guie.search.searcher import Searcher, open_index

__all__ = ["Searcher", "open_index"]
