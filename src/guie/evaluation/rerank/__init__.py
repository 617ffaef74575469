"""Correct the ranking of an exact or approximate search, in validation and in search alike."""
