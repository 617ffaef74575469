"""Write a Hugging Face Hub folder that timm or open_clip loads without this package.

The backbone has its library's config and weights. The head is `head/model.safetensors`. The model card,
README.md, has the code that combines them.
"""

from guie.export.hub.folder import listing, push, write_hub_folder

__all__ = ["listing", "push", "write_hub_folder"]
