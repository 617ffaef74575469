"""Curation of a training mix: pure functions on manifest tables."""
