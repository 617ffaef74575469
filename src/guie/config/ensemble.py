"""The config of an ensemble: the input of compose.py, and the file in the ensemble's folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag

from guie.config.model import Fit, LayersConfig, ModelConfig, PadColor, Resize
from guie.config.training import RunConfig
from guie.config.types import (
    BatchSize,
    ByName,
    Config,
    Fault,
    Images,
    Name,
    Names,
    Output,
    Pixels,
    PositiveInt,
    Seed,
    Width,
    Workers,
)

COMPOSITION_FILE = "composition.yaml"  # in an ensemble's folder; a run has config.yaml

Weight = Annotated[float, Field(ge=1e-6, le=1e6)]  # beyond, float32 loses a member
Average = Literal["normalised", "raw"]
Corner = Literal["center", "top_left", "top_right", "bottom_left", "bottom_right"]


class AspectConfig(Config):
    """A range of aspect ratios: longer side over shorter, 1 for a square."""

    above: NonNegativeFloat = 0.0  # more than this
    max: PositiveFloat | None = None  # null: any


class ViewConfig(Config):
    """One view of an image at test time."""

    flip: bool = False  # mirror left to right
    # crop as a share of the side: resize to size_px / part, then crop size_px (0.875: 224 of 256 px)
    part: Annotated[float, Field(gt=0, le=1)] = 1.0
    at: Corner = "center"  # position of the crop
    fit: Fit | None = None  # null: the member's own
    pad_color: PadColor | None = None  # with fit: pad; null: the member's own
    resize: Resize = "bicubic"  # interpolation
    antialias: bool = True  # of the resize
    aspect: AspectConfig | None = None  # only for such aspect ratios
    domains: Names | None = None  # only for images that the classifier assigns to these

    def faults(self) -> Iterator[Fault]:
        if self.at != "center" and self.part == 1:
            yield "at", f"{self.at} needs a crop; set part below 1, or at to center"
        if self.pad_color and self.fit not in (None, "pad"):
            yield "pad_color", f"is for fit: pad; fit is {self.fit}"


class MemberConfig(Config):
    """One member model, as scored."""

    source: str  # the run or library model it comes from
    model: ModelConfig
    run: RunConfig | None = None  # the run that trained it


def _kind(value: Any) -> str:
    nested = "members" in value if isinstance(value, dict) else hasattr(value, "members")
    return "an ensemble" if nested else "a model"


# A member, which has members itself if it is an ensemble; only the faults of its kind are reported
One = TypeVar("One")
Many = TypeVar("Many")
Nested = Annotated[
    Annotated[One, Tag("a model")] | Annotated[Many, Tag("an ensemble")], Discriminator(_kind)
]


def _shared_faults(config: CompositionConfig | Composed, join: str | None) -> Iterator[Fault]:
    """Yield faults of views, which must serve every aspect ratio, and of raw embeddings, without a scale."""
    limits = [view.aspect or AspectConfig() for view in config.views if view.domains is None]
    edges = [1.0, *(edge for limit in limits for edge in (limit.above, limit.max) if edge)]
    for aspect in sorted({max(1.0, e) for edge in edges for e in (edge, edge * 1.001)}):
        if not any(limit.above < aspect <= (limit.max or math.inf) for limit in limits):
            none = f"none applies to all images of aspect ratio {aspect:.4g} to 1"
            yield "views", f"{none}; add a view without domains for them"
    if config.average == "raw" and join == "side_by_side":
        yield "average", "raw needs a mean; set join: average, or average: normalised"
    for number, member in enumerate(config.members if config.average == "raw" else []):
        if isinstance(member, CompositionConfig | Composed):
            yield f"members.{number}", "an ensemble has unit length; average: raw needs models"


class CompositionConfig(Config):
    """Members, which may be ensembles themselves, and how their embeddings become one."""

    members: list[Nested[MemberConfig, CompositionConfig]] = Field(min_length=1)
    join: Literal["side_by_side", "average"] = "side_by_side"
    weights: list[PositiveFloat] | None = None  # of the members; null: equal
    average: Average = "normalised"  # of views, and of members with join: average
    views: list[ViewConfig] = Field([ViewConfig()], min_length=1)
    domains: list[str] = []  # classes of the domain classifier, if views name domains
    reduced_dim: Width | None = None  # output of a final linear map

    def faults(self) -> Iterator[Fault]:
        yield from _shared_faults(self, self.join if len(self.members) > 1 else None)
        if self.weights and len(self.weights) != len(self.members):
            yield "weights", f"{len(self.weights)} for {len(self.members)} members"
        unknown = {d for view in self.views for d in view.domains or []} - set(self.domains)
        if unknown:
            yield "domains", f"lacks {min(unknown)}, named in views; add it"


def leaves(member: MemberConfig | CompositionConfig) -> list[MemberConfig]:
    """Return all models of an ensemble in order, including those of nested ensembles."""
    if isinstance(member, MemberConfig):
        return [member]
    return [leaf for nested in member.members for leaf in leaves(nested)]


NAMED_VIEWS: dict[str, list[dict[str, Any]]] = {
    "whole": [{}],
    "flip": [{}, {"flip": True}],
    # 224 of 256 px
    "five_crops": [{"part": 0.875, "at": corner} for corner in (*get_args(Corner)[1:], "center")],
}


class SampleConfig(Images):
    """Images to fit on, equally many per domain."""

    split: Literal["train", "val"] = "train"  # the test split is never used
    domains: Names | None = None  # null: all
    leave_out: list[str] = []  # domains, such as those unseen by the members
    per_domain: PositiveInt = 9000  # images at most (UnED, 4.1)
    seed: Seed = 0  # of the choice of images


class ValConfig(Images):
    """The val split that scores members and ensemble."""

    leave_out: list[str] = []  # domains to exclude


class SoupConfig(Config):
    """The mean of the members' weights."""

    name: Literal["soup"]
    greedy: bool = False  # keep members that do not lower the val score


class HeadsConfig(Config):
    """The mean of the head weights of members that share one backbone."""

    name: Literal["heads"]


class EmbeddingsConfig(Config):
    """The mean or the concatenation of the members' embeddings, each of unit length."""

    name: Literal["average", "side_by_side"]


JoinConfig = Annotated[
    SoupConfig | HeadsConfig | EmbeddingsConfig, Field(discriminator="name"), ByName
]


class PcaConfig(Config):
    """PCA, fitted on images or texts."""

    name: Literal["pca"]
    dim: Width = 64  # dimensions to keep
    whiten: bool = False  # scale components to equal variance
    images: SampleConfig | None = None  # to fit on
    texts: str | None = None  # a file, one text a line; needs a CLIP

    def faults(self) -> Iterator[Fault]:
        if (self.images is None) == (self.texts is None):
            yield "images", "give images to fit on, or texts: exactly one of the two"


class RandomConfig(Config):
    """A Gaussian random projection, as a baseline."""

    name: Literal["random"]
    dim: Width = 64  # dimensions to keep
    seed: Seed = 0  # of the matrix


class FirstConfig(Config):
    """The first dimensions; of concatenated members, the first members (DREML's prefixes)."""

    name: Literal["first"]
    dim: Width = 64  # dimensions to keep


ReduceConfig = Annotated[PcaConfig | RandomConfig | FirstConfig, Field(discriminator="name")]


class ModelMember(Config):
    """A member by its name: a folder of runs/, or LIBRARY:NAME:TAG."""

    model: str  # as for embed.py --model
    weights: Literal["model", "last"] = "model"  # of a run: best by val, or last
    checkpoints: bool = False  # for a soup: all of the run
    weight: Weight = 1.0  # in the mean or concatenation
    size_px: Pixels | None = None  # image size; null: its own
    stride_px: Pixels | None = None  # patch stride; null: its own
    layers: LayersConfig | None = None  # backbone layers, instead of its embedding


def _written_out(views: Any) -> Any:
    """Replace each named view by its definition."""
    views = [views] if isinstance(views, str) else views
    if not isinstance(views, list):
        return views
    for name in views:
        if isinstance(name, str) and name not in NAMED_VIEWS:
            raise ValueError(f"unknown view {name!r}; allowed: {', '.join(NAMED_VIEWS)}, a mapping")
    return [one for v in views for one in (NAMED_VIEWS[v] if isinstance(v, str) else [v])]


class Composed(Config):
    """Members -> views -> join -> reduction."""

    members: list[Member] = Field(min_length=1)  # runs, library models, or ensembles
    join: JoinConfig | None = None  # null: a single member
    # averaged by every member; or names: whole, flip, five_crops
    views: Annotated[list[ViewConfig], Field(min_length=1), BeforeValidator(_written_out)] = [
        ViewConfig()
    ]
    average: Average = "normalised"  # raw: average the heads' outputs, then normalise (5th place)
    classifier: SampleConfig | None = None  # images to fit the domain classifier on
    reduce: ReduceConfig | None = None  # a linear map to fewer dimensions

    def faults(self) -> Iterator[Fault]:
        join, one = self.join.name if self.join else None, len(self.members) == 1
        yield from _shared_faults(self, join)
        asks = any(view.domains for view in self.views)
        if asks != (self.classifier is not None):
            remedy = "a view needs it; give images" if asks else "no view needs it; set null"
            yield "classifier", f"assigns images to the domains of views, and {remedy}"
        of_checkpoints = any(isinstance(m, ModelMember) and m.checkpoints for m in self.members)
        if join is None and not one:
            yield "join", f"missing, and needed for {len(self.members)} members"
        if of_checkpoints and join != "soup":
            yield "join", "checkpoints: true is for soups; set join: soup"
        if join and one and not of_checkpoints:
            yield "members", f"{join} needs at least two"
        for number, member in enumerate(self.members if join in ("soup", "heads") else []):
            if not isinstance(member, ModelMember):
                yield f"members.{number}", f"{join} takes runs; compose this one separately first"
            elif member.weight != 1 or member.size_px or member.stride_px or member.layers:
                keys = "weight, size_px, stride_px and layers"
                yield f"members.{number}", f"{keys} do not apply to {join}, a plain mean of weights"

    def parts(self) -> Iterator[Composed]:
        """Yield this ensemble and all nested ones."""
        yield self
        for member in self.members:
            if isinstance(member, Composed):
                yield from member.parts()


class ComposedMember(Composed):
    """An ensemble that is a member of another."""

    weight: Weight = 1.0  # in the mean or concatenation


Member = Annotated[
    Nested[ModelMember, ComposedMember],
    BeforeValidator(lambda value: {"model": value} if isinstance(value, str) else value),
]


class ComposeConfig(Composed):
    """An ensemble and its output folder."""

    name: Name  # of the ensemble's folder
    out: Output = "runs"  # the folder of <name>/
    val: ValConfig | None = None  # null: nothing is scored
    # loaders per process; null: its share of the cores, at most 16
    workers: Workers | None = None
    batch_size: BatchSize = 128  # images per process

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        greedy = any(isinstance(p.join, SoupConfig) and p.join.greedy for p in self.parts())
        if greedy and self.val is None:
            yield "val", "a greedy soup needs a val split; give its manifest"

    @property
    def manifest(self) -> str:
        """The manifest that the ensemble is scored or fitted on; `none` if there is none."""
        fitted = [p.classifier for p in self.parts()]
        fitted += [p.reduce.images for p in self.parts() if isinstance(p.reduce, PcaConfig)]
        return next((images.manifest for images in (self.val, *fitted) if images), "none")


for _model in (CompositionConfig, Composed, ComposedMember, ComposeConfig):
    _model.model_rebuild()
