"""The config of a training mix: which images, which classes of them, and what validates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from guie.config.base import Config, Domain, Name, PositiveInt, Seed
from guie.config.cleaning import CleaningConfig
from guie.config.faults import FaultAt
from guie.config.selection import SelectionConfig
from guie.config.sources import DatasetSource
from guie.config.zero_shot import DomainShares, PseudoLabelConfig


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
            raise FaultAt("clean", "needs the decoded images; set verify to true")
        return self

    @model_validator(mode="after")
    def _min_below_max(self) -> MixConfig:
        for number, source in enumerate(self.sources):
            least, most = self.limits(source)
            if most is not None and most < least:
                raise FaultAt(
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
