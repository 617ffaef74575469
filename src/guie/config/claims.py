"""The config of the table of claims: what papers say, and the rows of studies that test it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from guie.config.base import Config, Fault, Names

# A row's name, or several: the one with the best R@1 on val counts
Choice = Annotated[
    Names, Field(min_length=1), BeforeValidator(lambda row: [row] if isinstance(row, str) else row)
]


class ClaimConfig(Config):
    """A claim of a paper: in a study, `row` scores higher than `against`."""

    paper: str
    claim: str
    source: str  # table, figure or section of the paper
    study: str  # a file of this folder, without .yaml
    row: Choice
    against: Choice
    # Or test mMP@5, unseen R@1, or a protocol's headline, for example `puma: unified R@1`
    score: str = "test R@1"
    domain: str | None = None  # null: the mean over the domains
    headline: bool = False  # the paper's main claim, for README.md

    def faults(self) -> Iterator[Fault]:
        if self.domain is not None and not self.score.startswith("test "):
            yield "domain", f"needs a score on test, and score is {self.score}; drop domain"


class ClaimsConfig(Config):
    """Claims in the order of the table, grouped by paper."""

    claims: Annotated[list[ClaimConfig], Field(min_length=1)]
