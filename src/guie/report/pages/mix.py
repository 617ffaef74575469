"""The report of a mix: one HTML file with embedded pictures."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from guie.base.seeds import seeded_draws
from guie.config import to_yaml
from guie.data.manifest.reading import memberships
from guie.report.figures import calibration, selection_curve, stages
from guie.report.figures.mix import Histogram, histograms, size_histogram
from guie.report.figures.style import domain_colors
from guie.report.pages.html import Pictures, inline_svg, write_page

KEYS = ["dataset", "domain"]
ENDS = ["image_path", "other_path"]  # of a pair
SPLITS = ("train", "val", "test")
ROWS = 200  # shown in a table; the rest are counted
CLASSES, IMAGES = 6, 4  # shown of a domain, of a class
MAX_PICTURES = 720  # many domains show fewer classes each
PAIRS = 24  # shown of a kind
PAIRS_OF_ONE = 3  # of linked pictures, so that one placeholder does not fill the page
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
KINDS = {  # of findings: title, and what it is
    "placeholder": (
        "Placeholders",
        "One image with so many labels that none of them can be trusted.",
    ),
    "leak": ("Leaks", "A training image that is a copy of a validation or test image of the mix."),
    "conflict": ("Label conflicts", "One image with labels that have no class in common."),
    "exact duplicate": ("Exact duplicates", "Images with the same pixels after decoding."),
    "near duplicate": ("Near-duplicates", "Copies of one image within a class."),
    "outlier": (
        "Outliers",
        "Training images far from their class, next to the most typical image of that class.",
    ),
}
ABOUT_DOUBTFUL = (
    "These pairs differ no more than altered copies do, but look-alikes can be as close, so nothing"
    " was dropped. The closest come first; the next run applies your verdicts on them."
)
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
        summary: what is written as JSON next to the mix.
        table: the mix's rows.
        root: folder that image_path is relative to.
        left: the result of `left_after` for all sources.
        before: `class_sizes` of the sources.
        findings: from `guie.curation.cleaning.clean`.
        merges: from `guie.curation.centroids.suggest_merges`.
        gains, metric: the step table of `guie.curation.selection`, and what it maximized.

    Raises UserError if the file cannot be written. A picture that cannot be decoded is marked as such.
    """
    config, labels = summary["config"], summary.get("pseudo_labels")
    whole, parts = funnels(left)
    colors = domain_colors([*left["domain"], *table["domain"].unique()])
    sizes = histograms(before, class_sizes(table))
    shown, hidden = galleries(table, config["seed"])
    same = [] if merges is None else merges[:PAIRS].to_dict("records")
    values = {
        "summary": summary,
        "config": to_yaml(config),
        "limit": ROWS,
        "metric": metric,
        "colors": colors,
        "domains": [_counts_of_splits(*counts) for counts in summary["domains"].items()],
        "funnels": parts,
        "histograms": sizes,
        "size_panels": [*_size_panels(sizes[:ROWS], colors)],
        "galleries": shown,
        "domains_hidden": hidden,
        "groups": [] if findings is None else groups(findings),
        "evidence": evidence,
        "limits": summary.get("copies", []),
        "mirrored": bool(((config.get("clean") or {}).get("near") or {}).get("mirrored")),
        "merges": same,
        "merges_found": 0 if merges is None else len(merges),
        "accepted": to_yaml({"clean": {"merge": {one["label"]: one["into"] for one in same}}}),
        "labels": labels,
        "gains": [] if gains is None else _step_rows(gains),
        "charts": _charts(whole, labels, gains, metric),
    }
    values["sections"] = {k: v for k, v in SECTIONS.items() if values[OPTIONAL.get(k, "summary")]}
    write_page(path, "mix.html.j2", values, Pictures(root, "report"))


def left_after(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count what remains after each rule: columns dataset, domain, rule, classes, images.

    A class that is in both train and test counts twice. `tables` has by rule the table that it left; the
    first is what was found. Results for several sources, or for later rules, can be concatenated; a later row
    for the same rule replaces an earlier one.
    """
    counts = {}
    for rule, table in tables.items():
        table = table.assign(dataset=table["dataset"].fillna("") if "dataset" in table else "")
        members = memberships(table)
        members["dataset"] = table["dataset"].reindex(members["row"]).to_numpy()
        classes = members.drop_duplicates([*KEYS, "split", "label"]).groupby(KEYS).size()
        counts[rule] = pd.DataFrame({"classes": classes, "images": table.groupby(KEYS).size()})
    everything = pd.concat(counts.values()).index.unique()
    found = [
        count.reindex(everything, fill_value=0).reset_index().assign(rule=rule)
        for rule, count in counts.items()
    ]
    return pd.concat(found, ignore_index=True)[[*KEYS, "rule", "classes", "images"]]


Stages = list[dict[str, Any]]  # name, classes, images, lost (by this rule), share (of the most)


def funnels(left: pd.DataFrame) -> tuple[Stages, list[dict[str, Any]]]:
    """Return the stages of everything together, then `dataset`, `domain`, `stages` of each part.

    A rule that was not applied loses nothing. A class that is in two data sets counts twice.
    """
    if left.empty:
        return [], []
    last = left.drop_duplicates([*KEYS, "rule"], keep="last")
    table = last.pivot(index=KEYS, columns="rule", values=["classes", "images"])
    rules = list(dict.fromkeys(left["rule"]))
    classes, images = (
        table[what].reindex(columns=rules).ffill(axis=1).fillna(0).astype(int)
        for what in ("classes", "images")
    )
    parts = [
        {"dataset": key[0], "domain": key[1], "stages": _stages(classes.loc[key], images.loc[key])}
        for key in table.index
    ]
    return _stages(classes.sum(), images.sum()), parts


def _stages(classes: pd.Series, images: pd.Series) -> Stages:
    found = pd.DataFrame({"classes": classes, "images": images})
    found["name"] = [NAMES.get(rule, rule) for rule in images.index]
    found["lost"] = images.shift(fill_value=images.iloc[0]) - images
    found["share"] = images / max(1, images.max())
    return found.to_dict("records")


def class_sizes(table: pd.DataFrame) -> pd.Series:
    """Count the images of each class in train and val together, by domain and label.

    Test is excluded because rules change train only. Val is included because classes that move
    there are not lost.
    """
    members = memberships(table[table["split"] != "test"])
    return members.groupby(["domain", "label"]).size()


def _size_panels(
    sizes: Sequence[Histogram], colors: Mapping[str, str]
) -> Iterator[tuple[str, str, Markup]]:
    for place, (domain, bins, note) in enumerate(sizes):
        label = f"Classes by size, {domain}; the numbers are in the table"
        drawn = size_histogram(bins, colors[domain])
        yield domain, note, inline_svg(drawn, f"sizes-{place}", label)


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
        paths = members.groupby("label", sort=False)["image_path"].unique()
        labels = _shuffled(paths.index.to_numpy(), seed)
        samples = [
            {"label": n, "images": len(paths[n]), "paths": _shuffled(paths[n], seed)[:IMAGES]}
            for n in labels[:classes]
        ]
        found.append({"domain": domain, "split": split, "total": len(labels), "classes": samples})
    return found, len(domains) - len(shown)


def _shuffled(names: np.ndarray, seed: int) -> list[str]:
    return [names[place] for place in np.argsort(seeded_draws(seed, names), kind="stable")]


def groups(findings: pd.DataFrame) -> list[dict[str, Any]]:
    """Group the findings by kind, doubtful ones before sure ones.

    Doubtful groups show the most similar pairs. Sure groups show the least similar ones: if these
    are right, so are the others. At most three pairs of linked images are shown.

    Keys: kind, title, about, total, actions (number of findings by action), pairs (those shown).
    """
    ends, images = pd.factorize(pd.concat([findings[end] for end in ENDS]))
    one, other = np.split(ends, 2)
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(len(images), len(images)))
    findings = findings.assign(linked=connected_components(graph, directed=False)[1][one])
    found = []
    for sure, (kind, (title, about)) in product((False, True), KINDS.items()):
        rows = findings[(findings["kind"] == kind) & (findings["sure"] == sure)]
        if rows.empty:
            continue
        if not sure:
            title, about = f"{title}, if these are copies", ABOUT_DOUBTFUL
        group = {"kind": kind, "title": title, "about": about, "total": len(rows)}
        group["actions"] = rows["action"].value_counts().sort_index().to_dict()
        order, rising = ["difference", "similarity", *ENDS], [not sure, sure, True, True]
        ranked = rows.sort_values(order, ascending=rising)
        # Show each pair once, whichever of its two images the finding belongs to
        pairs = pd.Series(map(frozenset, ranked[ENDS].to_numpy()))
        ranked = ranked[~pairs.duplicated().to_numpy()]
        ranked = ranked[ranked.groupby("linked").cumcount() < PAIRS_OF_ONE]
        group["pairs"] = ranked.head(PAIRS).to_dict("records")
        found.append(group)
    return found


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


def _counts_of_splits(domain: str, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the domain's row: classes and images of each split, and queries without positive."""
    without = [of.get("queries_without_positive", 0) for of in counts.values()]
    row = {"domain": domain, "without_positive": sum(without)}
    for split, what in product(SPLITS, ("classes", "images")):
        row[f"{split}_{what}"] = counts.get(split, {}).get(what)
    return row


def _charts(
    whole: Stages, labels: Mapping[str, Any] | None, gains: pd.DataFrame | None, metric: str
) -> dict[str, Markup]:
    """Draw the charts that have data, by section of the page."""
    found = {}
    if whole:
        about = "Images left after each rule"
        found["funnel"] = inline_svg(stages(pd.DataFrame(whole)), "funnel-chart", about)
    if labels and labels["calibration"]:
        about = "Precision over coverage; the numbers are in the table"
        found["labels"] = inline_svg(calibration(labels["calibration"]), "labels-chart", about)
    if gains is not None and len(gains):
        about = f"{metric} after each step; the numbers are in the table"
        found["selection"] = inline_svg(selection_curve(gains, metric), "selection-chart", about)
    return found


def _step_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the step table, those of rejected changes in grey."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    rejected = {"mix": "rejected", "class": "refused"}
    return [row if row["mix"] else row | rejected for row in rows]
