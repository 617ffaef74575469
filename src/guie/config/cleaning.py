"""What is cleaned out of a mix, and how boldly. Only training images are ever dropped."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from guie.config.base import Config, PositiveInt

Similarity = Annotated[float, Field(ge=-1, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class NearConfig(Config):
    """Near-duplicates: hashes within a few bits, features alike, and pixels that hardly differ.

    How much they may differ each domain says for itself, so that false finds are as rare as is
    wished for here: see `guie.curation.copies.evidence`.
    """

    action: Literal["drop", "report"] = "drop"  # of copies within a class
    distance_max: Annotated[int, Field(ge=0, le=20)] = 12  # bits of 64 that may differ
    # Cosine that two copies must have for pixels to be compared; null: twice as far from 1 as 99 in
    # 100 altered copies of the mix's own images are under the model, so that each has its own.
    similarity_min: Similarity | None = None
    # Share of a domain's images that are expected to be found falsely, at the most,
    false_sure: Share = 0.0002  # across labels or splits, where a find costs a class its image
    false_copies: Share = 0.002  # within a class, where another image of it stays
    mirrored: bool = False  # a mirror image is a copy too; more pairs are compared by pixels


class OutlierConfig(Config):
    """Images nearer to another class than their own: robust z of the difference, per domain."""

    action: Literal["drop", "report"] = "report"
    z_max: PositiveFloat = 3.5  # as Iglewicz and Hoaglin (1993) advise
    share_max: Annotated[float, Field(gt=0, lt=0.5)] = 0.1  # of a class, at the most


class OversampleConfig(Config):
    """weight = clip((target / images of the class) ** power, 1, limit)."""

    target: PositiveInt = 20  # images a class; classes that have them keep weight 1
    power: Annotated[float, Field(gt=0, le=1)] = 1.0
    limit: Annotated[float, Field(ge=1)] = 10.0


class CleaningConfig(Config):
    """The `clean` block of a mix; without it nothing but the class filters is applied.

    Copies are found by decoded content. A conflict is one picture under two labels, a leak a
    training image that is a copy of a val or test image. Only what is a copy beyond doubt is
    dropped, or stopped for; what is near is reported, and `<out>.verdicts.csv` takes a person's word.
    """

    # What features come from: runs/demo, open_clip:NAME:TAG, timm:NAME:TAG.
    model: str | None = None  # null: 16 x 16 thumbnails, enough before pixels decide
    size_px: PositiveInt | None = None  # of a library's model; null: its own
    exact: Literal["drop", "report"] = "drop"  # of equal pictures the first by path is kept
    near: NearConfig | None = NearConfig()
    conflicts: Literal["drop_all", "keep_first", "report", "stop"] = "drop_all"
    leaks: Literal["stop", "drop_train", "declared"] = "stop"
    labels_max: PositiveInt = 3  # a picture under more is a placeholder: no label keeps it
    share_max: Share = 0.05  # of a domain's training images that a rule may take before it stops
    outliers: OutlierConfig | None = None
    cap: Literal["random", "first", "diverse"] = "random"  # which images max_images keeps
    oversample: OversampleConfig | None = None
    merge: dict[str, str] = {}  # class -> the class it becomes part of
    suggest_merges: Similarity | None = None  # least cosine of centroids that is worth a line

    @model_validator(mode="after")
    def _features_have_a_model(self) -> CleaningConfig:
        wanted = {
            "outliers": self.outliers is not None,
            "cap: diverse": self.cap == "diverse",
            "suggest_merges": self.suggest_merges is not None,
        }
        if self.model is None and any(wanted.values()):
            named = ", ".join(name for name, is_set in wanted.items() if is_set)
            raise ValueError(f"{named}: needs features; set model to a run or a library's model")
        return self
