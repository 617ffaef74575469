"""The account of a mix: what each rule left, and what somebody should look at."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.files import replacing, write_json
from guie.config import MixConfig
from guie.config.mix import Source
from guie.curation.steps import summary
from guie.data.manifest import Companions, queries_without_positive
from guie.data.manifest.companions import joined, within, write_companions
from guie.report.pages import class_sizes, left_after, write_report

METRICS = {"r_at_1": "R@1 on val", "mmp_at_5": "mMP@5 on val"}
COUNTED = ["image_path", "label", "domain", "split", "dataset"]


class Account:
    """Notes down what happens to a mix's rows, and writes it beside the mix."""

    def __init__(self, config: MixConfig, command: str):
        self.config, self.command = config, command
        self.stages: dict[str, pd.DataFrame] = {}
        self.sources: list[dict[str, Any]] = []
        self.dropped_files: list[dict[str, str]] = []
        self.companions: list[Companions] = []  # of each source, of images as the mix names them
        self.findings: pd.DataFrame | None = None  # of cleaning
        self.limits: pd.DataFrame | None = None  # up to which differences pictures are copies
        self.notes: list[str] = []  # what cleaning wants to be known
        self.merges: pd.DataFrame | None = None  # suggested
        self.earned: pd.DataFrame | None = None  # by each source, in a selection
        self.page = config.beside(".html")
        self.details: dict[str, Any] = {}  # of rules, by name: more for the summary

    def add_source(
        self, source: Source, skipped: Counter[str], dropped: list[dict[str, str]]
    ) -> None:
        """Note a source, the files in it that were passed over, and those that are unusable."""
        entry = {"kind": source.kind, "path": source.path, "skipped": dict(sorted(skipped.items()))}
        self.sources.append(entry)
        self.dropped_files += dropped

    def after(self, rule: str, table: pd.DataFrame) -> None:
        """Note what a rule has left. A rule that took nothing stands in the funnel all the same."""
        names = pd.Series([Path(source["path"]).name for source in self.sources], dtype=str)
        dataset = table["source"].map(names)
        if "dataset" in table:
            dataset = table["dataset"].where(table["dataset"] != "", dataset)
        self.stages[rule] = table.assign(dataset=dataset)[COUNTED]

    def summary(self, table: pd.DataFrame) -> dict[str, Any]:
        """The summary: a function of the sources and the config, so without times."""
        held_out = (table[table["split"] == split] for split in ("val", "test"))
        alone = pd.concat([queries_without_positive(rows) for rows in held_out])
        domains = summary.by_domain(table, [summary.losses(self.stages)], alone)
        return {
            "name": self.config.name,
            "command": self.command,
            "rows": len(table),
            "domains": domains,
            "notes": summary.notes(domains, self.dropped_files) + self.notes + self._unsaid(table),
            **self.details,
            **self._evidence(),
            "dropped_files": self.dropped_files,
            "sources": self.sources,
            "config": self.config.model_dump(),
        }

    def _unsaid(self, table: pd.DataFrame) -> list[str]:
        """What the companions lose with the images that the rules have dropped."""
        read = joined(self.companions)
        left = within(read, table)
        lost = {kind: len(rows) - len(left.get(kind, ())) for kind, rows in read.items()}
        return [
            f"{kind}: {lost[kind]:,} of {len(rows):,} rows are of images that were dropped; scores do"
            " not compare with those on the whole set"
            for kind, rows in read.items()
            if lost[kind]
        ]

    def _evidence(self) -> dict[str, Any]:
        if self.limits is None:
            return {}
        return {"copies": json.loads(self.limits.round(4).to_json(orient="records"))}

    def write(self, table: pd.DataFrame) -> dict[str, Any]:
        """Write summary, report and lists beside the mix; returns the summary."""
        report = self.summary(table)
        write_json(self.config.summary_path, report)
        for what in ("findings", "merges"):
            self.write_list(what)
        write_companions(Path(self.config.out), within(joined(self.companions), table))
        self.write_report(table)
        return report

    def write_report(self, table: pd.DataFrame) -> None:
        """Write the page with what is known so far."""
        selection = self.config.selection
        write_report(
            self.page,
            self.summary(table),
            table,
            self.config.image_root,
            left=left_after(self.stages),
            before=class_sizes(self.stages["read"]),
            findings=self.findings,
            merges=self.merges,
            earned=self.earned,
            metric=METRICS[selection.metric if selection else "r_at_1"],
        )

    def write_list(self, what: str) -> None:
        """Write `findings` or `merges` as CSV beside the mix, if there are any to write."""
        rows: pd.DataFrame | None = getattr(self, what)
        if rows is not None:
            with replacing(self.config.beside(f".{what}.csv")) as temporary:
                rows.to_csv(temporary, index=False)
