"""A folder in the layout of the Hugging Face Hub, which timm or open_clip opens without this package.

The tower goes by its library's own config and weights, the head as `head/model.safetensors`, and the
card, README.md, has the lines that put them together.
"""

from guie.export.hub.folder import listing, push, write_hub_folder

__all__ = ["listing", "push", "write_hub_folder"]
