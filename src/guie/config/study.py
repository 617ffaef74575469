"""The configs of a study, rows that each change some keys of a run, and of the table of claims."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from guie.config.model import Fit, NormSide, Pool
from guie.config.types import Config, Fault, Names, Pixels, PositiveInt, Seed


def _counted(value: Any) -> Any:
    if type(value) is int and value > 1000:
        raise ValueError(f"a count is at most 1,000; write one seed as [{value}]")
    return list(range(value)) if type(value) is int else value


def _each_once(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("lists a value twice; drop one")
    return values


# A list, or a count n for 0 to n - 1
Seeds = Annotated[
    list[Seed], Field(min_length=1), BeforeValidator(_counted), AfterValidator(_each_once)
]


class ScoredOn(Config):
    """Test data for the best weights of each run."""

    NEEDS = {"root": "manifest"}

    manifest: str | None = None  # null: the run's
    root: str | None = None  # null: the manifest's folder, or the run's root
    split: Literal["val", "test"] = "test"  # of the manifest
    index: Literal["merged", "separate"] = "merged"  # one of all domains, or one each


class EvaluateConfig(Config):
    """Scores models of rows above in another way; trains nothing."""

    NEEDS = {"pool": "layers", "norm": "layers"}

    # a row above (same seed), `NAME, seed 2`, any model for embed.py, or one per domain
    models: str | Annotated[dict[str, str], Field(min_length=1)]
    join: Literal["oracle", "mean", "concat"] = "oracle"  # of several models, as validate.py does
    reduce: Literal["pca", "pca-whitened", "random", "first"] | None = None  # as validate.py does
    dim: PositiveInt = 64  # that reduce keeps
    layers: Names | None = None  # of the backbone, instead of the embedding
    pool: Pool | None = None  # of the layers
    norm: NormSide | None = None  # of a transformer's final norm
    size_px: Pixels | None = None  # of a library's model
    fit: Fit | None = None  # of a library's model

    def each(self) -> dict[str, str]:
        """Return the models by domain; of a single model, by an empty name."""
        return {"": self.models} if isinstance(self.models, str) else self.models


class RowConfig(Config):
    """Changes to the study's run; other keys are those of a run.

    A key with dots, `stages.0.lr.classes`, is set like `--set`; a mapping merges as over a base.
    """

    model_config = ConfigDict(extra="allow")

    why: str | None = None  # a note
    seeds: Seeds | None = None  # null: the study's
    # also train without each fold's domains; a number: for the first so many seeds
    unseen: bool | Annotated[int, Field(ge=1)] = False
    # an ensemble, as in configs/compose/, without name and out. A member or teacher is a row above (same
    # seed), `ROW, seed 2`, `ROW, seed +2` (this seed and 2), or any model
    compose: dict[str, Any] | None = None
    evaluate: EvaluateConfig | None = None  # other scoring of rows above
    # values of keys, one row each; the row's name holds them: `arcface, classes {lr.classes}` for
    # `train.lr.classes: [.1, .3]`
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    def faults(self) -> Iterator[Fault]:
        settings = [*(self.model_extra or {}), *(["grid"] if self.grid else [])]
        for key in ("compose", "evaluate"):
            if getattr(self, key) is not None and settings:
                yield key, f"trains no run, but {settings[0]} configures one; drop one of the two"
        if self.compose is not None and self.evaluate is not None:
            yield "evaluate", "excludes compose; give the ensemble a row, and name that here"
        if self.unseen and self.evaluate and (self.evaluate.reduce or "").startswith("pca"):
            yield "unseen", "the PCA of evaluate is fitted on all domains; use compose"


class StudyConfig(Config):
    """Rows x seeds, each a training and a test; `${NAME}` is not replaced when read."""

    run: dict[str, Any]  # a config; its base is relative to this file
    seeds: Seeds = [0]  # a list, or a count from 0
    baseline: str | None = None  # row to compare with
    test: ScoredOn = ScoredOn()
    # as for validate.py --protocol; headline metrics become columns
    protocols: Annotated[list[str], AfterValidator(_each_once)] = []
    costs: bool = False  # columns of trained parameters and memory
    intervals: bool = False  # 95 % intervals of test R@1, clustered by class
    unseen: dict[str, Annotated[Names, AfterValidator(_each_once)]] = {}  # fold: domains left out
    rows: dict[str, Annotated[RowConfig, BeforeValidator(lambda row: {} if row is None else row)]]

    def faults(self) -> Iterator[Fault]:
        if not self.rows:
            yield "rows", "is empty; add a row"
        for name, row in self.rows.items():
            if row.unseen and not self.unseen:
                yield "unseen", f"has no fold, and row {name!r} needs one; add one"
        left_out = [domain for domains in self.unseen.values() for domain in domains]
        for domain in sorted(d for d in left_out if left_out.count(d) > 1):
            yield "unseen", f"{domain} is left out by two folds; drop it from one"


# A row's name, or several: the one with the best R@1 on val counts
Choice = Annotated[Names, BeforeValidator(lambda row: [row] if isinstance(row, str) else row)]


class ClaimConfig(Config):
    """A comparison of two rows of a study, and which of them its source puts above."""

    NEEDS = {"headline": ("direction", "row", "against")}

    paper: str
    claim: str  # what the source claims; of a comparison of our own, what is compared
    source: str  # table, figure or section of the paper, or a file
    says: Annotated[str, Field(min_length=1)]  # a sentence in our words of what the source says
    # The row that the source puts above; none: no source puts one of the two above
    direction: Literal["row", "against", "none"]
    study: str  # a file of this folder, without .yaml
    row: Choice
    against: Choice
    score: str = "test R@1"  # or unseen R@1, or a protocol's headline, such as `puma: unified R@1`
    domain: str | None = None  # null: the mean over the domains
    headline: bool = False  # the paper's main claim, for README.md

    def faults(self) -> Iterator[Fault]:
        if self.domain is not None and not self.score.startswith("test "):
            yield "domain", f"needs a score on test, and score is {self.score}; drop domain"


class ClaimsConfig(Config):
    """Claims in the order of the table, grouped by paper."""

    claims: Annotated[list[ClaimConfig], Field(min_length=1)]
