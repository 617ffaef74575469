"""Compute embeddings of images and texts, and evaluate them."""
