"""Search your own images: an index in LanceDB, queries, a page in the browser, a push to a server."""

from guie.search.searcher import Searcher, open_index

__all__ = ["Searcher", "open_index"]
