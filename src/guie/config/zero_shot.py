"""The config of zero-shot labels by a CLIP, and of a mix's shares of domains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from guie.config.base import Config, PositiveInt
from guie.config.faults import FaultAt

Share = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[list[str], Field(min_length=1)]


class ClipConfig(Config):
    """Which CLIP reads the names, and the sentences that they are put into."""

    model: str = Field(pattern=r"^open_clip:[^:]+:.+$")  # open_clip:NAME:TAG, or a weights file
    size_px: PositiveInt | None = None  # null: what the model was pretrained with
    fit: Literal["squash", "pad", "crop"] = "squash"
    templates: list[str] = Field(["a photo of {}."], min_length=1)  # {} is where the name goes
    cache: str = "input/.cache/text"  # embeddings of texts, by model and sentence

    @model_validator(mode="after")
    def _templates_have_one_place(self) -> ClipConfig:
        for template in self.templates:
            if template.count("{}") != 1:
                raise FaultAt("templates", f"{template!r} needs one {{}}, where the name goes")
        return self


class LabelledSample(Config):
    """Labelled images on which confidences are calibrated; their labels are keys of `classes`."""

    manifest: str
    root: str | None = None  # null: the manifest's folder
    # Keep as many images as are right in this share, with 95 % certainty; null: min_confidence.
    precision: Annotated[float, Field(gt=0, lt=1)] | None = None


class PseudoLabelConfig(Config):
    """Zero-shot labels for the train images of some domains."""

    clip: ClipConfig
    domains: list[str] = Field(min_length=1)  # whose train images are looked at
    classes: dict[str, Names] = Field(min_length=2)  # domain/class: its names, in plain words
    # label: the images take CLIP's label, and go where it is unsure. check: they keep their own,
    # and go where CLIP is sure of another.
    mode: Literal["label", "check"] = "label"
    min_confidence: Share = 0.5  # probability of the first class
    min_margin: Share = 0.0  # by which it exceeds the second's
    max_images: PositiveInt | None = None  # of each class the most confident ones; mode label
    calibration: LabelledSample | None = None  # null: CLIP's own temperature

    @model_validator(mode="after")
    def _fits_together(self) -> PseudoLabelConfig:
        for label in self.classes:
            domain, slash, name = label.partition("/")
            if not (domain and slash and name) or "|" in label:
                raise FaultAt("classes", f"{label!r} is not domain/class")
        if self.mode == "check" and self.max_images is not None:
            raise FaultAt("max_images", "is for mode label; mode check keeps what it does not drop")
        return self


class DomainNames(Config):
    """Domains told by a CLIP instead of by the manifest."""

    clip: ClipConfig
    names: dict[str, Names] = Field(min_length=2)  # domain: what its images show, in plain words


class DomainShares(Config):
    """The distribution of domains that the train images are thinned to."""

    shares: dict[str, PositiveFloat] = Field(min_length=1)  # relative; domains left out are dropped
    told_by: DomainNames | None = None  # null: the manifest's column

    @model_validator(mode="after")
    def _names_are_shared(self) -> DomainShares:
        unnamed = sorted(set(self.shares) - set(self.told_by.names)) if self.told_by else []
        if unnamed:
            raise FaultAt("told_by.names", f"lacks {', '.join(unnamed)}, which shares has")
        return self
