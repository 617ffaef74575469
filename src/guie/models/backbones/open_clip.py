"""open_clip's image encoders as backbones, and whole CLIP models with their text encoders."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.model import BackboneConfig
from guie.models.backbones.base import (
    Block,
    Branch,
    HubLayout,
    VitStructure,
    grid_side,
    readable_errors,
    unknown_tag,
)
from guie.models.backbones.timm import Timm
from guie.models.pretrained import find_weights

# A whole open_clip model with image and text encoder; its class varies and has no types.
Clip = Any

# open_clip loads only complete models: a placeholder of one word and one layer.
NO_TEXT = {"context_length": 1, "vocab_size": 1, "width": 8, "heads": 1, "layers": 1}
WRAPPERS = ("_orig_mod.", "module.")  # of torch.compile and DDP
RESIZE_MODES = {"squash": "squash", "pad": "longest", "crop": "shortest"}


@cache
def import_open_clip() -> Any:
    """Import open_clip, and add our tiny CLIP to the models that it finds by name."""
    import open_clip

    open_clip.add_model_config(Path(__file__).with_name("open_clip_configs"))
    return open_clip


class OpenClip(Timm):
    """An image encoder of open_clip: its own transformer or ResNet, or a timm model in a wrapper."""

    library = "open_clip"
    top = Timm.top | {"ln_post", "ln_final", "text_projection", "logit_scale", "logit_bias"}
    hub = HubLayout(
        config="open_clip_config.json",
        weights="open_clip_model.safetensors",
        load="""\
backbone, transform = open_clip.create_model_from_pretrained({address})
backbone.eval()
""",
        encode="backbone.encode_image(images)",
        pads=True,
        note=" The text encoder is a placeholder of one layer, whose weights are zero: the model cannot"
        " compare texts.",
    )

    @classmethod
    def build(cls, config: BackboneConfig, size_px: int | None, weights: Path | None) -> OpenClip:
        return cls.of_clip(_created(config, weights), config, size_px)

    @classmethod
    def of_clip(cls, clip: Clip, config: BackboneConfig, size_px: int | None) -> OpenClip:
        """Return the image encoder of a whole model; parameters are shared, not copied."""
        open_clip = import_open_clip()
        tower = clip.visual
        if config.features == "pooled":
            # Without CLIP's last projection, as the challenge's 2nd place
            if getattr(tower, "proj", None) is not None:
                tower.proj = None
            elif hasattr(tower, "trunk"):
                tower.head = nn.Identity()
            else:
                raise UserError(
                    f"model.backbone.features: {config.name} has no projection to drop; use projected"
                )
        native = open_clip.get_model_preprocess_cfg(clip)
        tag = open_clip.get_pretrained_cfg(config.name, config.tag or "") or {}
        # If the weights come from a run's own file, open_clip has not applied the tag's statistics.
        native |= {key: tag[key] for key in ("mean", "std") if key in tag}
        return cls(tower, native, size_px, config.stride_px)

    @classmethod
    def hub_source(cls, config: BackboneConfig) -> tuple[str, str, str]:
        open_clip = import_open_clip()
        known = open_clip.get_pretrained_cfg(config.name, config.tag)
        if not known:
            tags = open_clip.list_pretrained_tags_by_model(config.name)
            raise unknown_tag(config, tags, open_clip.list_models())
        repository, _, name = known.get("hf_hub", "").rpartition("/")
        file = name or "open_clip_pytorch_model.bin"
        return repository, file, known.get("url", "")

    @property
    def trunk(self) -> Any:
        return getattr(self.tower, "trunk", self.tower)

    @property
    def _is_own_transformer(self) -> bool:
        # By name, as compiled code asks too, where an import would break the graph
        return type(self.trunk).__module__ == "open_clip.transformer"

    @property
    def patch_px(self) -> int | None:
        return self.trunk.patch_size[0] if self._is_own_transformer else super().patch_px

    def resize(self, size_px: int, stride_px: int | None) -> None:
        if not self._is_own_transformer:
            super().resize(size_px, stride_px)
            return
        from timm.layers import resample_abs_pos_embed

        assert stride_px  # as it has patches
        tower = self.trunk
        side = grid_side(size_px, tower.patch_size[0], stride_px)
        old = tower.positional_embedding
        resampled = resample_abs_pos_embed(old.detach()[None], [side, side], tower.grid_size)[0]
        tower.positional_embedding = nn.Parameter(resampled, requires_grad=old.requires_grad)
        tower.conv1.stride = (stride_px, stride_px)
        tower.grid_size, tower.image_size = (side, side), (size_px, size_px)

    @property
    def prefix_tokens(self) -> int:
        return 1 if self._is_own_transformer else super().prefix_tokens

    def structure(self) -> VitStructure | None:
        if not self._is_own_transformer:
            return super().structure()
        trunk, kinds, blocks = self.trunk, import_open_clip().transformer, []
        known = kinds.ResidualAttentionBlock | kinds.CustomResidualAttentionBlock
        for module in trunk.transformer.resblocks:
            if not isinstance(module, known) or hasattr(module, "ln_1_kv"):
                return None
            attention = Branch(module.ln_1, module.attn, module.ls_1)
            blocks.append(Block(module, attention, Branch(module.ln_2, module.mlp, module.ls_2)))
        pooling = "token" if trunk.pool_type == "tok" else "avg"
        return VitStructure(
            width=trunk.class_embedding.shape[0],
            blocks=blocks,
            patches=trunk.conv1,
            entry=trunk.ln_pre,
            prefix=1,
            norm=trunk.ln_post,
            pooling="map" if trunk.attn_pool is not None else pooling,
            takes_tokens=trunk.transformer.batch_first,
            class_position_D=self.class_position_D,
        )

    def class_position_D(self) -> Tensor | None:
        own = self._is_own_transformer
        return self.trunk.positional_embedding[0] if own else super().class_position_D()

    def hub_content(
        self, config: BackboneConfig, image: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        open_clip, state = import_open_clip(), dict(self.tower.state_dict())
        known = open_clip.get_model_config(config.name)
        vision = {**known["vision_cfg"], "image_size": image["size_px"]}
        if "timm_model_name" in vision:
            vision["timm_model_pretrained"] = False
            if config.features == "pooled":
                vision["timm_proj"] = "none"
        model = {
            "embed_dim": self.dim,
            "quick_gelu": known.get("quick_gelu", config.kwargs.get("force_quick_gelu", False)),
            "vision_cfg": vision,
            "text_cfg": NO_TEXT,
        }
        if hasattr(self.tower, "proj") and self.tower.proj is None:
            state["proj"] = torch.eye(self.dim)  # open_clip always builds one
        preprocess = {
            "size": image["size_px"],
            "mean": image["mean"],
            "std": image["std"],
            "interpolation": "bicubic",
            "resize_mode": RESIZE_MODES[image["fit"]],
            "fill_color": 0 if image.get("pad_color") == "black" else 255,
        }
        clip = open_clip.CLIP(**copy.deepcopy(model)).state_dict()
        # Zeros, not random numbers: the file of a run is always the same
        texts = {key: torch.zeros_like(clip[key]) for key in clip if key[:7] != "visual."}
        images = {f"visual.{key}": value for key, value in state.items()}
        return {"model_cfg": model, "preprocess_cfg": preprocess}, texts | images

    @staticmethod
    def open_hub(folder: Path) -> Callable[[Tensor], Tensor]:
        model, _ = import_open_clip().create_model_from_pretrained(f"local-dir:{folder}")
        return model.eval().encode_image


def create_clip(config: BackboneConfig, weights: bool = True) -> Clip:
    """Create a whole open_clip model, image and text encoder, in fp32. Raises UserError."""
    found = find_weights(config) if weights else None
    with readable_errors(config):
        return _created(config, found.file if found else None)


def _created(config: BackboneConfig, weights: Path | None) -> Clip:
    open_clip = import_open_clip()
    logging.disable(logging.WARNING)  # about random weights: the file follows, or none is wanted
    try:
        clip = open_clip.create_model(
            config.name, pretrained_image=False, pretrained_text=False, **config.kwargs
        )
    finally:
        logging.disable(logging.NOTSET)
    if weights is None:
        return clip
    tag = open_clip.get_pretrained_cfg(config.name, config.tag or "")
    quick = open_clip.get_model_config(config.name).get("quick_gelu", False)
    quick = config.kwargs.get("force_quick_gelu", quick)
    if tag and tag.get("quick_gelu", False) != quick:
        print(
            f"model.backbone.kwargs: {config.tag} was trained with force_quick_gelu:"
            f" {str(not quick).lower()}, and not {str(quick).lower()}",
            file=sys.stderr,
        )
    read = open_clip.factory.load_state_dict

    def read_clean(*args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read weights without the prefixes of torch.compile and DDP, in any nesting."""
        state = read(*args, **kwargs)
        while prefix := next((p for p in WRAPPERS if all(k.startswith(p) for k in state)), None):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
        return state

    with patch.object(open_clip.factory, "load_state_dict", read_clean):
        open_clip.load_checkpoint(clip, str(weights))
    return clip
