"""What is added to a transformer that stays as it is: adapters and prompts, in timm's and open_clip's.

They hold on to the tower's modules by hooks, so that its own names and weights stay as they were.
"""

from __future__ import annotations

from guie.models.adapters.attaching import Adapters, adapt, merge_lora
from guie.models.adapters.prompts import Pool, Prompts

__all__ = ["Adapters", "Pool", "Prompts", "adapt", "merge_lora"]
