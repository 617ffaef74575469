"""The configs of a study, rows that each change some keys of a run, and of the table of claims."""

from __future__ import annotations

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

    manifest: str | None = None  # null: the run's own
    root: str | None = None  # default: the manifest's folder; for the run's manifest, its root
    split: Literal["val", "test"] = "test"  # of the manifest
    index: Literal["merged", "separate"] = "merged"  # one index of all domains, or one each


class EvaluateConfig(Config):
    """Scores models of rows above in another way; trains nothing."""

    NEEDS = {"pool": "layers", "norm": "layers"}

    # A row above (same seed), `NAME, seed 2`, or any model for embed.py; or one for each domain
    models: str | Annotated[dict[str, str], Field(min_length=1)]
    join: Literal["oracle", "mean", "concat"] = "oracle"  # of several models, as in validate.py
    reduce: Literal["pca", "pca-whitened", "random", "first"] | None = None  # as in validate.py
    dim: PositiveInt = 64  # numbers that reduce keeps
    layers: Names | None = None  # of the backbone, in place of the embedding
    pool: Pool | None = None  # of the layers' patches or pixels; token: the class token
    norm: NormSide | None = None  # of a vision transformer's final norm; null: before
    size_px: Pixels | None = None  # of a model of a library; null: its own
    fit: Fit | None = None  # of a model of a library; null: its own

    def each(self) -> dict[str, str]:
        """Return the models by domain; of a single model, by an empty name."""
        return {"": self.models} if isinstance(self.models, str) else self.models


class RowConfig(Config):
    """Changes of a row to the study's run; other keys are keys of the run's config.

    A key with dots, `stages.0.lr.classes`, is set like `--set`; a mapping is merged like over a base.
    """

    model_config = ConfigDict(extra="allow")

    why: str | None = None  # a note for readers of the file
    seeds: Seeds | None = None  # null: the study's
    # Also train without the domains of each fold of the study; a number: for its first so many seeds
    unseen: bool | Annotated[int, Field(ge=1)] = False
    # An ensemble, like a file of configs/compose/ without name and out; excludes other keys. A member, as a
    # teacher, is a row above (same seed), `ROW, seed 2`, `ROW, seed +2` (this seed and 2), or any other model
    compose: dict[str, Any] | None = None
    # Another way to score models of rows above; excludes other keys
    evaluate: EvaluateConfig | None = None
    # Values of run keys; expands to one row per combination. The row's name holds each in braces:
    # `arcface, classes {lr.classes}` for `train.lr.classes: [.1, .3]`
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

    run: dict[str, Any]  # a run's config; its base is relative to this file
    seeds: Seeds = [0]  # a list, or a count n for 0 to n - 1
    baseline: str | None = None  # the row that the others are compared with
    test: ScoredOn = ScoredOn()
    # Research protocols, as for validate.py --protocol; their headline metrics become columns
    protocols: Annotated[list[str], AfterValidator(_each_once)] = []
    costs: bool = False  # columns for trained parameters and memory
    intervals: bool = False  # a column with 95 % intervals of test R@1, clustered by class
    # Fold name: domains that it leaves out
    unseen: dict[str, Annotated[Names, AfterValidator(_each_once)]] = {}
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
