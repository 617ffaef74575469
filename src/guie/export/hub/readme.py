"""The hub's model card: metadata the hub reads, then how to use it without this package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from guie.export.card import about_model
from guie.export.hub.head import HeadRecipe

_METADATA = """\
---
library_name: {library}
pipeline_tag: image-feature-extraction
license: other
tags:
- image-feature-extraction
- image-embedding
- {library}
---
"""
# An odd margin's larger half goes behind, as in our own.
_PAD = {
    "pad": """\
square = ({size_px}, {size_px})
image = ImageOps.pad(image, square, Image.Resampling.BICUBIC, "white", centering=(0.499, 0.499))
"""
}


def readme(
    facts: dict[str, Any],
    layout: ModuleType,
    recipe: HeadRecipe,
    image: dict[str, Any],
    name: str,
) -> str:
    """Markdown; its one block of Python goes from a picture's file to its embedding."""
    library = facts["models"][0]["model"]["backbone"]["library"]
    sections = {
        "How to use it": _use(layout, recipe, image, library, name),
        **about_model(facts | {"input": "RGB, as the transform makes it"}),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    head = _METADATA.format(library=library)
    return f"{head}\n# {name}: one {facts['dimension']}-D embedding for every domain\n\n{body}\n"


def is_card(path: Path) -> bool:
    """Whether `readme` made the file, as the title tells."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    return (
        re.search(r"^# .*: one \d+-D embedding for every domain$", text, re.MULTILINE) is not None
    )


def _use(
    layout: ModuleType, recipe: HeadRecipe, image: dict[str, Any], library: str, name: str
) -> str:
    imports = [
        *(f"import {layout.IMPORT}", "import torch", "from PIL import Image"),
        *(["from safetensors.torch import load_file"] if recipe.tensors else []),
        "from torch.nn import functional as F\n",
    ]
    if image["fit"] == "pad" and library == "timm":
        imports[2] += ", ImageOps"
    load = layout.LOAD.format(address=json.dumps(f"local-dir:{name}"))
    picture = 'image = Image.open("picture.jpg").convert("RGB")\nwidth, height = image.size\n'
    if library == "timm":  # open_clip pads with white itself
        picture += _PAD.get(image["fit"], "").format(**image)
    head = json.dumps(f"{name}/head/model.safetensors")  # quoted as Python quotes it
    lines = [
        *("\n".join(imports), load, picture),
        "images = transform(image)[None]\nwith torch.no_grad():\n    x = " + layout.ENCODE + "\n",
        *([f"head = load_file({head})"] if recipe.tensors else []),
        *recipe.lines,
    ]
    code = "\n".join(lines)
    return (
        f"`{library}` opens the tower, and the last lines are the head.\n\n```python\n{code}\n```\n\n"
        f"`x` (1, D) is of unit length: compare by cosine or Euclidean distance. Once it lies on the hub,"
        f" write `hf-hub:OWNER/NAME` for `local-dir:{name}`, and fetch `head/model.safetensors` by"
        " `huggingface_hub.hf_hub_download`. The transform resizes in 8 bits by PIL,"
        " where the model was trained on antialiased bicubic in float: 0.2 grey levels in the mean, more"
        f" at hard edges.{layout.NOTE}"
    )
