"""What `copies.py` draws: precision over recall, and the nearest look-alikes for eyes alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from copy_evidence import OLD_BITS, Outcome, looked_at
from PIL import Image, ImageDraw

from guie.curation.duplicates.evidence import UNLIKE
from guie.data.images import open_as_seen


def draw_curve(outcome: Outcome, path: Path) -> None:
    """Precision over recall of what is promised, by domain: before, and by pixels."""
    import matplotlib.pyplot as plt

    pairs = outcome.pairs
    negative = (pairs["how"] == "") & (pairs["labels"] == UNLIKE) & ~looked_at(pairs)
    domains = sorted(outcome.planted["domain"].unique())
    figure, axes = plt.subplots(
        -(-len(domains) // 4),
        4,
        figsize=(11, 2.7 * -(-len(domains) // 4)),
        sharex=True,
        sharey=True,
    )
    ways = {
        "thumbnails (before)": (-pairs["similarity"]).where(pairs["distance"] <= OLD_BITS, np.inf),
        "pixels": pairs["difference"].where(pairs["similarity"] >= outcome.least["new"], np.inf),
    }
    limit = outcome.limits[outcome.limits["labels"] == UNLIKE].set_index("domain")["sure_limit"]
    for axis, domain in zip(axes.flat, domains, strict=False):
        total = (outcome.planted["domain"] == domain).sum()
        own = pairs["domain"] == domain
        for (name, score), colour in zip(ways.items(), ("#999999", "#2a73b8"), strict=True):
            positive = np.sort(score[own & (pairs["how"] != "")])
            positive = positive[np.isfinite(positive)]
            wrong = np.searchsorted(np.sort(score[own & negative]), positive, side="right")
            hits = np.arange(1, len(positive) + 1)
            axis.plot(hits / total, hits / (hits + wrong), color=colour, label=name)
            if name == "pixels" and domain in limit:
                at = np.searchsorted(positive, limit[domain], side="right") - 1
                axis.plot(hits[at] / total, hits[at] / (hits[at] + wrong[at]), "o", color=colour)
        axis.set_title(domain, fontsize=10)
    for axis in axes.flat[len(domains) :]:
        axis.set_axis_off()
    axes.flat[0].legend(loc="lower left", fontsize=8)
    axes.flat[0].set(xlim=(0.5, 1.01), ylim=(0, 1.03))
    figure.supxlabel("recall of planted copies", fontsize=10)
    figure.supylabel("precision among look-alikes", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_sheet(outcome: Outcome, path: Path, side_px: int = 96, rows: int = 12) -> None:
    """The natural pairs across labels that differ least, by domain: for eyes alone."""
    pairs = outcome.pairs
    natural = pairs[(pairs["how"] == "") & (pairs["labels"] == UNLIKE)]
    shown = natural.sort_values("difference").groupby("domain").head(rows)
    domains = sorted(shown["domain"].unique())
    width, height = 2 * side_px + 12, side_px + 16
    sheet = Image.new("RGB", (width * len(domains), height * rows), "white")
    pen = ImageDraw.Draw(sheet)
    for column, domain in enumerate(domains):
        own = shown[shown["domain"] == domain]
        for row, pair in enumerate(own.itertuples()):
            place = column * width, row * height
            pen.text(
                place, f"{pair.difference:.3f} {Path(pair.one).parent.name}"[:34], fill="black"
            )
            for number, end in enumerate((pair.one, pair.other)):
                image = open_as_seen(end)
                image.thumbnail((side_px, side_px))
                sheet.paste(image, (place[0] + number * side_px, place[1] + 14))
    sheet.save(path)
