"""guie: universal image embedding. One 64-D vector that finds the same object in any domain."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
# What `import guie` offers, from where; each is imported when it is first asked for.
PUBLIC = {
    "open_model": "guie.models.opening",
    "embed": "guie.rows.embedding",
    "open_index": "guie.search.searcher",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module guie has no {name}; it has {', '.join(PUBLIC)}")
    return getattr(import_module(PUBLIC[name]), name)
