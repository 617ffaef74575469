"""R@1 of each layer of a model on train, val and test, by domain.

python tests/bench/layers.py --model runs/real_vit_tiny --manifest $M [--pool avg token] [--figure layers.png]
python tests/bench/layers.py --model runs/mobile --layers blocks.3 blocks.5 conv_head --manifest $M

Layers are by default every block; --pool takes avg, max, gem and token, and --figure draws test R@1 by
domain. R@1 is over the merged index, the mean over domains. Of train every image is query and index. All
layers are read in one pass for each pooling. Vo and Hays, WACV 2019: the last layer is the best on train, an
earlier one on test.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, show_frame
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
        workers=2,
        figure=Path | None,
    )
    manifest = load_manifest(args.manifest)
    layers = args.layers or blocks(open_model(args.model))
    pools = (EMBEDDING, *args.pool)
    parts = [scored(args.model, pool, layers, manifest, args.workers) for pool in pools]
    table = pd.concat(parts)
    names = [layer if pool == EMBEDDING else f"{layer}, {pool}" for layer, pool in table.index]
    show_frame(table.set_axis(names).set_axis([" ".join(c) for c in table], axis=1))
    if args.figure:
        tested = table.xs("test", axis=1, level="split").drop(columns="mean")
        lines = tested.xs(args.pool[0], level="pool").set_axis(range(len(layers)))
        lines_over(lines, "test R@1", f"layer, {layers[0]} to {layers[-1]}").savefig(args.figure)


def blocks(model: LoadedModel) -> list[str]:
    """Names of a backbone's blocks, lowest first."""
    tower, trunk = model.embedder.backbone.tower, model.embedder.backbone.trunk
    prefix = next(f"{name}." if name else "" for name, m in tower.named_modules() if m is trunk)
    for name, module in trunk.named_modules():
        if name.split(".")[-1] in ("blocks", "resblocks", "stages") and isinstance(
            module, nn.ModuleList | nn.Sequential
        ):
            return [f"{prefix}{name}.{number}" for number in range(len(module))]
    raise SystemExit("no blocks; name modules by --layers")


def scored(
    source: str, pool: str, layers: list[str], manifest: Manifest, workers: int
) -> pd.DataFrame:
    """R@1: a row by layer and pool, a column by domain, or `mean`, and split.

    Args:
        pool: of the layers; EMBEDDING: the model's own embedding, and no layers.
    """
    model, widths = open_model(source), [0]
    if pool == EMBEDDING:
        layers = [EMBEDDING]
    else:
        model = with_layers(model, LayersConfig(of=layers, pool=pool))
        alone = (LayersConfig(of=[layer], pool=pool) for layer in layers)
        widths = [with_layers(open_model(source), one).embedder.dim for one in alone]
    accelerator = make_accelerator()
    embedder = model.embedder.to(accelerator.device)
    found: dict[tuple, dict] = {(layer, pool): {} for layer in layers}
    for split in SPLITS:
        rows = manifest.split(split)
        rows = rows.assign(role="both") if split == "train" else rows
        files = [manifest.file(path) for path in rows["image_path"]]
        title = f"{pool}, {split}"
        job = {"workers": workers, "title": title}
        emb_ND = embed_files(accelerator, embedder, model.preprocess, files, **job)
        parts = np.split(emb_ND, np.cumsum(widths)[:-1], axis=1)
        for layer, part_ND in zip(layers, parts, strict=True):
            scores = quick_scores(np.ascontiguousarray(part_ND), rows)
            found[layer, pool]["mean", split] = scores["r_at_1"]
            for name, values in scores["domains"].items():
                found[layer, pool][name, split] = values["r_at_1"]
    table = pd.DataFrame(found).T
    table.columns = table.columns.set_names(["domain", "split"])
    return table.rename_axis(["layer", "pool"])


if __name__ == "__main__":
    main()
