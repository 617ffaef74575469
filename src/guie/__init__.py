"""guie: universal image embedding. One 64-D vector that finds the same object in any domain."""

__version__ = "0.1.0"
