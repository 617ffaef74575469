"""What each layer is worth on train and test as training goes on: Vo and Hays, WACV 2019, figures 2 to 5.

python src/train.py --config configs/real_vit_tiny.yaml --set name=curves \\
    --set checkpoint_every="100 steps" --set keep_checkpoints=99
python tests/bench/layer_curves.py --run runs/curves --manifest $M --figure curves.png

Of every checkpoint that the run has kept, with its averages where it keeps some: R@1 over the merged
index, means over domains; layers are
every block by default, pooled by avg, max, gem or token. Of train every image is query and index.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from common import arguments, show_frame
from layers import EMBEDDING, blocks, scored
from matplotlib.figure import Figure

from guie.data.manifest import load_manifest
from guie.ensembles.soup import Ingredient
from guie.report.figures.style import MUTED, PALETTE, new_figure, tidy
from guie.training.checkpoint import Checkpoints

SPLITS = ("train", "test")


def main() -> None:
    args = arguments(
        __doc__,
        run=Path,
        manifest=Path,
        layers=list[str] | None,
        pool="avg",
        workers=2,
        figure=Path | None,
    )
    manifest = load_manifest(args.manifest)
    files = Checkpoints(args.run, keep=1).paths()
    if not files:
        raise SystemExit(f"{args.run}: no checkpoints; train with keep_checkpoints above 1")
    by_step = {}
    for file in files:
        one = Ingredient(str(args.run), file)
        layers = args.layers or blocks(one.load())
        parts = [
            scored(one.load, pool, layers, manifest, args.workers, SPLITS)
            for pool in (EMBEDDING, args.pool)
        ]
        by_step[int(file.name.split("-")[0].removeprefix("step_"))] = pd.concat(parts)["mean"]
    table = pd.DataFrame(by_step).droplevel("pool")
    for split in SPLITS:
        show_frame(table.xs(split, level="split"), f"R@1 on {split}")
    if args.figure:
        curves(table).savefig(args.figure)


def curves(table: pd.DataFrame) -> Figure:
    """A panel a split, in it a line a layer over steps; the embedding is dashed.

    Args:
        table: R@1, a row a layer and split, a column a step.
    """
    figure = new_figure(3.6)
    panels = figure.subplots(1, len(SPLITS), sharey=True)
    for split, axes in zip(SPLITS, panels, strict=True):
        tidy(axes, f"R@1 on {split}", grid="y")
        axes.set_xlabel("step", fontsize=9, color=MUTED)
        of_split = table.xs(split, level="split")
        for color, (layer, course) in zip(PALETTE, of_split.iterrows(), strict=False):
            dash = "--" if layer == EMBEDDING else "-"
            axes.plot(
                course.index, course, dash, color=color, marker="o", markersize=3, label=layer
            )
    panels[-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


if __name__ == "__main__":
    main()
