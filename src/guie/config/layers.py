"""Which of a tower's own layers give the features."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from guie.config.base import Config


class LayersConfig(Config):
    """Layers by their names in the tower, pooled over places, side by side; in place of its output.

    `blocks.8` of timm's ViT, `transformer.resblocks.8` of open_clip's, `layer3` of a ResNet, `stages.2`
    of a ConvNeXt, `features.42` of VGG16-BN.
    """

    of: Annotated[list[str], Field(min_length=1)]
    # avg, max and gem are over places alone; token is the class token, of a transformer that has one
    pool: Literal["avg", "max", "gem", "token"] = "avg"
    power: PositiveFloat = 3.0  # of gem: the mean of x ** power, to the power of 1 / power
