"""What is added to a transformer that stays as it is: adapters and prompts, in timm's and open_clip's.

They hold on to the tower's modules by hooks, so that its own names and weights stay as they were.
"""

from guie.model.adapters.adapters import Adapters, adapt, merge_lora
from guie.model.adapters.prompts import Pool, Prompts

__all__ = ["Adapters", "Pool", "Prompts", "adapt", "merge_lora"]
