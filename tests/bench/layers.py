"""What each layer of a model is worth on train, val and test, by domain; and the layer that val chooses.

python tests/bench/layers.py --model runs/real_vit_tiny --manifest $M [--pool avg max] [--figure layers.png]
python tests/bench/layers.py --model runs/mobile --layers blocks.3 blocks.5 conv_head --manifest $M

R@1 over the merged index, means over domains. Of train every image is query and index. All layers are
read in one pass for each way of pooling. Vo and Hays, WACV 2019: the last layer wins on train, an
earlier one on test.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from guie.base.devices import make_accelerator
from guie.config.model import LayersConfig
from guie.data.manifest import Manifest, load_manifest
from guie.evaluation.embedding import embed_files
from guie.evaluation.validation import quick_scores
from guie.models import LoadedModel, open_model, with_layers
from guie.report.figures import lines_over

SPLITS = ("train", "val", "test")
EMBEDDING = "embedding"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="as embed.py's")
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--layers", nargs="+", help="default: every block")
    parser.add_argument("--pool", nargs="+", default=["avg"], help="avg, max, gem, token")
    parser.add_argument("--size-px", type=int, help="of a library's model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--figure", type=Path, help="PNG: test R@1 by domain over the layers")
    args = parser.parse_args()
    manifest = load_manifest(args.manifest)
    layers = args.layers or blocks(open_model(args.model, args.size_px))
    parts = []
    for pool in (EMBEDDING, *args.pool):
        opened = partial(open_model, args.model, args.size_px)
        parts.append(scored(opened, pool, layers, manifest, args.workers))
    table = pd.concat(parts)
    print(markdown(table))
    print(chosen(table))
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


def markdown(table: pd.DataFrame) -> str:
    """A line a layer: means on the three splits, test by domain."""
    domains = [name for name in table if name != "mean"]
    heads = ["layer", *SPLITS, *(f"test {name}" for name in domains)]
    lines = [heads, ["---"] * len(heads)]
    for layer, pool in dict.fromkeys((place[0], place[1]) for place in table.index):
        of = {split: table.loc[(layer, pool, split)] for split in SPLITS}
        name = layer if pool == EMBEDDING else f"{layer}, {pool}"
        means = [f"{of[split]['mean']:.3f}" for split in SPLITS]
        lines.append([name, *means, *(f"{of['test'][domain]:.3f}" for domain in domains)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def chosen(table: pd.DataFrame) -> str:
    """By domain that has a val split: what wins on train, what val chooses, what would have won on test."""
    lines = [
        "",
        "| | wins on train | val chooses | its test R@1 | the embedding's | wins on test |",
    ]
    lines.append("|---|---|---|---|---|---|")
    by_split = {split: table.xs(split, level="split") for split in SPLITS}
    for name in table:
        if by_split["val"][name].isna().all():  # nothing chooses where a domain has no val split
            continue
        best = {split: part[name].astype(float).idxmax() for split, part in by_split.items()}
        message = {split: place[0] if place[1] == EMBEDDING else ", ".join(place)
                for split, place in best.items()}  # fmt: skip
        own = by_split["test"].loc[(EMBEDDING, EMBEDDING), name]
        value = by_split["test"].loc[best["val"], name]
        lines.append(f"| {name} | {message['train']} | {message['val']} | {value:.3f} | {own:.3f}"
                     f" | {message['test']} |")  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
