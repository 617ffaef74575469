"""The report of a mix: one HTML file with its pictures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from tqdm import tqdm

from guie.base.seeds import seeded_draws
from guie.data.manifest.columns import memberships
from guie.report.figures import calibration, selection_curve, size_histogram, stages
from guie.report.figures.mix import Histogram, described, histograms
from guie.report.figures.style import domain_colors
from guie.report.pages.html import Pictures, inline_svg, write_page


def charts(
    left: Sequence[Stage],
    labels: Mapping[str, Any] | None,
    earned: pd.DataFrame | None,
    metric: str,
) -> dict[str, Markup]:
    """Those that there is something to draw for, by the section that they stand in.

    Args:
        left: the funnel of all sources together.
        labels: what the summary says of labels by a CLIP.
        earned: of `guie.curation.selection.earned.earned`.
        metric: what the selection raised.
    """
    found = {}
    if left:
        figure = stages(pd.DataFrame(left, columns=Stage._fields))
        found["funnel"] = inline_svg(figure, "funnel-chart", "Images left after each rule")
    if labels and labels["calibration"]:
        about = "Precision over coverage; the numbers stand in the table"
        found["labels"] = inline_svg(calibration(labels["calibration"]), "labels-chart", about)
    if earned is not None and len(earned):
        about = f"{metric} after each step; the numbers stand in the table"
        found["selection"] = inline_svg(selection_curve(earned, metric), "selection-chart", about)
    return found


def size_charts(panels: Sequence[Histogram], colors: Mapping[str, str]) -> list[Markup]:
    """A small chart of the class sizes of each domain."""
    return [
        inline_svg(
            size_histogram(panel, colors[panel.domain]),
            f"sizes-chart-{place}",
            f"Classes by size, {panel.domain}; the numbers stand in the table",
        )
        for place, panel in enumerate(panels)
    ]


KEYS = ["dataset", "domain"]
COLUMNS = [*KEYS, "rule", "classes", "images"]
NAMES = {
    "read": "found",
    "unusable": "readable",
    "pseudo_labels": "labelled",
    "leaks": "without leaks",
    "conflicts": "without conflicts",
    "duplicates": "without duplicates",
    "outliers": "without outliers",
    "min_images": "classes large enough",
    "max_images": "capped",
    "shares": "domains matched",
    "leaks into val": "compared with val",
    "selection": "selected",
}


class Stage(NamedTuple):
    """What is left after a rule."""

    name: str
    classes: int
    images: int
    lost: int  # images that this rule took
    share: float  # of the images found, or of those that later rules moved here


class Funnel(NamedTuple):
    """The stages of one domain of one dataset, or of them all."""

    dataset: str
    domain: str
    stages: list[Stage]


def left_after(stages: Mapping[str, pd.DataFrame], dataset: str = "") -> pd.DataFrame:
    """What is left after each rule, by dataset and domain; a class trained and tested counts twice.

    Args:
        stages: tables, each the result of the rule that names it; the first is what was found.
        dataset: names rows that the tables' own `dataset` column does not.

    Returns:
        Columns dataset, domain, rule, classes, images. Accounts of several sources, or of rules
        that follow on others, are concatenated; a later line on the same rule replaces an earlier.
    """
    counts = [_counts(table, dataset) for table in stages.values()]
    everything = pd.concat(counts).index.unique()
    found = [
        count.reindex(everything, fill_value=0).reset_index().assign(rule=rule)
        for rule, count in zip(stages, counts, strict=True)
    ]
    return pd.concat(found, ignore_index=True)[COLUMNS]


def funnels(left: pd.DataFrame) -> list[Funnel]:
    """A funnel for each dataset and domain, sorted; where a rule was not applied, nothing is lost."""
    rules = list(dict.fromkeys(left["rule"]))
    table = left.drop_duplicates([*KEYS, "rule"], keep="last").pivot(
        index=KEYS, columns="rule", values=["classes", "images"]
    )
    found = []
    for (dataset, domain), row in table.iterrows():
        by_rule = row.unstack(level=0).reindex(rules).ffill().fillna(0).astype(int)
        found.append(Funnel(dataset, domain, _stages(by_rule)))
    return found


def whole(parts: Sequence[Funnel]) -> list[Stage]:
    """The funnel of all parts together. A class that stands in two datasets counts twice."""
    counts = [pd.DataFrame(part.stages, columns=Stage._fields).set_index("name") for part in parts]
    if not counts:
        return []
    return _stages(sum(count[["classes", "images"]] for count in counts))


def _counts(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    own = table["dataset"].fillna(dataset) if "dataset" in table else dataset
    table = table.assign(dataset=own)
    members = memberships(table)
    members["dataset"] = table["dataset"].reindex(members["row"]).to_numpy()
    classes = members.drop_duplicates([*KEYS, "split", "label"]).groupby(KEYS).size()
    return pd.DataFrame({"classes": classes, "images": table.groupby(KEYS).size()})


def _stages(by_rule: pd.DataFrame) -> list[Stage]:
    """Stages from classes and images, a row a rule."""
    images = [int(n) for n in by_rule["images"]]
    lost = [0, *(before - after for before, after in pairwise(images))]
    most = max([1, *images])
    return [
        Stage(NAMES.get(rule, rule), int(classes), left, gone, left / most)
        for rule, classes, left, gone in zip(
            by_rule.index, by_rule["classes"], images, lost, strict=True
        )
    ]


def class_sizes(table: pd.DataFrame) -> pd.Series:
    """Images of each class in train and val together, by domain and label.

    Rules touch train only, and classes that move to val are not lost: so test is left out, and
    nothing else.
    """
    members = memberships(table[table["split"] != "test"])
    return members.groupby(["domain", "label"]).size()


CLASSES, IMAGES = 6, 4  # of a domain, of a class
MAX_PICTURES = 720  # many domains show fewer classes each
SPLITS = ("train", "val", "test")


class SampleClass(NamedTuple):
    label: str
    images: int  # of the class in the split
    paths: list[str]


class Gallery(NamedTuple):
    """Some classes of a domain, of the first split that it has."""

    domain: str
    split: str
    total: int  # classes
    classes: list[SampleClass]


def galleries(table: pd.DataFrame, seed: int) -> tuple[list[Gallery], int]:
    """A gallery a domain, drawn at random by `seed`, and how many domains there is no room for."""
    domains = sorted(table["domain"].unique())
    shown = domains[: MAX_PICTURES // IMAGES]
    classes = max(1, min(CLASSES, MAX_PICTURES // (IMAGES * max(len(shown), 1))))
    found = []
    for domain in shown:
        rows = table[table["domain"] == domain]
        split = next(name for name in SPLITS if (rows["split"] == name).any())
        members = memberships(rows[rows["split"] == split])
        members["image_path"] = rows["image_path"].reindex(members["row"]).to_numpy()
        labels = _drawn(members["label"].unique(), seed)
        chosen = [_sample(label, members, seed) for label in labels[:classes]]
        found.append(Gallery(domain, split, len(labels), chosen))
    return found, len(domains) - len(shown)


def _sample(label: str, members: pd.DataFrame, seed: int) -> SampleClass:
    paths = members.loc[members["label"] == label, "image_path"].unique()
    return SampleClass(label, len(paths), _drawn(paths, seed)[:IMAGES])


def _drawn(names: np.ndarray, seed: int) -> list[str]:
    return [names[place] for place in np.argsort(seeded_draws(seed, names), kind="stable")]


SHOWN = 24  # pairs of a kind
OF_ONE = 3  # pairs of pictures that hang together: one placeholder must not fill the page
ABOUT = {
    "placeholder": (
        "Placeholders",
        "One picture under so many labels that it says nothing of any of them.",
    ),
    "leak": (
        "Leaks",
        "A training image that is a copy of an image which the mix is validated or tested on.",
    ),
    "conflict": ("Label conflicts", "One picture under labels that have no class in common."),
    "exact duplicate": ("Exact duplicates", "Pictures with the same pixels once decoded."),
    "near duplicate": ("Near-duplicates", "Copies of one picture within a class."),
    "outlier": (
        "Outliers",
        "Training images far from their class, beside the most typical image of it.",
    ),
}
DOUBTFUL = {
    "leak": "Leaks, if these are copies",
    "conflict": "Label conflicts, if these are copies",
    "near duplicate": "Near-duplicates, if these are copies",
}
ABOUT_DOUBTFUL = (
    "No further apart than altered copies are here, but look-alikes are as near: nothing was done."
    " The nearest first; your word on them counts at the next run."
)


class Group(NamedTuple):
    """The findings of one kind, sure or doubtful; some are shown."""

    kind: str
    title: str
    about: str
    total: int
    actions: dict[str, int]  # how many pairs had which outcome
    pairs: list[dict[str, Any]]


def groups(findings: pd.DataFrame) -> list[Group]:
    """The findings by kind, what is doubtful before what is sure.

    Of the doubtful those that are most alike are shown; of the sure the least alike, for if they
    are right, the others are. Of images that are linked to each other at most three pairs.
    """
    kinds = dict.fromkeys([*ABOUT, *findings["kind"]])
    findings = findings.assign(together=_together(findings))
    found = []
    for sure in (False, True):
        for kind in kinds:
            rows = findings[(findings["kind"] == kind) & (findings["sure"] == sure)]
            if rows.empty:
                continue
            title, about = ABOUT.get(kind, (kind, ""))
            if not sure:
                title, about = DOUBTFUL.get(kind, title), ABOUT_DOUBTFUL
            found.append(
                Group(
                    kind,
                    title,
                    about,
                    total=len(rows),
                    actions=rows["action"].value_counts().sort_index().to_dict(),
                    pairs=_chosen(rows, sure).to_dict("records"),
                )
            )
    return found


def _chosen(rows: pd.DataFrame, sure: bool) -> pd.DataFrame:
    ranked = rows.sort_values(
        ["difference", "similarity", "image_path", "other_path"],
        ascending=[not sure, sure, True, True],
    )
    # one pair of pictures is one to look at, whichever of the two the finding is of
    unordered = [
        frozenset(pair) for pair in zip(ranked["image_path"], ranked["other_path"], strict=True)
    ]
    ranked = ranked[~pd.Series(unordered, ranked.index, dtype=object).duplicated()]
    return ranked[ranked.groupby("together").cumcount() < OF_ONE].head(SHOWN)


def _together(pairs: pd.DataFrame) -> np.ndarray:
    """For each pair the number of the images that hang together which it is of."""
    ends, images = pd.factorize(pd.concat([pairs["image_path"], pairs["other_path"]]))
    one, other = np.split(ends, 2)
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(len(images), len(images)))
    return connected_components(graph, directed=False)[1][one]


def accepting(merges: Sequence[Mapping[str, Any]]) -> str:
    """The lines of a config that accept merges, each a row of `suggest_merges`."""
    block = {"clean": {"merge": {merge["label"]: merge["into"] for merge in merges}}}
    return yaml.safe_dump(block, sort_keys=False, allow_unicode=True)


def evidence(pair: Mapping[str, Any]) -> str:
    """Why there is a finding, in a few words."""
    if pair["kind"] == "outlier":
        return f"cosine {pair['similarity']:.3f} to its class, {pair['distance']:+.3f} to another's"
    if pair["kind"] == "placeholder":
        return f"a picture under {pair['labels']:,} labels"
    if pair["copy"] == "exact":
        return "equal pixels"
    if pair["said"]:
        return "copies by your word"
    return (
        f"{pair['distance']:.0f} bits apart, cosine {pair['similarity']:.3f}, pixels differ by"
        f" {pair['difference']:.2f} (copies: up to {pair['limit']:.2f})"
    )


ROWS = 200  # of a table; the rest are counted


def write_report(
    path: str | Path,
    summary: Mapping[str, Any],
    table: pd.DataFrame,
    root: str | Path,
    *,
    left: pd.DataFrame,
    before: pd.Series,
    findings: pd.DataFrame | None = None,
    merges: pd.DataFrame | None = None,
    earned: pd.DataFrame | None = None,
    metric: str = "R@1 on val",
) -> None:
    """Write the page that shows how a mix came about. The same input gives the same bytes.

    Args:
        path: the HTML file.
        summary: what is written as JSON beside the mix.
        table: the mix's rows.
        root: folder that image_path starts from.
        left: what `left_after` returns, of all sources.
        before: `class_sizes` of what the sources held.
        findings: of `guie.curation.steps.clean_rules.clean`.
        merges: of `guie.curation.classes.merging.suggest_merges`.
        earned: of `guie.curation.selection.earned.earned`.
        metric: what the selection raised.

    Raises:
        UserError: the file cannot be written. A picture that cannot be decoded is shown as such.
    """
    parts = funnels(left)
    values = {
        **_mix(summary, table),
        **_sizes(left, before, table),
        **_cleaning(summary, findings, merges),
        "funnels": parts,
        "charts": charts(whole(parts), summary.get("pseudo_labels"), earned, metric),
        "earned": _records(earned),
        "metric": metric,
    }
    with tqdm(desc="report", unit="img", disable=None) as bar:
        write_page(path, "report.html.j2", {**values, "picture": Pictures(Path(root), bar)})


def _mix(summary: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Values of the template: the mix itself, and samples of it."""
    config = summary["config"]
    shown, hidden = galleries(table, config["seed"])
    return {
        "summary": summary,
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        "limit": ROWS,
        "labels": summary.get("pseudo_labels"),
        "galleries": shown,
        "domains_hidden": hidden,
    }


def _sizes(left: pd.DataFrame, before: pd.Series, table: pd.DataFrame) -> dict[str, Any]:
    """Values of the template: classes by size, before and after, and the domains' colours."""
    panels = histograms(before, class_sizes(table))
    colors = domain_colors([*left["domain"], *table["domain"].unique()])
    return {
        "histograms": panels,
        "drawn": size_charts(panels[:ROWS], colors),
        "described": described,
        "colors": colors,
    }


def _cleaning(
    summary: Mapping[str, Any], findings: pd.DataFrame | None, merges: pd.DataFrame | None
) -> dict[str, Any]:
    """Values of the template: what cleaning found, and the merges that it suggests."""
    near = (summary["config"].get("clean") or {}).get("near") or {}
    return {
        "groups": [] if findings is None else groups(findings),
        "evidence": evidence,
        "limits": summary.get("copies", []),
        "mirrored": bool(near.get("mirrored")),
        "merges": _records(merges)[:SHOWN],
        "merges_found": 0 if merges is None else len(merges),
        "accepting": accepting,
    }


def _records(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Rows as dictionaries, None where a value is missing."""
    if table is None:
        return []
    return table.astype(object).where(table.notna(), None).to_dict("records")
