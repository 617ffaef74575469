"""Copies of pictures: candidates by hash, evidence by pixels, and what they mean for a mix."""

from __future__ import annotations
