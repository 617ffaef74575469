"""Write a Hugging Face Hub folder that the backbone's library loads without this package; upload it.

The backbone has its library's config and weights. The head is `head/model.safetensors`. The model card,
README.md, has the code that combines them.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.base.files import write_json, write_text
from guie.data.preprocess import Preprocess
from guie.export.card import about_model
from guie.models.backbones.base import BACKBONES, Backbone, HubLayout
from guie.models.embedder import Embedder
from guie.models.head import Head, L2Norm
from guie.models.opening import LoadedModel
from guie.models.weights import save_weights
from scorer.errors import one_line

Map = tuple[Tensor, Tensor | None]  # weight (D, F) and bias (D)


@dataclass
class HeadRecipe:
    """Tensors and Python code that turn features into embeddings.

    Attributes: `tensors`, by their name in `lines`. `lines` are Python code. They read the features
    `x` (B, F) and the dict `head` of tensors, and leave the embeddings (B, D) in `x`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def linear(self, name: str, weight: Tensor, bias: Tensor | None) -> str:
        """Store an affine map under this name, and return the code that applies it."""
        self.tensors[f"{name}weight"] = weight.detach().clone()
        if bias is None:
            return f'F.linear({{}}, head["{name}weight"])'
        self.tensors[f"{name}bias"] = bias.detach().clone()
        return f'F.linear({{}}, head["{name}weight"], head["{name}bias"])'


def head_recipe(embedder: Embedder) -> HeadRecipe:
    """Return the head of a trained model as code; BatchNorm is folded into the next Linear layer."""
    recipe, head = HeadRecipe(), embedder.head
    if head:
        _head_lines(recipe, head)
    if head and head.parts > 1:
        recipe.lines.append(
            f"x = F.normalize(x.unflatten(1, ({head.parts}, -1)), dim=2).flatten(1)"
        )
    recipe.lines.append("x = F.normalize(x, dim=1)")
    if embedder.reduction:
        weight_DR, mean_D = embedder.reduction.weight_DR, embedder.reduction.mean_D
        call = recipe.linear("reduction.", weight_DR.T, -mean_D @ weight_DR)
        recipe.lines.append(f"x = F.normalize({call.format('x')}, dim=1)")
    return recipe


def _head_lines(recipe: HeadRecipe, head: Head) -> None:
    linears = [module for module in [*head.hidden, head.linear] if isinstance(module, nn.Linear)]
    maps: list[Map] = [(linear.weight, linear.bias) for linear in linears]
    given = "x"
    activation = "gelu" if any(isinstance(one, nn.GELU) for one in head.hidden) else "relu"
    if head.image_shape:
        recipe.lines.append(
            "x = torch.cat([x, torch.tensor([[height / width, height / 224, width / 224]])], 1)"
        )
    if isinstance(head.norm, L2Norm):
        given = "F.normalize(x, dim=1)"
    elif not isinstance(head.norm, nn.Identity):
        maps[0] = _folded(head.norm, *maps[0])
    for number, (weight, bias) in enumerate(maps):
        last = number == len(maps) - 1
        call = recipe.linear("" if last else f"hidden.{number}.", weight, bias).format(given)
        recipe.lines.append(f"x = {call}" if last else f"x = F.{activation}({call})")
        given = "x"


def _folded(norm: nn.Module, weight_DF: Tensor, bias_D: Tensor | None) -> Map:
    """Fold BatchNorm in eval mode into the next Linear layer."""
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None and norm.running_var is not None
    scale_F = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale_F = scale_F * norm.weight
    shift_F = -norm.running_mean * scale_F
    if norm.bias is not None:
        shift_F = shift_F + norm.bias
    bias = weight_DF @ shift_F
    return weight_DF * scale_F, bias if bias_D is None else bias + bias_D


def check_repository(repository: str) -> None:
    """Raise UserError for a name of a repository that the hub does not accept."""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--push {repository}: {one_line(error)}") from None
    if repository.count("/") != 1:
        raise UserError(f"--push {repository}: must be OWNER/NAME")


def listing(folder: Path) -> list[tuple[str, int]]:
    """Return (name, bytes) of each file to upload; other files in the folder are left out."""
    layouts = [kind.hub for kind in BACKBONES.values() if kind.hub]
    names = {CARD, HEAD, *(name for hub in layouts for name in (hub.config, hub.weights))}
    files = [folder / name for name in sorted(names)]
    return [
        (str(file.relative_to(folder)), file.stat().st_size) for file in files if file.is_file()
    ]


def push(folder: Path, repository: str, private: bool = True) -> str:
    """Upload the files of `listing`, and return the URL. Raises UserError if the upload fails."""
    names = [name for name, _ in listing(folder)]
    client = huggingface_hub.HfApi()
    try:
        client.create_repo(repository, private=private, exist_ok=True)
        done = client.upload_folder(
            repo_id=repository, folder_path=folder, allow_patterns=names, commit_message="Add model"
        )
    except Exception as error:  # network, hub, or missing login
        raise UserError(
            f"--push {repository}: the upload failed: {one_line(error)}; check that you ran `hf auth login`"
        ) from error
    return str(done)


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
# Of an odd margin, the larger half is on the right or bottom, as in our own preprocessing.
_PAD = """\
square = ({size_px}, {size_px})
image = ImageOps.pad(image, square, Image.Resampling.BICUBIC, "{color}", centering=(0.499, 0.499))
"""


def readme(
    facts: dict[str, Any],
    hub: HubLayout,
    recipe: HeadRecipe,
    image: dict[str, Any],
    name: str,
) -> str:
    """Return the README as Markdown, with one block of Python from an image file to its embedding."""
    library = facts["models"][0]["model"]["backbone"]["library"]
    sections = {
        "How to use it": _use(hub, recipe, image, library, name),
        **about_model(facts | {"input": "RGB, as the transform makes it"}),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    head = _METADATA.format(library=library)
    return f"{head}\n# {name}: one {facts['dimension']}-D embedding for every domain\n\n{body}\n"


def _use(hub: HubLayout, recipe: HeadRecipe, image: dict[str, Any], library: str, name: str) -> str:
    imports = [
        *(f"import {library}", "import torch", "from PIL import Image"),
        *(["from safetensors.torch import load_file"] if recipe.tensors else []),
        "from torch.nn import functional as F\n",
    ]
    load = hub.load.format(address=json.dumps(f"local-dir:{name}"))
    picture = 'image = Image.open("picture.jpg").convert("RGB")\nwidth, height = image.size\n'
    if image["fit"] == "pad" and not hub.pads:
        imports[2] += ", ImageOps"
        picture += _PAD.format(size_px=image["size_px"], color=image.get("pad_color", "white"))
    head = json.dumps(f"{name}/head/model.safetensors")  # quoted as Python quotes it
    lines = [
        *("\n".join(imports), load, picture),
        "images = transform(image)[None]\nwith torch.no_grad():\n    x = " + hub.encode + "\n",
        *([f"head = load_file({head})"] if recipe.tensors else []),
        *recipe.lines,
    ]
    code = "\n".join(lines)
    return (
        f"`{library}` loads the backbone, and the last lines are the head.\n\n```python\n{code}\n```\n\n"
        f"`x` (1, D) has unit length: compare by cosine or Euclidean distance. After an upload to the hub,"
        f" write `hf-hub:OWNER/NAME` for `local-dir:{name}`, and download `head/model.safetensors` with"
        " `huggingface_hub.hf_hub_download`. The transform resizes with PIL in 8 bits. The model was trained"
        " with antialiased bicubic in float. The mean difference is 0.2 grey levels, more at hard"
        f" edges.{hub.note}"
    )


# In its own folder: timm before 1.0.27 loads the first .safetensors file it finds as the backbone.
HEAD, CARD = "head/model.safetensors", "README.md"
TOLERANCE = 1e-4  # of features, relative to the largest, as their norm is not 1


def write_hub_folder(model: LoadedModel, folder: Path, facts: dict[str, Any]) -> float:
    """Write backbone, head and README.md; return the relative difference of the library's features.

    Args:
        facts: of the export, for the README.

    Raises:
        UserError: the library does not support a part of the model, or its features differ from the
            model's.
    """
    embedder, preprocess, hub = _plain(model)
    (member,) = model.members
    config, image = member.model.backbone, preprocess.recipe()
    backbone, recipe = embedder.backbone, head_recipe(embedder)
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_strange(folder, (hub.config, hub.weights, HEAD, CARD))
    with tempfile.TemporaryDirectory(prefix=".hub-", dir=folder) as scratch:
        beside = Path(scratch)
        described, weights = backbone.hub_content(config, image)
        write_json(beside / hub.config, described)
        save_weights(weights, beside / hub.weights)
        difference = _difference(backbone, beside, model.source)
        if recipe.tensors:
            save_weights(recipe.tensors, beside / HEAD)
        write_text(beside / CARD, readme(facts, hub, recipe, image, folder.name))
        for file in sorted(path for path in beside.rglob("*") if path.is_file()):
            target = folder / file.relative_to(beside)
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
    if not recipe.tensors:
        (folder / HEAD).unlink(missing_ok=True)
    return difference


def _refuse_strange(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if the folder has such files, but no README.md of an earlier export."""
    there = [name for name in names if (folder / name).exists()]
    if not there:
        return
    card = folder / CARD
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    if not re.search(r"^# .*: one \d+-D embedding for every domain$", text, re.MULTILINE):
        raise UserError(
            f"{folder}: contains {there[0]}, which export.py did not write; choose another folder"
        )


def _plain(model: LoadedModel) -> tuple[Embedder, Preprocess, HubLayout]:
    """Return the single embedder. Raises UserError naming a part that the library does not support."""
    embedder, preprocess = model.embedder, model.preprocess
    formats = "use --format torchscript, onnx or pt2"
    if not isinstance(embedder, Embedder) or not isinstance(preprocess, Preprocess):
        raise UserError(
            f"{model.source}: a hub folder holds one backbone, and this model has several; {formats}"
        )
    backbone = embedder.backbone
    if backbone.hub is None:
        raise UserError(
            f"{model.source}: {backbone.library} loads no folder from the hub; {formats}"
        )
    parts = {
        "adapters": backbone.adapters,
        "prompts": backbone.prompts,
        "features of inner layers": backbone.layers,
        "overlapping patches": backbone.stride_px,
    }
    for name, part in parts.items():
        if part is not None:
            raise UserError(
                f"{model.source}: it has {name}, which {backbone.library} does not support; {formats}"
            )
    return embedder, preprocess, backbone.hub


def _difference(backbone: Backbone, folder: Path, source: str) -> float:
    """Return the relative difference to the library's features. Raises UserError above TOLERANCE."""
    library = backbone.library
    generator = torch.Generator().manual_seed(0)
    side = backbone.size_px
    images_BCHW = torch.randn(2, 3, side, side, generator=generator)
    with torch.inference_mode():
        ours_BF = backbone.cpu().float().eval()(images_BCHW)
        try:
            theirs_BF = backbone.open_hub(folder)(images_BCHW)
        except Exception as error:  # the libraries raise many types
            raise UserError(
                f"{source}: {library} cannot load the exported folder: {one_line(error)}"
            ) from error
    if ours_BF.shape != theirs_BF.shape:
        raise UserError(
            f"{source}: {library} returns {theirs_BF.shape[1]} features, not {ours_BF.shape[1]}, for this"
            " backbone"
        )
    difference = ((ours_BF - theirs_BF).abs().max() / ours_BF.abs().max()).item()
    if not difference <= TOLERANCE:
        raise UserError(
            f"{source}: {library} returns other features with the same weights (difference"
            f" {difference:.1e}): its config format lacks an argument of this backbone"
        )
    return difference
