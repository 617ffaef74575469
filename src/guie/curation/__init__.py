"""Curation of a training mix, as pure functions on manifest tables."""
