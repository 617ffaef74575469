"""Ensembles and soups: several models, or several views of one, made into one model without training."""

from __future__ import annotations
