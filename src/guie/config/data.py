"""The config of a training mix: sources, cleaning, pseudo-labels, selection, validation split."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from guie.config.model import HeadConfig
from guie.config.types import (
    Config,
    Domain,
    Fault,
    Images,
    Name,
    Names,
    Output,
    PositiveInt,
    Probability,
    Seed,
    of_form,
)

DatasetName = Literal[
    Literal["cub", "cars196", "sop", "inshop", "inat2018", "met", "gldv2", "rp2k", "food2k"],
    Literal["uned", "nabirds", "dogs", "flowers", "aircraft", "vehicleid", "imagenet", "gpr1200"],
    Literal["roxford5k", "rparis6k", "ilias", "products10k", "deepfashion_c2s", "shopee"],
    Literal["aliproducts", "hm", "fashion200k", "food101", "storefronts146", "m4d35k"],
]


class _ClassLimits(Config):
    min_images: PositiveInt | None = None  # classes with fewer are dropped; null: the mix's
    max_images: PositiveInt | None = None  # larger classes are capped; null: the mix's


class DatasetSource(_ClassLimits):
    """A data set as downloaded."""

    kind: DatasetName
    path: str | None = None  # null: search input/, on Kaggle /kaggle/input
    domain: Domain | None = None  # null: the data set's own
    splits: list[Literal["train", "val", "test"]] | None = Field(None, min_length=1)  # null: all
    as_train: bool = False  # train on all splits
    partial: bool = False  # accept an incomplete download, with a warning
    # per test class at most, drawn by the mix's seed (UnED: 10)
    test_max_images: PositiveInt | None = None
    # drop a test image whose 64-bit hash is within so many bits of another's
    test_near_duplicate_bits: Annotated[int, Field(ge=0, le=32)] | None = None
    max_classes: PositiveInt | None = None  # train classes at most
    choose_classes: Literal["largest", "random"] = "largest"  # random: by the mix's seed
    options: dict[str, str | int | list[str]] = {}  # see input/README.md


Similarity = Annotated[float, Field(ge=-1, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class NearConfig(Config):
    """Near-duplicates: hashes within a few bits, similar features, nearly equal pixels.

    Thresholds are fitted per domain to the false positive rates, shares of a domain's images.
    """

    action: Literal["drop", "report"] = "drop"  # for copies within a class
    distance_max: Annotated[int, Field(ge=0, le=20)] = 12  # bits of 64 that may differ
    # cosine above which pixels are compared; null: fitted, at twice the distance of 99 % of altered copies
    similarity_min: Similarity | None = None
    false_sure: Share = 0.0002  # of pairs across labels or splits, where a class loses the image
    false_copies: Share = 0.002  # of pairs within a class, where another image remains
    mirrored: bool = False  # mirror images are copies; compares more pairs


class OutlierConfig(Config):
    """Images nearer to another class, by a robust z-score per domain."""

    action: Literal["drop", "report"] = "report"  # what happens to them
    z_max: PositiveFloat = 3.5  # by Iglewicz and Hoaglin (1993)
    share_max: Annotated[float, Field(gt=0, lt=0.5)] = 0.1  # of a class, at most


class OversampleConfig(Config):
    """weight = clip((target / images of the class) ** power, 1, limit)."""

    target: PositiveInt = 20  # images; classes with as many have weight 1
    power: Annotated[float, Field(gt=0, le=1)] = 1.0  # below 1: oversample less
    limit: Annotated[float, Field(ge=1)] = 10.0  # weight at most


class CleaningConfig(Config):
    """Cleaning by content; without this block only class filters apply.

    Only certain copies are dropped or stop the run. A person decides on likely ones, in `<out>.verdicts.csv`.
    """

    NEEDS = {"outliers": "model", "suggest_merges": "model"}

    # of the features: a run, open_clip:NAME:TAG or timm:NAME:TAG; null: 16 x 16 thumbnails
    model: str | None = None
    size_px: PositiveInt | None = None  # of a library's model; null: its own
    exact: Literal["drop", "report"] = "drop"  # of equal images, the first by path stays
    near: NearConfig | None = NearConfig()
    # one picture, two labels
    conflicts: Literal["drop_all", "keep_first", "report", "stop"] = "drop_all"
    # train images that copy val or test images; declared: report, keep
    leaks: Literal["stop", "drop_train", "declared"] = "stop"
    labels_max: PositiveInt = 3  # an image under more is a placeholder and dropped
    share_max: Share = 0.05  # of a domain's train images that a rule may drop, else it stops
    outliers: OutlierConfig | None = None
    # how max_images chooses; diverse needs model
    cap: Literal["random", "first", "diverse"] = "random"
    oversample: OversampleConfig | None = None
    merge: dict[str, str] = {}  # class: the class that absorbs it
    suggest_merges: Similarity | None = None  # report classes whose centroids have this cosine

    def faults(self) -> Iterator[Fault]:
        if self.cap == "diverse" and self.model is None:
            yield "cap", "diverse needs features; set model to a run or a library model"


Template = Annotated[str, of_form(r"[^{}]*\{\}[^{}]*", "a sentence with one {} for the name")]
ClassLabel = Annotated[str, of_form("[^/|]+/[^|]+", "of the form domain/class")]


class ClipConfig(Config):
    """The CLIP model for class names, and its prompt templates."""

    model: str = Field(pattern=r"^open_clip:[^:]+:.+$")  # open_clip:NAME:TAG, or a file for the tag
    size_px: PositiveInt | None = None  # null: the pretraining size
    fit: Literal["squash", "pad", "crop"] = "squash"  # how an image becomes a square
    templates: list[Template] = Field(["a photo of {}."], min_length=1)  # {}: the name
    cache: Output = "input/.cache/text"  # text embeddings


class LabelledSample(Images):
    """Labelled images to calibrate confidences on; labels are keys of `classes`."""

    precision: Share | None = None  # of kept images, with 95 % confidence; null: min_confidence


class PseudoLabelConfig(Config):
    """Zero-shot labels for train images."""

    NEEDS = {"max_images": ("mode", "label")}

    clip: ClipConfig
    domains: Names  # whose train images are labelled or checked
    classes: dict[ClassLabel, Names] = Field(min_length=2)  # domain/class: its names in plain words
    # label: use CLIP's label, drop unsure images; check: drop images of which CLIP is sure otherwise
    mode: Literal["label", "check"] = "label"
    min_confidence: Probability = 0.5  # probability of the first class
    min_margin: Probability = 0.0  # its lead over the second class
    max_images: PositiveInt | None = None  # per class, the most confident; mode label
    calibration: LabelledSample | None = None  # null: CLIP's temperature


class DomainNames(Config):
    """Domains predicted by CLIP."""

    clip: ClipConfig
    names: dict[str, Names] = Field(min_length=2)  # domain: its images in plain words


class DomainShares(Config):
    """Proportions of domains, to which train images are subsampled."""

    shares: dict[str, PositiveFloat] = Field(min_length=1)  # relative; domains left out are dropped
    domain_source: DomainNames | None = None  # null: the manifest's column

    def faults(self) -> Iterator[Fault]:
        unnamed = set(self.shares) - set(self.domain_source.names) if self.domain_source else set()
        if unnamed:
            yield "domain_source.names", f"lacks {', '.join(sorted(unnamed))}, which shares names"


class ProxyEvaluatorConfig(Config):
    """A head trained on frozen features in seconds."""

    model: str  # as for embed.py --model
    size_px: PositiveInt | None = None  # null: the pretraining size
    fit: Literal["squash", "pad", "crop"] = "squash"  # how an image becomes a square
    head: HeadConfig = HeadConfig(norm="bn")
    scale: PositiveFloat = 30.0  # of ArcFace
    margin_rad: NonNegativeFloat = 0.3  # of ArcFace
    epochs: PositiveFloat = 10.0  # over the mix
    min_steps: PositiveInt = 200  # for small mixes
    batch_size: Annotated[int, Field(ge=2)] = 256  # images per step
    lr: PositiveFloat = 1e-2  # peak learning rate
    weight_decay: NonNegativeFloat = 1e-4  # of the head


class SelectionRule(Config):
    """What counts as a gain, and when the search stops."""

    # add or remove a source; the first decides the start
    directions: list[Literal["forward", "backward"]] = Field(["forward"], min_length=1)
    seeds: Annotated[int, Field(ge=2)] = 3  # of a candidate and of the current mix
    # new ones, on which the best candidate must confirm its gain
    confirm_seeds: Annotated[int, Field(ge=0)] = 6
    min_standard_errors: NonNegativeFloat = 2.0  # of a gain
    max_evaluations: PositiveInt | None = None  # trainings, with logged ones
    max_minutes: PositiveFloat | None = None  # of training, with logged ones

    def faults(self) -> Iterator[Fault]:
        if self.confirm_seeds == 1:
            yield "confirm_seeds", "1 seed has no standard error; use 0, or at least 2"


class SelectionConfig(Config):
    """Greedy selection over the sources of a mix, perhaps times caps."""

    by: Literal["domain", "dataset"] = "domain"  # manifest column that names a source
    caps: list[PositiveInt | None] = Field([None], min_length=1)  # images per class; null: all
    metric: Literal["r_at_1", "mmp_at_5"] = "r_at_1"  # on val, one index, mean over domains
    rule: SelectionRule = SelectionRule()
    # proxy: a head on frozen features; full: trainings
    evaluator: Literal["proxy", "full"] = "proxy"
    proxy: ProxyEvaluatorConfig | None = None
    full: str | None = None  # config of a train.py run

    def faults(self) -> Iterator[Fault]:
        if getattr(self, self.evaluator) is None:
            yield self.evaluator, f"missing, and evaluator {self.evaluator} needs it"


class ToySource(_ClassLimits):
    """Synthetic images, generated in `path` if absent."""

    kind: Literal["toy"]
    path: str  # folder or file to read
    # 56: two classes of two images per split and domain
    images: Annotated[int, Field(ge=56, lt=2**31)] = 6000
    seed: Seed = 0  # of the drawing
    # pretrain: pictures with captions, for a small CLIP
    part: Literal["benchmark", "pretrain"] = "benchmark"


class FolderSource(_ClassLimits):
    """A folder of class folders, `<path>/<class>/<image>`, nested or not.

    Or an archive of one (zip, tar, tar.gz, tar.bz2, tar.xz), unpacked once beside it.
    """

    kind: Literal["folder"]
    path: str  # folder or file to read
    domain: Domain  # of all its images
    # of all; of test, each image is query and index
    split: Literal["train", "val", "test"] = "train"
    encoding: str | None = None  # of names in a zip without one: gbk, cp1251, cp437

    def faults(self) -> Iterator[Fault]:
        try:
            "".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            yield "encoding", "unknown to Python; gbk, shift_jis, cp1251, cp866 and cp437 are some"


class ManifestSource(_ClassLimits):
    """An existing manifest."""

    kind: Literal["manifest"]
    path: str  # folder or file to read
    root: str | None = None  # null: the manifest's folder
    domains: Names | None = None  # null: every domain


Source = Annotated[
    ToySource | FolderSource | ManifestSource | DatasetSource, Field(discriminator="kind")
]


class MixConfig(Config):
    """A training mix. Class filters count images per source, in the train split only."""

    NEEDS = {"clean": "verify"}

    name: Name  # in reports
    out: Output = Field(pattern=r"\.(csv|parquet)$")  # the manifest, .csv or .parquet
    root: str | None = None  # base of image_path; null: the folder of `out`
    seed: Seed = 0  # of every random choice
    sources: list[Source] = Field(min_length=1)  # read in this order
    min_images: PositiveInt = 1  # classes with fewer are dropped
    max_images: PositiveInt | None = None  # larger classes keep a random subset
    # of a domain's classes, before any rule, unless it has a test split or `pseudo_labels`
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    # of a domain's train classes, unless it has a val split
    val_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    verify: bool = True  # open and decode every image
    benchmark: bool = False  # for scoring only: may have no train images
    pseudo_labels: PseudoLabelConfig | None = None
    clean: CleaningConfig | None = None
    shares: DomainShares | None = None
    selection: SelectionConfig | None = None
    features: Output = "input/.features"  # cache of features

    def faults(self) -> Iterator[Fault]:
        for number, source in enumerate(self.sources):
            least, most = self.limits(source)
            if most is not None and most < least:
                yield f"sources.{number}", f"max_images {most} is below min_images {least}"

    def limits(self, source: _ClassLimits) -> tuple[int, int | None]:
        """Return (min_images, max_images) of a source."""
        return source.min_images or self.min_images, source.max_images or self.max_images

    @property
    def image_root(self) -> Path:
        """The base folder of image_path; of a URL, the path that stands for it in the program."""
        root = re.sub("^(s3|gs|az)://", r"/\1:/", self.root or "")
        return Path(root) if root else Path(self.out).parent

    @property
    def summary_path(self) -> Path:
        """`input/mix.csv` -> `input/mix.summary.json`."""
        return self.beside(".summary.json")

    def beside(self, suffix: str) -> Path:
        """Replace the suffix of `out`: `input/mix.csv` -> `input/mix<suffix>`."""
        return Path(self.out).with_suffix(suffix)
