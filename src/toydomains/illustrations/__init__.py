"""Illustrations: dressed animals, in two hands. Queries are ink sketches, the index flat prints."""
