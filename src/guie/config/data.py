"""The config of a training mix: sources, cleaning, pseudo-labels, greedy selection of data sets,
validation split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from guie.config.base import Config, ConfigError, Domain, Name, PositiveInt, Seed
from guie.config.model import HeadConfig

DatasetName = Literal[
    Literal["cub", "cars196", "sop", "inshop", "inat2018", "met", "gldv2"],
    Literal["rp2k", "food2k", "uned"],
    Literal["nabirds", "dogs", "flowers", "aircraft", "vehicleid", "imagenet"],
    Literal["gpr1200", "roxford5k", "rparis6k", "ilias"],
    Literal["products10k", "deepfashion_c2s", "shopee", "aliproducts"],
    Literal["hm", "fashion200k", "food101"],
    Literal["storefronts146", "m4d35k"],
]


class DatasetSource(Config):
    """A dataset as downloaded, read by its adapter in `guie.data.datasets`."""

    kind: DatasetName
    path: str | None = None  # null: looked for in input/, and on Kaggle in /kaggle/input
    domain: Domain | None = None  # null: the dataset's own
    splits: list[Literal["train", "val", "test"]] | None = Field(None, min_length=1)  # null: all
    as_train: bool = False  # every image, of whatever split, trains
    partial: bool = False  # take an incomplete download, with a warning, instead of refusing it
    # Of each test class, at most so many images, chosen by the mix's seed (UnED: 10) ...
    test_max_images: PositiveInt | None = None
    # ... of which no two differ in so few of the 64 bits of their perceptual hash, or fewer.
    test_near_duplicate_bits: Annotated[int, Field(ge=0, le=32)] | None = None
    max_classes: PositiveInt | None = None  # of the train classes, keep so many ...
    choose_classes: Literal["largest", "random"] = "largest"  # ... of them, by the mix's seed
    options: dict[str, str | int | list[str]] = {}  # the dataset's own, see input/README.md
    min_images: PositiveInt | None = None
    max_images: PositiveInt | None = None


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


Fraction = Annotated[float, Field(ge=0, le=1)]
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
                raise ConfigError("templates", f"{template!r} needs one {{}}, where the name goes")
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
    min_confidence: Fraction = 0.5  # probability of the first class
    min_margin: Fraction = 0.0  # by which it exceeds the second's
    max_images: PositiveInt | None = None  # of each class the most confident ones; mode label
    calibration: LabelledSample | None = None  # null: CLIP's own temperature

    @model_validator(mode="after")
    def _fits_together(self) -> PseudoLabelConfig:
        for label in self.classes:
            domain, slash, name = label.partition("/")
            if not (domain and slash and name) or "|" in label:
                raise ConfigError("classes", f"{label!r} is not domain/class")
        if self.mode == "check" and self.max_images is not None:
            raise ConfigError(
                "max_images", "is for mode label; mode check keeps what it does not drop"
            )
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
            raise ConfigError("told_by.names", f"lacks {', '.join(unnamed)}, which shares has")
        return self


Repeats = Annotated[int, Field(ge=2)]  # one value has no spread


class ProxyEvaluatorConfig(Config):
    """How the evaluator `proxy` judges a mix: a head on frozen features, trained in seconds."""

    model: str  # as embed.py takes it: LIBRARY:NAME:TAG or a run folder
    size_px: PositiveInt | None = None  # null: what the model was pretrained with
    fit: Literal["squash", "pad", "crop"] = "squash"
    head: HeadConfig = HeadConfig(norm="bn")
    scale: PositiveFloat = 30.0
    margin_rad: NonNegativeFloat = 0.3
    epochs: PositiveFloat = 10.0
    min_steps: PositiveInt = 200  # a small mix must not lose for want of training
    batch_size: Annotated[int, Field(ge=2)] = 256
    lr: PositiveFloat = 1e-2
    weight_decay: NonNegativeFloat = 1e-4

    @model_validator(mode="after")
    def _head_takes_features_alone(self) -> ProxyEvaluatorConfig:
        if self.head.image_shape or self.head.reduced_dim:
            raise ConfigError(
                "head", "image_shape and reduced_dim are of whole models, not of a proxy"
            )
        return self


class SelectionRule(Config):
    """When a step of the search counts as a gain, and when the search ends."""

    directions: list[Literal["forward", "backward"]] = Field(["forward"], min_length=1)
    seeds: Repeats = 3  # on which every candidate is compared with the mix so far
    # Fresh ones, on which the best candidate must show its gain again; 0: `seeds` decide.
    confirm_seeds: Annotated[int, Field(ge=0)] = 6
    min_standard_errors: NonNegativeFloat = 2.0  # that a gain must exceed
    max_evaluations: PositiveInt | None = None  # trainings, those read from the log included
    max_minutes: PositiveFloat | None = None  # of training, likewise

    @model_validator(mode="after")
    def _confirmed_with_spread(self) -> SelectionRule:
        if self.confirm_seeds == 1:
            raise ConfigError("confirm_seeds", "1 seed has no spread; use 0, or at least 2")
        return self


class SelectionConfig(Config):
    """Greedy selection over the sources of a mix, or over sources times caps."""

    by: Literal["domain", "dataset"] = "domain"  # the manifest's column that names a source
    caps: list[PositiveInt | None] = Field([None], min_length=1)  # images a class; null: all
    metric: Literal["r_at_1", "mmp_at_5"] = "r_at_1"  # on val, merged index, mean over domains
    rule: SelectionRule = SelectionRule()
    evaluator: Literal["proxy", "full"] = "proxy"
    proxy: ProxyEvaluatorConfig | None = None
    full: str | None = None  # config of a run of train.py

    @model_validator(mode="after")
    def _evaluator_is_described(self) -> SelectionConfig:
        if getattr(self, self.evaluator) is None:
            raise ConfigError(self.evaluator, f"missing, but evaluator is {self.evaluator}")
        return self


class SourceConfig(Config):
    """What every source may say for itself; null takes the mix's own value."""

    path: str
    min_images: PositiveInt | None = None
    max_images: PositiveInt | None = None


class ToySource(SourceConfig):
    """Synthetic images, drawn into `path` where they are not there yet."""

    kind: Literal["toy"]
    images: PositiveInt = 6000
    seed: Seed = 0
    part: Literal["benchmark", "pretrain"] = "benchmark"


class FolderSource(SourceConfig):
    """A folder of class folders: `<path>/<class>/<image>`; class folders may be nested.

    `path` may be an archive of such a folder (zip, tar, tar.gz, tar.bz2, tar.xz): `x/products.zip`
    is inspected, unpacked once to `x/products/`, and read from there.
    """

    kind: Literal["folder"]
    domain: Domain
    split: Literal["train", "val", "test"] = "train"


class ManifestSource(SourceConfig):
    """A manifest that somebody else wrote."""

    kind: Literal["manifest"]
    root: str | None = None  # null: the manifest's folder
    domains: list[str] | None = Field(None, min_length=1)  # null: every domain


Source = Annotated[
    ToySource | FolderSource | ManifestSource | DatasetSource, Field(discriminator="kind")
]


class MixConfig(Config):
    """A training mix. Filters count the images of a class within its source, in train only."""

    name: Name
    out: str = Field(pattern=r"\.(csv|parquet)$")
    root: str | None = None  # what image_path is relative to; null: the folder of `out`
    seed: Seed = 0
    sources: list[Source] = Field(min_length=1)
    min_images: PositiveInt = 1  # classes with fewer are dropped
    max_images: PositiveInt | None = None  # of larger classes a random choice is kept
    # Share of a domain's train classes that validate; a domain with a val split keeps its own.
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    verify: bool = True  # open and decode every image
    benchmark: bool = False  # it is only scored: train images need not be there
    pseudo_labels: PseudoLabelConfig | None = None  # by a CLIP, for some domains
    clean: CleaningConfig | None = None  # copies, conflicts, leaks, outliers
    shares: DomainShares | None = None  # the distribution of domains that is wished for
    selection: SelectionConfig | None = None  # which sources earn their place
    features: str = "input/.features"  # cache of image features, by model

    @model_validator(mode="after")
    def _cleaning_decodes(self) -> MixConfig:
        if self.clean and not self.verify:
            raise ConfigError("clean", "needs the decoded images; set verify to true")
        return self

    @model_validator(mode="after")
    def _min_below_max(self) -> MixConfig:
        for number, source in enumerate(self.sources):
            least, most = self.limits(source)
            if most is not None and most < least:
                raise ConfigError(
                    f"sources.{number}",
                    f"max_images {most} is below min_images {least}; no class could satisfy both",
                )
        return self

    def limits(self, source: SourceConfig | DatasetSource) -> tuple[int, int | None]:
        """(min_images, max_images) that hold for a source."""
        return source.min_images or self.min_images, source.max_images or self.max_images

    @property
    def image_root(self) -> Path:
        """The folder that the mix's image_path is relative to."""
        return Path(self.root) if self.root else Path(self.out).parent

    @property
    def summary_path(self) -> Path:
        """`input/mix.csv` -> `input/mix.summary.json`."""
        return self.beside(".summary.json")

    def beside(self, suffix: str) -> Path:
        """`input/mix.csv` -> `input/mix<suffix>`."""
        return Path(self.out).with_suffix(suffix)
