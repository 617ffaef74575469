"""Write a Hugging Face Hub folder that the backbone's library loads without this package; upload it.

The backbone has its library's config and weights. The head is `head/model.safetensors`. The model card,
README.md, has the code that combines them.
"""

import os
import re
import tempfile
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
from guie.export.card import render
from guie.models.backbones.base import BACKBONES, Backbone, HubLayout
from guie.models.embedder import Embedder
from guie.models.head import L2Norm
from guie.models.opening import LoadedModel
from guie.models.weights import save_weights
from scorer.errors import one_line

# In its own folder: timm before 1.0.27 loads the first .safetensors file it finds as the backbone.
HEAD, CARD = "head/model.safetensors", "README.md"
TITLE = re.compile(r"^# .*: one \d+-D embedding for every domain$", re.MULTILINE)  # of the card
TOLERANCE = 1e-4  # of features, relative to the largest, as their norm is not 1
OTHERS = "use --format torchscript, onnx or pt2"


def head_recipe(embedder: Embedder) -> tuple[dict[str, Tensor], list[str]]:
    """Return the head of a trained model as tensors and as lines of Python.

    The lines read the features `x` (B, F) and the dict `head` of tensors, and leave the embeddings (B, D)
    in `x`. BatchNorm is folded into the next Linear layer.
    """
    tensors: dict[str, Tensor] = {}
    lines: list[str] = []

    def linear(name: str, weight: Tensor, bias: Tensor | None) -> str:
        tensors[f"{name}weight"] = weight.detach().clone()
        if bias is None:
            return f'F.linear(x, head["{name}weight"])'
        tensors[f"{name}bias"] = bias.detach().clone()
        return f'F.linear(x, head["{name}weight"], head["{name}bias"])'

    if head := embedder.head:
        layers = [module for module in [*head.hidden, head.linear] if isinstance(module, nn.Linear)]
        maps: list[tuple[Tensor, Tensor | None]]
        maps = [(layer.weight, layer.bias) for layer in layers]
        activation = "gelu" if any(isinstance(one, nn.GELU) for one in head.hidden) else "relu"
        if head.image_shape:
            shape = "torch.tensor([[height / width, height / 224, width / 224]])"
            lines.append(f"x = torch.cat([x, {shape}], 1)")
        if isinstance(head.norm, nn.BatchNorm1d):
            maps[0] = _folded(head.norm, *maps[0])
        elif isinstance(head.norm, L2Norm):
            lines.append("x = F.normalize(x, dim=1)")
        for number, (weight, bias) in enumerate(maps[:-1]):
            lines.append(f"x = F.{activation}({linear(f'hidden.{number}.', weight, bias)})")
        lines.append(f"x = {linear('', *maps[-1])}")
        if head.parts > 1:
            parts = f"x.unflatten(1, ({head.parts}, -1))"
            lines.append(f"x = F.normalize({parts}, dim=2).flatten(1)")
    lines.append("x = F.normalize(x, dim=1)")
    if embedder.reduction:
        weight_DR, mean_D = embedder.reduction.weight_DR, embedder.reduction.mean_D
        reduced = linear("reduction.", weight_DR.T, -mean_D @ weight_DR)
        lines.append(f"x = F.normalize({reduced}, dim=1)")
    return tensors, lines


def _folded(
    norm: nn.BatchNorm1d, weight_DF: Tensor, bias_D: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Fold BatchNorm in eval mode into the next Linear layer."""
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
    files = {name: folder / name for name in sorted(names)}
    return [(name, file.stat().st_size) for name, file in files.items() if file.is_file()]


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
        wrong = f"the upload failed: {one_line(error)}"
        remedy = "check that you ran `hf auth login`"
        raise UserError(f"--push {repository}: {wrong}; {remedy}") from error
    return str(done)


def write_hub_folder(model: LoadedModel, folder: Path, facts: dict[str, Any]) -> float:
    """Write backbone, head and README.md; return the relative difference of the library's features.

    `facts` of the export are for the README. Raises UserError if the library does not support a part of the
    model, or its features differ from the model's.
    """
    embedder, preprocess, hub = _supported(model)
    (member,) = model.members
    backbone, image = embedder.backbone, preprocess.recipe()
    tensors, lines = head_recipe(embedder)
    folder.mkdir(parents=True, exist_ok=True)
    card = folder / CARD
    names = [name for name in (hub.config, hub.weights, HEAD, CARD) if (folder / name).exists()]
    written = card.is_file() and TITLE.search(card.read_text(encoding="utf-8", errors="replace"))
    if names and not written:
        wrong = f"contains {names[0]}, which export.py did not write"
        raise UserError(f"{folder}: {wrong}; choose another folder")
    with tempfile.TemporaryDirectory(prefix=".hub-", dir=folder) as scratch:
        temporary = Path(scratch)
        described, weights = backbone.hub_content(member.model.backbone, image)
        write_json(temporary / hub.config, described)
        save_weights(weights, temporary / hub.weights)
        difference = _difference(backbone, temporary, model.source)
        if tensors:
            save_weights(tensors, temporary / HEAD)
        about = {"library": backbone.library, "name": folder.name, "image": image, "hub": hub}
        text = render("hub.md.j2", facts, lines=lines, has_tensors=bool(tensors), **about)
        write_text(temporary / CARD, text)
        for file in sorted(path for path in temporary.rglob("*") if path.is_file()):
            target = folder / file.relative_to(temporary)
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
    if not tensors:
        (folder / HEAD).unlink(missing_ok=True)
    return difference


def _supported(model: LoadedModel) -> tuple[Embedder, Preprocess, HubLayout]:
    """Return the single embedder. Raises UserError naming a part that the library does not support."""
    embedder, preprocess = model.embedder, model.preprocess
    if not isinstance(embedder, Embedder) or not isinstance(preprocess, Preprocess):
        wrong = "a hub folder holds one backbone, and this model has several"
        raise UserError(f"{model.source}: {wrong}; {OTHERS}")
    backbone = embedder.backbone
    library = backbone.library
    if backbone.hub is None:
        raise UserError(f"{model.source}: {library} loads no folder from the hub; {OTHERS}")
    parts = {
        "adapters": backbone.adapters,
        "prompts": backbone.prompts,
        "features of inner layers": backbone.layers,
        "overlapping patches": backbone.stride_px,
    }
    for name, part in parts.items():
        if part is not None:
            wrong = f"it has {name}, which {library} does not support"
            raise UserError(f"{model.source}: {wrong}; {OTHERS}")
    return embedder, preprocess, backbone.hub


def _difference(backbone: Backbone, folder: Path, source: str) -> float:
    """Return the relative difference to the library's features. Raises UserError above TOLERANCE."""
    library, side = backbone.library, backbone.size_px
    generator = torch.Generator().manual_seed(0)
    images_BCHW = torch.randn(2, 3, side, side, generator=generator)
    with torch.inference_mode():
        ours_BF = backbone.cpu().float().eval()(images_BCHW)
        try:
            theirs_BF = backbone.open_hub(folder)(images_BCHW)
        except Exception as error:  # the libraries raise many types
            wrong = f"cannot load the exported folder: {one_line(error)}"
            raise UserError(f"{source}: {library} {wrong}") from error
    difference = float("inf")
    if ours_BF.shape == theirs_BF.shape:
        difference = ((ours_BF - theirs_BF).abs().max() / ours_BF.abs().max()).item()
    if not difference <= TOLERANCE:
        wrong = f"returns other features with the same weights (difference {difference:.1e})"
        why = "its config format lacks an argument of this backbone"
        raise UserError(f"{source}: {library} {wrong}: {why}")
    return difference
