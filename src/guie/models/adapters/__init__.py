"""Adapters and prompts for frozen vision transformers of timm and open_clip.

They attach to the backbone's modules with forward hooks, so its own names and weights do not change.
"""
