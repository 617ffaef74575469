"""timm's models as backbones. Shapes: B images, F features, D features of a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from guie.config.model import BackboneConfig
from guie.models.backbones.base import (
    Backbone,
    Block,
    Branch,
    HubLayout,
    VitStructure,
    grid_side,
    unknown_tag,
)

# Without "pad": the README's code pads before the transform, as timm pads with the mean colour.
CROP_MODES = {"squash": "squash", "pad": "squash", "crop": "center"}


class Timm(Backbone):
    """A model of timm without its classifier."""

    library = "timm"
    top = frozenset({"norm", "fc_norm", "proj", "attn_pool", "head", "conv_head", "bn2"})
    hub = HubLayout(
        config="config.json",
        weights="model.safetensors",
        load="""\
backbone = timm.create_model({address}, pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(backbone))
""",
        encode="backbone(images)",
        pads=False,
    )

    @classmethod
    def build(cls, config: BackboneConfig, size_px: int | None, weights: Path | None) -> Timm:
        import timm

        # custom_load is for the authors' .npz; the hub's file has another format
        overlay = {"file": str(weights), "custom_load": False} if weights else None
        with _loading_all(config):
            tower: Any = timm.create_model(
                # The tag sets mean and std, even if the weights come from a file
                f"{config.name}.{config.tag}" if config.tag else config.name,
                pretrained=weights is not None,
                pretrained_cfg_overlay=overlay,
                num_classes=0,
                **config.kwargs,
            )
        # A weights file has no statistics: the default tag's are the best guess, and the config may
        # set others.
        known = tower.pretrained_cfg
        native = {"size": known["input_size"], "mean": known["mean"], "std": known["std"]}
        return cls(tower, native, size_px, config.stride_px)

    @classmethod
    def hub_source(cls, config: BackboneConfig) -> tuple[str, str, str]:
        import timm

        try:
            tag = f"{config.name}.{config.tag}"
            known = timm.get_pretrained_cfg(tag, allow_unregistered=False)
        except RuntimeError:
            known = None
        if known is None or not known.has_weights:
            names = timm.list_pretrained(f"{config.name}.*")
            tags = [name.partition(".")[2] for name in names]
            raise unknown_tag(config, tags, timm.list_models())
        url = known.url if isinstance(known.url, str) else ""
        return known.hf_hub_id or "", known.hf_hub_filename or "pytorch_model.bin", url

    @property
    def patch_px(self) -> int | None:
        from timm.layers import PatchEmbed

        patches = getattr(self.trunk, "patch_embed", None)
        if not isinstance(patches, PatchEmbed) or not hasattr(self.trunk, "set_input_size"):
            return None
        return patches.patch_size[0]

    def resize(self, size_px: int, stride_px: int | None) -> None:
        if self.patch_px:
            patches = self.trunk.patch_embed
            patches.__class__ = _strided_patch_embed()  # the same module, weights and names
            patches.proj.stride = (stride_px, stride_px)
            # Inputs always have the size that is set, so the patch size need not divide it.
            patches.strict_img_size = True
            patches.img_size = None  # otherwise timm keeps the grid if the size does not change
        if hasattr(self.tower, "set_input_size"):
            self.tower.set_input_size((size_px, size_px))

    @property
    def prefix_tokens(self) -> int:
        return getattr(self.trunk, "num_prefix_tokens", 0)

    @property
    def channels_last(self) -> bool:
        return getattr(self.trunk, "output_fmt", "NCHW") == "NHWC"

    def structure(self) -> VitStructure | None:
        from timm.models import eva, vision_transformer

        trunk: Any = self.trunk
        blocks = []
        if not isinstance(trunk, vision_transformer.VisionTransformer | eva.Eva):
            return None
        module: Any
        for module in trunk.blocks:
            if type(module) not in (vision_transformer.Block, eva.EvaBlock):
                return None
            attention = Branch(module.norm1, module.attn, module.drop_path1)
            blocks.append(
                Block(module, attention, Branch(module.norm2, module.mlp, module.drop_path2))
            )
        return VitStructure(
            width=trunk.embed_dim,
            blocks=blocks,
            patches=trunk.patch_embed,
            entry=trunk.norm_pre,
            prefix=trunk.num_prefix_tokens,
            norm=trunk.norm,
            pooling=trunk.global_pool if trunk.global_pool in ("token", "map") else "avg",
            takes_tokens=not isinstance(trunk, eva.Eva),  # its blocks rotate by position
            class_position_D=self.class_position_D,
        )

    def class_position_D(self) -> Tensor | None:
        """Return the class token's position embedding; None if it has none."""
        trunk = self.trunk
        no_class = trunk.cls_token is None or getattr(trunk, "no_embed_class", False)
        return None if trunk.pos_embed is None or no_class else trunk.pos_embed[0, 0]

    def hub_content(
        self, config: BackboneConfig, image: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        size_px, tower = image["size_px"], self.tower
        arguments: dict[str, Any] = {"num_classes": 0, **config.kwargs}
        if self.patch_px:
            arguments["img_size"] = size_px
        described = {
            "architecture": config.name,
            "num_classes": 0,
            "num_features": self.dim,
            "pretrained_cfg": {
                "num_classes": 0,
                "input_size": [3, size_px, size_px],
                "fixed_input_size": bool(self.patch_px),
                "interpolation": "bicubic",
                "crop_pct": 1.0,
                "crop_mode": CROP_MODES[image["fit"]],
                "mean": image["mean"],
                "std": image["std"],
                **{key: tower.pretrained_cfg[key] for key in ("first_conv", "classifier")},
            },
            "model_args": arguments,
        }
        return described, tower.state_dict()

    @staticmethod
    def open_hub(folder: Path) -> Callable[[Tensor], Tensor]:
        import timm

        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


@contextmanager
def _loading_all(config: BackboneConfig) -> Iterator[None]:
    """Raise RuntimeError for a weights file that lacks weights of the model.

    Without a classifier timm loads only what has the same name, and the rest stays random. `kwargs` may add
    layers that no file has: with them half of the weights must be there.
    """
    load = nn.Module.load_state_dict

    def load_all(module: nn.Module, state: Any, *args: Any, **kwargs: Any) -> Any:
        done = load(module, state, *args, **kwargs)
        names = {name for name, _ in module.named_parameters()}
        missing = [name for name in done.missing_keys if name in names]
        if len(missing) > (len(names) // 2 if config.kwargs else 0):
            raise RuntimeError(
                f"Error(s) in loading state_dict:\nMissing keys: {', '.join(missing)}"
            )
        return done

    with patch.object(nn.Module, "load_state_dict", load_all):
        yield


@cache
def _strided_patch_embed() -> type:
    """Return timm's patch embedding with its grid computed from the convolution's stride.

    timm's own assumes that the stride is the patch size, which holds only without overlap.
    """
    from timm.layers import PatchEmbed, to_2tuple

    class StridedPatchEmbed(PatchEmbed):
        def dynamic_feat_size(self, img_size: Sequence[int]) -> tuple[int, int]:
            """Convert (height, width) in pixels to (rows, columns) of patches."""
            rows, columns = (
                grid_side(side, patch, stride)
                for side, patch, stride in zip(
                    img_size, self.patch_size, self.proj.stride, strict=True
                )
            )
            return rows, columns

        def _init_img_size(
            self, img_size: int | tuple[int, int]
        ) -> tuple[tuple[int, int], tuple[int, int], int]:
            size = to_2tuple(img_size)
            rows, columns = self.dynamic_feat_size(size)
            return size, (rows, columns), rows * columns

    return StridedPatchEmbed
