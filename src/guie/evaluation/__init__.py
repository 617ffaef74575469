"""Embeddings of images and texts, and how good they are."""
