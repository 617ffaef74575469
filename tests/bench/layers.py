"""What each layer of a model is worth on train, val and test, by domain; and the layer that val chooses.

python tests/bench/layers.py --model runs/real_vit_tiny --manifest $M [--pool avg max] [--figure layers.png]
python tests/bench/layers.py --model runs/mobile --layers blocks.3 blocks.5 conv_head --manifest $M

Layers are by default every block; --pool takes avg, max, gem and token, and --figure draws test R@1 by
domain. R@1 over the merged index, means over domains. Of train every image is query and index. All layers are
read in one pass for each way of pooling. Vo and Hays, WACV 2019: the last layer wins on train, an
earlier one on test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, show, show_frame
from torch import nn

from guie.base.devices import make_accelerator
from guie.config.model import LayersConfig
from guie.data.manifest import Manifest, load_manifest
from guie.evaluation.validation import quick_scores
from guie.models import LoadedModel, open_model, with_layers
from guie.report.figures import lines_over
from guie.rows.embedding import embed_files

SPLITS = ("train", "val", "test")
EMBEDDING = "embedding"


def main() -> None:
    args = arguments(
        __doc__,
        model=str,
        manifest=Path,
        layers=list[str] | None,
        pool=["avg"],
        size_px=int | None,
        workers=2,
        figure=Path | None,
    )
    manifest = load_manifest(args.manifest)
    layers = args.layers or blocks(open_model(args.model, args.size_px))
    parts = []
    for pool in (EMBEDDING, *args.pool):
        opened = partial(open_model, args.model, args.size_px)
        parts.append(scored(opened, pool, layers, manifest, args.workers))
    table = pd.concat(parts)
    show_frame(summary(table))
    show(["", *CHOSEN], chosen(table))
    if args.figure:
        tested = table.xs((args.pool[0], "test"), level=("pool", "split"))
        lines = tested.loc[layers].drop(columns="mean").set_axis(range(len(layers)))
        lines_over(lines, "test R@1", f"layer, {layers[0]} to {layers[-1]}").savefig(args.figure)


def blocks(model: LoadedModel) -> list[str]:
    """Names of a tower's blocks, lowest first."""
    backbone = model.embedder.backbone
    tower, trunk = backbone.tower, backbone.trunk
    prefix = next(f"{name}." if name else "" for name, m in tower.named_modules() if m is trunk)
    for name, module in trunk.named_modules():
        if name.split(".")[-1] in ("blocks", "resblocks", "stages") and isinstance(
            module, nn.ModuleList | nn.Sequential
        ):
            return [f"{prefix}{name}.{number}" for number in range(len(module))]
    raise SystemExit("no blocks; name modules by --layers")


def scored(
    opened: Callable[[], LoadedModel],
    pool: str,
    layers: list[str],
    manifest: Manifest,
    workers: int,
    splits: Sequence[str] = SPLITS,
) -> pd.DataFrame:
    """R@1 by layer, pool and split: a column a domain, and `mean`.

    Args:
        opened: the model, anew at each call.
        pool: of the layers; EMBEDDING: the model's own, `layers` aside.
    """
    model, layers = opened(), layers if pool != EMBEDDING else [EMBEDDING]
    if pool != EMBEDDING:
        model = with_layers(model, LayersConfig(of=layers, pool=pool))
    accelerator = make_accelerator()
    embedder = model.embedder.to(accelerator.device)
    widths = [embedder.dim] if pool == EMBEDDING else widths_of(opened, layers, pool)
    ends = np.cumsum(widths)
    lines = {}
    for split in splits:
        rows = manifest.split(split)
        rows = rows.assign(role="both") if split == "train" else rows
        files = [manifest.file(path) for path in rows["image_path"]]
        emb_ND = embed_files(accelerator, embedder, model.preprocess, files,
                             workers=workers, title=f"{pool}, {split}")  # fmt: skip
        for layer, end, width in zip(layers, ends, widths, strict=True):
            found = quick_scores(np.ascontiguousarray(emb_ND[:, end - width : end]), rows)
            domains = {name: values["r_at_1"] for name, values in found["domains"].items()}
            lines[layer, pool, split] = domains | {"mean": found["r_at_1"]}
    table = pd.DataFrame(lines).T
    return table.set_axis(pd.MultiIndex.from_tuples(lines, names=("layer", "pool", "split")))


def widths_of(opened: Callable[[], LoadedModel], layers: list[str], pool: str) -> list[int]:
    """How many features each layer gives."""
    alone = (LayersConfig(of=[layer], pool=pool) for layer in layers)
    return [with_layers(opened(), config).embedder.dim for config in alone]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """A row a layer: means on the three splits, test by domain."""
    wide = table.unstack("split")
    order = list(dict.fromkeys((layer, pool) for layer, pool, _ in table.index))
    columns = [("mean", split) for split in SPLITS]
    columns += [(name, "test") for name in table if name != "mean"]
    names = [layer if pool == EMBEDDING else f"{layer}, {pool}" for layer, pool in order]
    titles = [split if name == "mean" else f"{split} {name}" for name, split in columns]
    return wide.loc[order, columns].set_axis(names).set_axis(titles, axis=1).astype(float)


CHOSEN = ["wins on train", "val chooses", "its test R@1", "the embedding's", "wins on test"]


def chosen(table: pd.DataFrame) -> Iterator[tuple]:
    """By domain that has a val split: what wins on train, what val chooses, what would have won on test."""
    by_split = {split: table.xs(split, level="split").astype(float) for split in SPLITS}
    for name in table:
        if by_split["val"][name].isna().all():  # nothing chooses where a domain has no val split
            continue
        best = {split: part[name].idxmax() for split, part in by_split.items()}
        words = {
            split: layer if pool == EMBEDDING else f"{layer}, {pool}"
            for split, (layer, pool) in best.items()
        }
        tested = by_split["test"][name]
        values = tested[best["val"]], tested[EMBEDDING, EMBEDDING]
        yield name, words["train"], words["val"], *values, words["test"]


if __name__ == "__main__":
    main()
