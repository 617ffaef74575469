"""The config of an ensemble: what compose.py is asked for, and what the ensemble's folder states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    Tag,
    model_validator,
)
from pydantic import model_validator as checked

from guie.config.base import (
    BatchSize,
    Config,
    ConfigError,
    Name,
    Pixels,
    PositiveInt,
    Seed,
    Width,
    Workers,
)
from guie.config.model import Fit, LayersConfig, ModelConfig
from guie.config.training import RunConfig

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
            raise ConfigError("at", f"{self.at}: of a part of the image; set part below 1")
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
    """Raise ConfigError where images of some shape have no view that is of every domain."""
    limits = [view.aspect for view in views if view.aspect]
    edges = [1.0, *(edge for limit in limits for edge in (limit.above, limit.most) if edge)]
    for aspect in sorted({max(1.0, e) for edge in edges for e in (edge, edge * 1.001)}):
        if not any(view.domains is None and view.is_of(aspect) for view in views):
            raise ConfigError(
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
            raise ConfigError("weights", f"{len(self.weights)} for {len(self.members)} members")
        unknown = {d for view in self.views for d in view.domains or []} - set(self.domains)
        if unknown:
            raise ConfigError("domains", f"lacks {min(unknown)}, which views ask for")
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


PART = 0.875  # of the side, in five crops: 224 of 256 px
CORNERS = ("top_left", "top_right", "bottom_left", "bottom_right", "center")
NAMED_VIEWS: dict[str, list[dict[str, Any]]] = {
    "whole": [{}],
    "flip": [{}, {"flip": True}],
    "five_crops": [{"part": PART, "at": corner} for corner in CORNERS],
}


class SampleConfig(Config):
    """Images that something is fitted on, as many of each domain."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    split: Literal["train", "val"] = "train"  # the test split is not looked at
    domains: Annotated[list[str], Field(min_length=1)] | None = None  # null: all of the manifest
    leave_out: list[str] = []  # domains, of which the members saw nothing, say
    per_domain: PositiveInt = 9000  # images at most (UnED, 4.1)
    seed: Seed = 0  # of the choice of images


class ValConfig(Config):
    """Whose val split scores members and composition; a greedy soup goes by it."""

    manifest: str
    root: str | None = None  # default: the manifest's folder
    leave_out: list[str] = []  # domains that do not count


class SoupConfig(Config):
    """The mean of the members' weights; greedy: of those that do not lower the val score."""

    name: Literal["soup"]
    greedy: bool = False


class HeadsConfig(Config):
    """The mean of the weights of the members' heads, over the one tower that all have."""

    name: Literal["heads"]


class AverageConfig(Config):
    """The mean of the members' embeddings, each of unit length."""

    name: Literal["average"]


class SideBySideConfig(Config):
    """The members' embeddings in one row, each of unit length."""

    name: Literal["side_by_side"]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


JoinConfig = Annotated[
    SoupConfig | HeadsConfig | AverageConfig | SideBySideConfig, Field(discriminator="name")
]


class PcaConfig(Config):
    """Principal components: of images, or of texts, a line each, by the CLIP that the member is."""

    name: Literal["pca"]
    dim: Width = 64
    whiten: bool = False  # give all the same variance
    images: SampleConfig | None = None
    texts: str | None = None  # a file

    @model_validator(mode="after")
    def _fitted_on_one(self) -> PcaConfig:
        if (self.images is None) == (self.texts is None):
            raise ConfigError("images", "the images that it is fitted on, or texts: one of the two")
        return self


class RandomConfig(Config):
    """A Gaussian matrix: what fewer dimensions alone cost."""

    name: Literal["random"]
    dim: Width = 64
    seed: Seed = 0


class FirstConfig(Config):
    """The numbers that stand first; side by side, those of the first members (DREML's prefixes)."""

    name: Literal["first"]
    dim: Width = 64


ReduceConfig = Annotated[PcaConfig | RandomConfig | FirstConfig, Field(discriminator="name")]


class ModelMember(Config):
    """A model by the word that opens it: a folder of runs/, or LIBRARY:NAME:TAG."""

    model: str
    weights: Literal["model", "last"] = "model"  # of a run: its best by val score, its last
    checkpoints: bool = False  # of a soup: all checkpoints of the run instead
    weight: PositiveFloat = 1.0
    size_px: Pixels | None = None  # of its images, in place of its own
    stride_px: Pixels | None = None  # of its patches, in place of its own
    layers: LayersConfig | None = None  # of its tower, in place of its embedding


def _kind_of_compose(value: Any) -> str:
    composed = "members" in value if isinstance(value, dict) else hasattr(value, "members")
    return "ComposedMember" if composed else "ModelMember"


def _opened(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


def _written_out(views: Any) -> Any:
    """Views with what each name stands for in place of it."""
    if isinstance(views, str):
        views = [views]
    if not isinstance(views, list):
        return views
    unknown = [v for v in views if isinstance(v, str) and v not in NAMED_VIEWS]
    if unknown:
        raise ValueError(
            f"unknown view {unknown[0]!r}; allowed: {', '.join(NAMED_VIEWS)}, a mapping"
        )
    known = [NAMED_VIEWS[view] if isinstance(view, str) else [view] for view in views]
    return [view for some in known for view in some]


Views = Annotated[list[ViewConfig], Field(min_length=1), BeforeValidator(_written_out)]


class Composed(Config):
    """Members -> views -> join -> reduction."""

    members: list[Member] = Field(min_length=1)
    join: Annotated[JoinConfig | None, BeforeValidator(_named)] = None  # null: of one member
    # What all members see of an image, the mean of which counts; or names: whole, flip, five_crops
    views: Views = [ViewConfig()]
    classifier: SampleConfig | None = None  # images that tell domains apart, for views that ask
    reduce: ReduceConfig | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Composed:
        refuse_blind(self.views)
        asks = any(view.domains for view in self.views)
        if asks != (self.classifier is not None):
            said = "views ask for domains; state the images" if asks else "no view asks for domains"
            raise ConfigError("classifier", f"is what tells domains apart, and {said}")
        self._refuse_misjoined()
        return self

    def _refuse_misjoined(self) -> None:
        join = self.join.name if self.join else None
        one = len(self.members) == 1
        of_checkpoints = any(isinstance(m, ModelMember) and m.checkpoints for m in self.members)
        if join is None and not one:
            raise ConfigError("join", f"how {len(self.members)} members become one is not said")
        if of_checkpoints and join != "soup":
            raise ConfigError("join", "checkpoints are of a soup; write join: soup")
        if join and one and not of_checkpoints:
            raise ConfigError("members", f"{join} takes two at least")
        if join not in ("soup", "heads"):
            return
        for number, member in enumerate(self.members):
            if not isinstance(member, ModelMember):
                raise ConfigError(
                    f"members.{number}", f"{join} is of runs; compose this one first, by itself"
                )
            if member.weight != 1 or member.size_px or member.stride_px or member.layers:
                raise ConfigError(
                    f"members.{number}",
                    f"weight, size_px, stride_px and layers are not of {join}, a plain mean of weights",
                )

    def parts(self) -> Iterator[Composed]:
        """This and all compositions among its members, theirs too."""
        yield self
        for member in self.members:
            if isinstance(member, Composed):
                yield from member.parts()


class ComposedMember(Composed):
    """A composition among the members of another."""

    weight: PositiveFloat = 1.0


Member = Annotated[
    Annotated[ModelMember, Tag("ModelMember")] | Annotated[ComposedMember, Tag("ComposedMember")],
    Discriminator(_kind_of_compose),
    BeforeValidator(_opened),
]


class ComposeConfig(Composed):
    """A composition, and the folder that it is written to."""

    name: Name
    out: str = "runs"  # the folder of <name>/
    val: ValConfig | None = None  # null: nothing is scored
    workers: Workers = 2  # loader processes per process
    batch_size: BatchSize = 128  # images per process and step

    @model_validator(mode="after")
    def _greed_is_by_val(self) -> ComposeConfig:
        greedy = any(isinstance(p.join, SoupConfig) and p.join.greedy for p in self.parts())
        if greedy and self.val is None:
            raise ConfigError("val", "a greedy soup goes by a val split; give its manifest")
        return self

    @property
    def manifest(self) -> str:
        """That the composition was scored by or fitted on; `none` where there was none."""
        if self.val:
            return self.val.manifest
        for part in self.parts():
            images = part.reduce.images if isinstance(part.reduce, PcaConfig) else None
            if sample := images or part.classifier:
                return sample.manifest
        return "none"


for _model in (Composed, ComposedMember, ComposeConfig):
    _model.model_rebuild()
