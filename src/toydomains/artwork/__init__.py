"""Artwork: framed paintings on a wall. A class is one painting; only the photograph changes."""
