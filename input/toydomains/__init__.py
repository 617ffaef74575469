"""The toy domains: seven procedurally drawn domains after the challenge's list, for a first run.

A class is a set of generative parameters (a shape grammar, a palette, a pattern, lettering). An
image is a view of it (pose, scale, background, light, occluders, noise). Everything is a
pure function of (seed, part, domain, class, view), the same on every machine.

    >>> import toydomains
    >>> manifest = toydomains.draw("input/toy")  # doctest: +SKIP
"""

from toydomains.dataset import DrawingError, draw

__all__ = ["DrawingError", "draw"]
