"""Scores measured here against those of a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from guie.report.figures.style import ACCENT, FAINT, INK, legible, new_figure, tidy


def local_against_leaderboard(points: Sequence[tuple[str, float, float]]) -> Figure:
    """A dot a submission, with its name; on the line both scores are one.

    Args:
        points: name, local score, leaderboard score.
    """
    figure = new_figure(5.0, 5.5)
    axes = tidy(figure.subplots(), "Does the local score tell the leaderboard's?")
    scores = [score for _, *pair in points for score in pair]
    ends = [min(scores) - 0.02, max(scores) + 0.02]
    axes.plot(ends, ends, color=FAINT, zorder=0)
    for name, local, public in points:
        axes.scatter(local, public, color=ACCENT, s=24)
        axes.annotate(
            legible(name),
            (local, public),
            (5, -3),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    axes.set_xlabel("local mMP@5", fontsize=9)
    axes.set_ylabel("public leaderboard", fontsize=9)
    return figure
