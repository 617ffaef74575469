"""The summary of a mix, as JSON and for the terminal: counts by rule and domain, and notes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.files import replacing, write_json
from guie.config.data import MixConfig
from guie.data.manifest import queries_without_positive
from guie.data.manifest.companions import Companions, joined, within, write_companions
from guie.data.manifest.reading import memberships
from guie.report.pages import class_sizes, left_after, write_report
from guie.rows.checks import differing

Counts = dict[str, dict[str, Any]]
SPLITS = ("train", "val", "test")
FILES_SHOWN = 10
METRICS = {"r_at_1": "R@1 on val", "mmp_at_5": "mMP@5 on val"}
COUNTED = ["image_path", "label", "domain", "split", "dataset"]


def losses(stages: Mapping[str, pd.DataFrame]) -> dict[str, Counts]:
    """Return {domain: {rule: {"classes": n, "images": m}}}, the losses between successive tables.

    Each table is the result of a rule; the first is the input of the rules. A class is lost when
    its last image is. A class that is in both train and test counts twice.
    """
    sizes = {}
    for rule, table in stages.items():
        classes = memberships(table).drop_duplicates(["domain", "split", "label"])
        counted = {"classes": classes, "images": table}
        sizes[rule] = pd.DataFrame(
            {k: rows.groupby("domain").size() for k, rows in counted.items()}
        )
    counts_of: dict[str, Counts] = {}
    for before, rule in pairwise(stages):
        lost = sizes[before].sub(sizes[rule], fill_value=0).astype(int)
        for domain, row in lost[lost["images"] > 0].iterrows():
            counts_of.setdefault(str(domain), {})[rule] = {k: int(v) for k, v in row.items()}
    return counts_of


def by_domain(
    table: pd.DataFrame, lost: Mapping[str, Counts], alone: pd.Series
) -> dict[str, Counts]:
    """Return {domain: {split: {"classes": n, "images": m}, "dropped": {rule: counts}}}, emptied domains too.

    `lost` are the `losses`; `alone` tells whether a query, by its index in the table, has no positive.
    """
    classes = memberships(table).groupby(["domain", "split"])["label"].nunique()
    counts_of: dict[str, Counts] = {}
    for (domain, split), rows in table.groupby(["domain", "split"]):
        counts = {"classes": int(classes[domain, split]), "images": len(rows)}
        if split != "train":
            queries = rows.index[rows["role"] != "index"]
            counts["queries"] = len(queries)
            counts["index"] = int((rows["role"] != "query").sum())
            counts["queries_without_positive"] = int(alone[queries].sum())
        counts_of.setdefault(domain, {})[split] = counts
    names = sorted({*counts_of, *lost})
    return {name: {**counts_of.get(name, {}), "dropped": lost.get(name, {})} for name in names}


def notes(
    domains: Mapping[str, Counts], dropped_files: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    """Yield notes for users who train or score on the mix."""
    if held_out := sum(entry["split"] != "train" for entry in dropped_files):
        yield (
            f"{held_out:,} unusable files were in val or test: scores are not comparable with those"
            " on the whole set"
        )
    for domain, counts in domains.items():
        if "train" not in counts:
            yield f"{domain}: no train images"
        elif "val" not in counts:
            yield f"{domain}: no val split"
        for split in ("val", "test"):
            if split in counts and (without := counts[split]["queries_without_positive"]):
                yield (
                    f"{domain}: {without:,} of {counts[split]['queries']:,} {split} queries have no"
                    " positive; metrics exclude them"
                )


def render(summary: Mapping[str, Any]) -> str:
    """Format the summary for the terminal: a line for each domain, then files, then notes."""
    domains = summary["domains"]
    rows = [["classes / images", *SPLITS, "dropped"]]
    for domain, counts in domains.items():
        dropped = "; ".join(f"{rule} {_cell([lost])}" for rule, lost in counts["dropped"].items())
        cells = [_cell([counts[split]] if split in counts else []) for split in SPLITS]
        rows.append([domain, *cells, dropped or "-"])
    totals = [[one[split] for one in domains.values() if split in one] for split in SPLITS]
    rows.append(["all", *map(_cell, totals), ""])
    # The first and last column are left-aligned, numbers right-aligned
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells, last in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:-1], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *padded, last]).rstrip())
    files = summary["dropped_files"]
    lines += [f"dropped {entry['file']}: {entry['reason']}" for entry in files[:FILES_SHOWN]]
    if len(files) > FILES_SHOWN:
        lines.append(f"... and {len(files) - FILES_SHOWN} more dropped files, in the summary")
    for source in summary["sources"]:
        lines += [
            f"skipped in {source['path']}: {why}: {n}" for why, n in source["skipped"].items()
        ]
    return "\n".join([*lines, *(f"note: {note}" for note in summary["notes"])])


def _cell(counts: Sequence[Mapping[str, int]]) -> str:
    if not counts:
        return "-"
    classes, images = (sum(one[key] for one in counts) for key in ("classes", "images"))
    return f"{classes:,} / {images:,}"


class CurationReport:
    """Record what the rules do to a mix's rows, and write reports next to the mix."""

    def __init__(self, config: MixConfig, command: str):
        self.config, self.command = config, command
        self.stages: dict[str, pd.DataFrame] = {}
        self.sources: list[dict[str, Any]] = []  # kind, path, and number of skipped files by reason
        self.dropped_files: list[dict[str, str]] = []
        self.companions: list[Companions] = []  # of each source, with the mix's image paths
        self.findings: pd.DataFrame | None = None  # of cleaning
        self.notes: list[str] = []  # of cleaning
        self.merges: pd.DataFrame | None = None  # suggested
        self.gains: pd.DataFrame | None = None  # gains of the selection steps
        self.page = config.beside(".html")
        self.details: dict[str, Any] = {}  # by rule: more entries of the summary

    def after(self, rule: str, table: pd.DataFrame) -> None:
        """Record the rows after a rule. A rule that dropped nothing is in the funnel too."""
        names = pd.Series([Path(source["path"]).name for source in self.sources], dtype=str)
        dataset = table["source"].map(names)
        if "dataset" in table:
            dataset = table["dataset"].where(table["dataset"] != "", dataset)
        self.stages[rule] = table.assign(dataset=dataset)[COUNTED]

    def summary(self, table: pd.DataFrame) -> dict[str, Any]:
        """Return the summary. It depends only on sources and config, so it contains no times."""
        held_out = (table[table["split"] == split] for split in ("val", "test"))
        alone = pd.concat([queries_without_positive(rows) for rows in held_out])
        domains = by_domain(table, losses(self.stages), alone)
        return {
            "name": self.config.name,
            "command": self.command,
            "rows": len(table),
            "domains": domains,
            "notes": [*notes(domains, self.dropped_files), *self.notes, *self._notes_on(table)],
            **self.details,
            "dropped_files": self.dropped_files,
            "sources": self.sources,
            "config": self.config.model_dump(),
        }

    def _notes_on(self, table: pd.DataFrame) -> Iterator[str]:
        """Yield notes on the decoders' differences, and on companion rows lost with dropped images."""
        images = table.drop_duplicates("image_path").set_index("image_path")
        if "differs" in images and (line := differing(images["differs"], len(images))):
            yield line
        read = joined(self.companions)
        left = within(read, table)
        for kind, rows in read.items():
            if lost := len(rows) - len(left.get(kind, ())):
                yield (
                    f"{kind}: {lost:,} of {len(rows):,} rows belong to dropped images; scores are not"
                    " comparable with those on the whole set"
                )

    def write(self, table: pd.DataFrame) -> dict[str, Any]:
        """Write summary, report and lists next to the mix; return the summary."""
        report = self.summary(table)
        write_json(self.config.summary_path, report)
        self.write_list("findings", self.findings)
        self.write_list("merges", self.merges)
        write_companions(Path(self.config.out), within(joined(self.companions), table))
        self.write_page(table, report)
        return report

    def write_page(self, table: pd.DataFrame, summary: dict[str, Any] | None = None) -> None:
        """Write the page with the results so far."""
        selection = self.config.selection
        write_report(
            self.page,
            summary or self.summary(table),
            table,
            self.config.image_root,
            left=left_after(self.stages),
            before=class_sizes(self.stages["read"]),
            findings=self.findings,
            merges=self.merges,
            gains=self.gains,
            metric=METRICS[selection.metric if selection else "r_at_1"],
        )

    def write_list(self, name: str, rows: pd.DataFrame | None) -> None:
        """Write rows as CSV next to the mix, if there are any: `<out>.<name>.csv`."""
        if rows is not None:
            with replacing(self.config.beside(f".{name}.csv")) as temporary:
                rows.to_csv(temporary, index=False)
