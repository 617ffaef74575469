"""List the ways to re-rank by name, with their sources."""

from __future__ import annotations

from collections.abc import Sequence

from guie.base.errors import UserError

METHODS = {
    "expand": "alpha query expansion among mutual neighbours (Radenovic et al., TPAMI 2019)",
    "augment": "the same for each index image (database augmentation; Gordo et al., IJCV 2017)",
    "csls": "local scaling of similarities against hubs (Conneau et al., ICLR 2018)",
    "softmax": "inverted softmax against hubs (Smith et al., ICLR 2017)",
    "local": "the first 50 by patches that match, with a geometric check (Noh et al., ICCV 2017)",
}
LOCAL = "local"  # needs the model and the images, not only embeddings
OF_HUBS = ("csls", "softmax")


def methods_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named methods in the order in which they apply.

    Raises UserError for an unknown name, or for both corrections of hubs.
    """
    for name in names:
        if name not in METHODS:
            raise UserError(f"--rerank {name}: unknown; known: {', '.join(METHODS)}")
    if set(OF_HUBS) <= set(names):
        raise UserError(f"--rerank: {' and '.join(OF_HUBS)} both correct hubs; choose one")
    return tuple(name for name in METHODS if name in names)
