"""Duplicate detection: candidate pairs by hash, pixel evidence, and the rules of a mix."""
