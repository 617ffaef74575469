"""Adapters and prompts for frozen vision transformers of timm and open_clip.

They attach to the backbone's modules with forward hooks, so its own names and weights do not change.
"""

from __future__ import annotations

from guie.models.adapters.attaching import Adapters, adapt, merge_lora
from guie.models.adapters.prompts import Pool, Prompts

__all__ = ["Adapters", "Pool", "Prompts", "adapt", "merge_lora"]
