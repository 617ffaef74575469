"""What a composition is made of, as its folder states it: members, views, how they are joined."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag
from pydantic import model_validator as checked

from guie.config.base import Config, Width
from guie.config.faults import FaultAt
from guie.config.model import Fit, ModelConfig
from guie.config.run import RunConfig

COMPOSITION_FILE = "composition.yaml"  # in a folder, where a run has config.yaml
FILES = (COMPOSITION_FILE, "ensemble.yaml")  # the second: written until 2026-11, and still read

Resize = Literal["bicubic", "bilinear"]
Corner = Literal["center", "top_left", "top_right", "bottom_left", "bottom_right"]


class AspectConfig(Config):
    """Shapes of images: the longer side over the shorter, which of a square is 1."""

    above: NonNegativeFloat = 0.0
    most: PositiveFloat | None = None  # null: any


class ViewConfig(Config):
    """One way to look at an image; each member embeds it, and the mean of all ways counts."""

    flip: bool = False  # mirrored, left for right
    # The side that is seen of the square that the image is resized to: resized to size_px / part, of
    # which size_px are cut out. 0.875 at the center is 224 of 256 px
    part: Annotated[float, Field(gt=0, le=1)] = 1.0
    at: Corner = "center"  # where that part lies
    fit: Fit | None = None  # null: the member's own
    resize: Resize = "bicubic"
    antialias: bool = True
    aspect: AspectConfig | None = None  # of images of such a shape alone
    domains: Annotated[list[str], Field(min_length=1)] | None = (
        None  # of images told to be of these
    )

    @checked(mode="after")
    def _is_somewhere(self) -> ViewConfig:
        if self.at != "center" and self.part == 1:
            raise FaultAt("at", f"{self.at}: of a part of the image; set part below 1")
        return self

    def is_of(self, aspect: float) -> bool:
        """Whether an image of this shape is looked at so, be its domain right."""
        limits = self.aspect or AspectConfig()
        return limits.above < aspect and (limits.most is None or aspect <= limits.most)


class MemberConfig(Config):
    """One of the models, as it is scored."""

    source: str  # the run or library's model that it was made of
    model: ModelConfig
    run: RunConfig | None = None  # that trained it


def refuse_blind(views: list[ViewConfig]) -> None:
    """Raise FaultAt where images of some shape have no view that is of every domain."""
    limits = [view.aspect for view in views if view.aspect]
    edges = [1.0, *(edge for limit in limits for edge in (limit.above, limit.most) if edge)]
    for aspect in sorted({max(1.0, e) for edge in edges for e in (edge, edge * 1.001)}):
        if not any(view.domains is None and view.is_of(aspect) for view in views):
            raise FaultAt(
                "views",
                f"none is of every image whose sides are as {aspect:.4g} to 1; add a view without"
                " domains for them",
            )


def _kind(value: Any) -> str:
    composed = "members" in value if isinstance(value, dict) else hasattr(value, "members")
    return "CompositionConfig" if composed else "MemberConfig"


class CompositionConfig(Config):
    """Members, compositions again among them, and how one embedding comes of theirs."""

    members: list[Part] = Field(min_length=1)
    join: Literal["side_by_side", "average"] = "side_by_side"
    weights: list[PositiveFloat] | None = None  # of the members; null: all alike
    views: list[ViewConfig] = Field([ViewConfig()], min_length=1)
    domains: list[str] = []  # that the classifier tells apart, where views ask for domains
    reduced_dim: Width | None = None  # a linear map to so many dimensions follows

    @checked(mode="after")
    def _fits_together(self) -> CompositionConfig:
        refuse_blind(self.views)
        if self.weights and len(self.weights) != len(self.members):
            raise FaultAt("weights", f"{len(self.weights)} for {len(self.members)} members")
        unknown = {d for view in self.views for d in view.domains or []} - set(self.domains)
        if unknown:
            raise FaultAt("domains", f"lacks {min(unknown)}, which views ask for")
        return self


Part = Annotated[
    Annotated[MemberConfig, Tag("MemberConfig")]
    | Annotated[CompositionConfig, Tag("CompositionConfig")],
    Discriminator(_kind),
]
CompositionConfig.model_rebuild()


def leaves(part: MemberConfig | CompositionConfig) -> list[MemberConfig]:
    """The models of a composition, in order, those of its compositions among them."""
    if isinstance(part, MemberConfig):
        return [part]
    return [leaf for member in part.members for leaf in leaves(member)]
