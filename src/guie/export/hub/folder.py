"""The folder as a whole: what it can hold, its files, and whether the libraries read them as we do."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from guie.base.errors import UserError
from guie.base.files import write_text
from guie.export.hub import open_clip_layout, timm_layout
from guie.export.hub.head import head_recipe
from guie.export.hub.readme import is_card, readme
from guie.model import Embedder, LoadedModel
from guie.model.backbone import Backbone
from guie.model.preprocess import Preprocess
from guie.model.weights_file import save_weights

LAYOUTS: dict[str, ModuleType] = {"timm": timm_layout, "open_clip": open_clip_layout}
# In a folder of its own: timm before 1.0.27 takes the first .safetensors beside its own for the tower.
HEAD, CARD = "head/model.safetensors", "README.md"
TOLERANCE = 1e-4  # of features, relative to the largest: their length is not 1


def write_hub_folder(model: LoadedModel, folder: Path, facts: dict[str, Any]) -> float:
    """Write tower, head and card; the relative difference of the features as the library gives them.

    Args:
        facts: of the export, for the card.

    Raises:
        UserError: the model has what the library's own towers have not, or the library gives other
            features than the model.
    """
    embedder, preprocess = _plain(model)
    (member,) = model.members
    config, image = member.model.backbone, preprocess.recipe()
    layout, recipe = LAYOUTS[config.library], head_recipe(embedder)
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_strange(folder, (*layout.FILES, HEAD, CARD))
    with tempfile.TemporaryDirectory(prefix=".hub-", dir=folder) as scratch:
        beside = Path(scratch)
        layout.write_tower(embedder.backbone, config, image, beside)
        difference = _difference(layout, embedder.backbone, beside, config.library, model.source)
        if recipe.tensors:
            save_weights(recipe.tensors, beside / HEAD)
        write_text(beside / CARD, readme(facts, layout, recipe, image, folder.name))
        for file in sorted(path for path in beside.rglob("*") if path.is_file()):
            target = folder / file.relative_to(beside)
            target.parent.mkdir(exist_ok=True)
            os.replace(file, target)
    if not recipe.tensors:
        (folder / HEAD).unlink(missing_ok=True)
    return difference


def _refuse_strange(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError where the folder has such files and no card of an earlier export."""
    there = [name for name in names if (folder / name).exists()]
    if there and not is_card(folder / CARD):
        raise UserError(
            f"{folder}: holds {there[0]}, which no export has written; choose another folder"
        )


def _plain(model: LoadedModel) -> tuple[Embedder, Preprocess]:
    """The one embedder, whose tower is the library's. Raises UserError naming what it is not."""
    embedder, preprocess = model.embedder, model.preprocess
    formats = "the other formats (torchscript, onnx, pt2) hold it whole"
    if not isinstance(embedder, Embedder) or not isinstance(preprocess, Preprocess):
        raise UserError(
            f"{model.source}: a hub folder is of one tower, and this is of several; {formats}"
        )
    backbone = embedder.backbone
    parts = {
        "adapters": backbone.adapters,
        "prompts": backbone.prompts,
        "features of inner layers": backbone.layers,
        "overlapping patches": backbone.stride_px,
    }
    for name, part in parts.items():
        if part is not None:
            library = model.members[0].model.backbone.library
            raise UserError(
                f"{model.source}: it has {name}, for which {library} has no place; {formats}"
            )
    return embedder, preprocess


def _difference(
    layout: ModuleType, backbone: Backbone, folder: Path, library: str, source: str
) -> float:
    """Of the features, ours and the library's. Raises UserError where they are not the same."""
    generator = torch.Generator().manual_seed(0)
    side = backbone.size_px
    images_BCHW = torch.randn(2, 3, side, side, generator=generator)
    with torch.inference_mode():
        ours_BF = backbone.cpu().float().eval()(images_BCHW)
        try:
            theirs_BF = layout.open_tower(folder)(images_BCHW)
        except Exception as error:  # of many kinds
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"{source}: {library} does not open its own layout: {reason}"
            ) from error
    if ours_BF.shape != theirs_BF.shape:
        raise UserError(f"{source}: {library} gives {theirs_BF.shape[1]} features of this tower")
    difference = ((ours_BF - theirs_BF).abs().max() / ours_BF.abs().max()).item()
    if not difference <= TOLERANCE:
        raise UserError(
            f"{source}: {library} gives other features of the same weights ({difference:.1e});"
            " the arguments of its config are not all in the library's layout"
        )
    return difference
