"""How images look: whether they decode, what they hash to, and how much two of them differ."""

from __future__ import annotations
