"""Check images: whether they decode, their hashes, and how much two images differ."""

from __future__ import annotations
