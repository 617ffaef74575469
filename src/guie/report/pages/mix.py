"""The report of a mix: one HTML file with embedded pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from tqdm import tqdm

from guie.base.seeds import seeded_draws
from guie.config import to_yaml
from guie.data.manifest.reading import memberships
from guie.report.figures import calibration, selection_curve, size_histogram, stages
from guie.report.figures.mix import described, histograms
from guie.report.figures.style import domain_colors
from guie.report.pages.html import Panel, Pictures, inline_svg, write_page

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


class Funnel(NamedTuple):
    """The counts after each rule of one domain of one data set.

    `stages` are dicts: name, classes, images, lost (by this rule), share (of the most images).
    """

    dataset: str
    domain: str
    stages: list[dict[str, Any]]


def left_after(stages: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count what remains after each rule, by dataset and domain.

    A class that is in both train and test counts twice.

    Args:
        stages: by rule, the table that it left; the first is what was found.

    Returns:
        Columns dataset, domain, rule, classes, images. Results for several sources, or for later
        rules, can be concatenated; a later row for the same rule replaces an earlier one.
    """
    counts = [_counts(table) for table in stages.values()]
    everything = pd.concat(counts).index.unique()
    found = [
        count.reindex(everything, fill_value=0).reset_index().assign(rule=rule)
        for rule, count in zip(stages, counts, strict=True)
    ]
    return pd.concat(found, ignore_index=True)[COLUMNS]


def funnels(left: pd.DataFrame) -> list[Funnel]:
    """Make a funnel for each dataset and domain, sorted; a rule that was not applied loses nothing."""
    rules = list(dict.fromkeys(left["rule"]))
    table = left.drop_duplicates([*KEYS, "rule"], keep="last").pivot(
        index=KEYS, columns="rule", values=["classes", "images"]
    )
    found = []
    for (dataset, domain), row in table.iterrows():
        by_rule = row.unstack(level=0).reindex(rules).ffill().fillna(0).astype(int)
        found.append(Funnel(dataset, domain, _stages(by_rule)))
    return found


def whole(parts: Sequence[Funnel]) -> list[dict[str, Any]]:
    """Make the funnel of all parts together. A class that is in two data sets counts twice."""
    counts = [pd.DataFrame(part.stages).set_index("name") for part in parts]
    return _stages(sum(count[["classes", "images"]] for count in counts)) if counts else []


def _counts(table: pd.DataFrame) -> pd.DataFrame:
    table = table.assign(dataset=table["dataset"].fillna("") if "dataset" in table else "")
    members = memberships(table)
    members["dataset"] = table["dataset"].reindex(members["row"]).to_numpy()
    classes = members.drop_duplicates([*KEYS, "split", "label"]).groupby(KEYS).size()
    return pd.DataFrame({"classes": classes, "images": table.groupby(KEYS).size()})


def _stages(by_rule: pd.DataFrame) -> list[dict[str, Any]]:
    """Make stages from classes and images, one row per rule."""
    images = by_rule["images"]
    return (
        by_rule.assign(
            name=[NAMES.get(rule, rule) for rule in by_rule.index],
            lost=images.shift(fill_value=images.iloc[0]) - images,
            share=images / max(1, images.max()),
        )
        .astype({"classes": int, "images": int, "lost": int})
        .to_dict("records")
    )


def class_sizes(table: pd.DataFrame) -> pd.Series:
    """Count the images of each class in train and val together, by domain and label.

    Test is excluded because rules change train only. Val is included because classes that move
    there are not lost.
    """
    members = memberships(table[table["split"] != "test"])
    return members.groupby(["domain", "label"]).size()


CLASSES, IMAGES = 6, 4  # of a domain, of a class
MAX_PICTURES = 720  # many domains show fewer classes each
SPLITS = ("train", "val", "test")


def galleries(table: pd.DataFrame, seed: int) -> tuple[list[dict[str, Any]], int]:
    """Sample some classes of each domain by `seed`; also return how many domains are omitted.

    Keys: domain, split (the first that it has), total (classes in it), classes: dicts of label,
    images (of the class in the split), paths.
    """
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
        found.append({"domain": domain, "split": split, "total": len(labels), "classes": chosen})
    return found, len(domains) - len(shown)


def _sample(label: str, members: pd.DataFrame, seed: int) -> dict[str, Any]:
    paths = members.loc[members["label"] == label, "image_path"].unique()
    return {"label": label, "images": len(paths), "paths": _drawn(paths, seed)[:IMAGES]}


def _drawn(names: np.ndarray, seed: int) -> list[str]:
    return [names[place] for place in np.argsort(seeded_draws(seed, names), kind="stable")]


SHOWN = 24  # pairs of a kind
OF_ONE = 3  # pairs of linked pictures, so that one placeholder does not fill the page
ABOUT = {
    "placeholder": (
        "Placeholders",
        "One image with so many labels that none of them can be trusted.",
    ),
    "leak": (
        "Leaks",
        "A training image that is a copy of a validation or test image of the mix.",
    ),
    "conflict": ("Label conflicts", "One image with labels that have no class in common."),
    "exact duplicate": ("Exact duplicates", "Images with the same pixels after decoding."),
    "near duplicate": ("Near-duplicates", "Copies of one image within a class."),
    "outlier": (
        "Outliers",
        "Training images far from their class, next to the most typical image of that class.",
    ),
}
DOUBTFUL = {
    "leak": "Leaks, if these are copies",
    "conflict": "Label conflicts, if these are copies",
    "near duplicate": "Near-duplicates, if these are copies",
}
ABOUT_DOUBTFUL = (
    "These pairs differ no more than altered copies do, but look-alikes can be as close, so nothing"
    " was dropped. The closest come first; the next run applies your verdicts on them."
)


def groups(findings: pd.DataFrame) -> list[dict[str, Any]]:
    """Group the findings by kind, doubtful ones before sure ones.

    Doubtful groups show the most similar pairs. Sure groups show the least similar ones: if these
    are right, so are the others. At most three pairs of linked images are shown.

    Keys: kind, title, about, total, actions (number of findings by action), pairs (those shown).
    """
    kinds = dict.fromkeys([*ABOUT, *findings["kind"]])
    findings = findings.assign(together=_together(findings))
    found = []
    for sure, kind in product((False, True), kinds):
        rows = findings[(findings["kind"] == kind) & (findings["sure"] == sure)]
        if rows.empty:
            continue
        title, about = ABOUT.get(kind, (kind, ""))
        if not sure:
            title, about = DOUBTFUL.get(kind, title), ABOUT_DOUBTFUL
        found.append(
            {
                "kind": kind,
                "title": title,
                "about": about,
                "total": len(rows),
                "actions": rows["action"].value_counts().sort_index().to_dict(),
                "pairs": _chosen(rows, sure).to_dict("records"),
            }
        )
    return found


def _chosen(rows: pd.DataFrame, sure: bool) -> pd.DataFrame:
    ranked = rows.sort_values(
        ["difference", "similarity", "image_path", "other_path"],
        ascending=[not sure, sure, True, True],
    )
    # show each pair once, whichever of its two images the finding belongs to
    unordered = [
        frozenset(pair) for pair in zip(ranked["image_path"], ranked["other_path"], strict=True)
    ]
    ranked = ranked[~pd.Series(unordered, ranked.index, dtype=object).duplicated()]
    return ranked[ranked.groupby("together").cumcount() < OF_ONE].head(SHOWN)


def _together(pairs: pd.DataFrame) -> np.ndarray:
    """Return the number of the connected component of images that each pair belongs to."""
    ends, images = pd.factorize(pd.concat([pairs["image_path"], pairs["other_path"]]))
    one, other = np.split(ends, 2)
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(len(images), len(images)))
    return connected_components(graph, directed=False)[1][one]


def accepting(merges: Sequence[Mapping[str, Any]]) -> str:
    """Return the config lines that accept merges, each a row of `suggest_merges`."""
    block = {"clean": {"merge": {merge["label"]: merge["into"] for merge in merges}}}
    return to_yaml(block)


def evidence(pair: Mapping[str, Any]) -> str:
    """Return the reason for a finding in a few words."""
    if pair["kind"] == "outlier":
        return f"cosine {pair['similarity']:.3f} to its class, {pair['distance']:+.3f} to another's"
    if pair["kind"] == "placeholder":
        return f"a picture with {pair['labels']:,} labels"
    if pair["copy"] == "exact":
        return "equal pixels"
    if pair["confirmed"]:
        return "copies by your verdict"
    return (
        f"{pair['distance']:.0f} bits apart, cosine {pair['similarity']:.3f}, pixels differ by"
        f" {pair['difference']:.2f} (copies: up to {pair['limit']:.2f})"
    )


ROWS = 200  # shown in a table; the rest are counted
SECTIONS = {
    "mix": "The mix",
    "funnel": "Funnel",
    "sizes": "Class sizes",
    "samples": "Samples",
    "findings": "Findings",
    "merges": "Merges",
    "labels": "Pseudo-labels",
    "selection": "Selection",
    "dropped": "Dropped files",
    "config": "Config",
}
OPTIONAL = {"merges": "merges", "labels": "labels", "selection": "gains"}  # with these values


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
    gains: pd.DataFrame | None = None,
    metric: str = "R@1 on val",
) -> None:
    """Write the page that shows how a mix was made. The same input gives the same bytes.

    Args:
        path: the HTML file.
        summary: the summary that is written as JSON next to the mix.
        table: the mix's rows.
        root: folder that image_path is relative to.
        left: the result of `left_after` for all sources.
        before: `class_sizes` of the sources.
        findings: from `guie.curation.cleaning.clean`.
        merges: from `guie.curation.classes.suggest_merges`.
        gains: the step table of `guie.curation.selection`.
        metric: the metric that the selection maximized.

    Raises:
        UserError: the file cannot be written. A picture that cannot be decoded is marked as such.
    """
    parts = funnels(left)
    values = {
        **_mix(summary, table),
        **_sizes(left, before, table),
        **_cleaning(summary, findings, merges),
        "funnels": parts,
        "charts": _charts(whole(parts), summary.get("pseudo_labels"), gains, metric),
        "gains": _gains(gains),
        "metric": metric,
    }
    absent = {name for name, value in OPTIONAL.items() if not values[value]}
    values["sections"] = {k: title for k, title in SECTIONS.items() if k not in absent}
    with tqdm(desc="report", unit="img", disable=None) as bar:
        write_page(path, "mix.html.j2", {**values, "picture": Pictures(Path(root), bar)})


def _mix(summary: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Return template values: the mix itself, and samples of it."""
    config = summary["config"]
    shown, hidden = galleries(table, config["seed"])
    return {
        "summary": summary,
        "domains": [_domain(*counts) for counts in summary["domains"].items()],
        "config": to_yaml(config),
        "limit": ROWS,
        "labels": summary.get("pseudo_labels"),
        "galleries": shown,
        "domains_hidden": hidden,
    }


def _domain(domain: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the domain's row: classes and images of each split, and queries without positive."""
    row = {
        f"{split}_{what}": counts.get(split, {}).get(what)
        for split in SPLITS
        for what in ("classes", "images")
    }
    key = "queries_without_positive"
    without = sum(counts.get(split, {}).get(key, 0) for split in ("val", "test"))
    return {"domain": domain, **row, "without_positive": without}


def _sizes(left: pd.DataFrame, before: pd.Series, table: pd.DataFrame) -> dict[str, Any]:
    """Return template values: class sizes before and after, and the domains' colours."""
    found = histograms(before, class_sizes(table))
    colors = domain_colors([*left["domain"], *table["domain"].unique()])
    panels = [
        Panel(
            histogram.domain,
            described(histogram),
            inline_svg(
                size_histogram(histogram, colors[histogram.domain]),
                f"sizes-{place}",
                f"Classes by size, {histogram.domain}; the numbers are in the table",
            ),
        )
        for place, histogram in enumerate(found[:ROWS])
    ]
    return {"histograms": found, "size_panels": panels, "colors": colors}


def _cleaning(
    summary: Mapping[str, Any], findings: pd.DataFrame | None, merges: pd.DataFrame | None
) -> dict[str, Any]:
    """Return template values: the findings of cleaning, and the suggested merges."""
    near = (summary["config"].get("clean") or {}).get("near") or {}
    return {
        "groups": [] if findings is None else groups(findings),
        "evidence": evidence,
        "limits": summary.get("copies", []),
        "mirrored": bool(near.get("mirrored")),
        "merges": [] if merges is None else merges[:SHOWN].to_dict("records"),
        "merges_found": 0 if merges is None else len(merges),
        "accepting": accepting,
    }


def _charts(
    left: list[dict[str, Any]],
    labels: Mapping[str, Any] | None,
    gains: pd.DataFrame | None,
    metric: str,
) -> dict[str, Markup]:
    """Draw the charts that have data, by section of the page."""
    found = {}
    if left:
        about = "Images left after each rule"
        found["funnel"] = inline_svg(stages(pd.DataFrame(left)), "funnel-chart", about)
    if labels and labels["calibration"]:
        about = "Precision over coverage; the numbers are in the table"
        found["labels"] = inline_svg(calibration(labels["calibration"]), "labels-chart", about)
    if gains is not None and len(gains):
        about = f"{metric} after each step; the numbers are in the table"
        found["selection"] = inline_svg(selection_curve(gains, metric), "selection-chart", about)
    return found


def _gains(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return the rows of the step table, those of rejected changes in grey."""
    if table is None:
        return []
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    rejected = {"mix": "rejected", "class": "refused"}
    return [row if row["mix"] else row | rejected for row in rows]
