"""Does an index of several regions an image find more? On images as they are, and pasted into others.

python tests/bench/regions.py --model timm:vit_tiny_patch16_224:WEIGHTS --manifest M
                              [--domains emoji leaves] [--out FILE.json]

Queries are whole images. An index image is as near as its nearest region, see guie.data.regions. With
clutter, every index image is pasted on a train image of another domain, at a random place, at half its longer
side. The metrics are of the merged index, mean over domains, or over those named: the ones that the model
did not train on. The gain in R@1 has its 95 % interval over classes.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments
from reranking import KEYS, compared, queries_of, show_and_save
from tqdm import tqdm

from guie.base.devices import make_accelerator
from guie.data.dataset import EvalDataset
from guie.data.images import open_as_seen
from guie.data.manifest import load_manifest
from guie.data.regions import GRIDS, Region, regions_of
from guie.evaluation.knn import unit_vectors
from guie.evaluation.metrics import ranking_metrics
from guie.evaluation.opened import load_embedding_model
from guie.evaluation.search import searches
from guie.rows.embedding import embed_dataset

DEPTH = 100
CLASSES, IMAGES = 40, 6  # of a domain, of a class: at most
MODEL_PX = 112
SIDE_PX, SHARE = 320, 0.5  # of an image with clutter; of the pasted image's longer side


def cluttered(table: pd.DataFrame, others: pd.DataFrame, root: Path, folder: Path) -> None:
    """Write each image of the table, pasted on one of another domain, as `folder/<row>.jpg`."""
    rng = np.random.default_rng(0)
    domain_O = others["domain"].to_numpy(object)
    for row, (path, domain) in enumerate(
        zip(tqdm(table["image_path"], desc="clutter"), table["domain"], strict=True)
    ):
        other = rng.choice(np.flatnonzero(domain_O != domain))
        around = open_as_seen(root / others["image_path"][other]).resize((SIDE_PX, SIDE_PX))
        pasted = open_as_seen(root / path)
        scale = SIDE_PX * SHARE / max(pasted.size)
        pasted = pasted.resize([max(round(scale * side), 1) for side in pasted.size])
        room = SIDE_PX - pasted.width, SIDE_PX - pasted.height
        around.paste(pasted, tuple(int(rng.integers(0, most + 1)) for most in room))
        around.save(folder / f"{row}.jpg", quality=92)


def main() -> None:
    args = arguments(__doc__, model=str, manifest=str, domains=[""], out=str | None)
    manifest = load_manifest(args.manifest)
    table = sampled(manifest.split("test"))
    (search,) = searches("merged", queries_of(table, args.domains), table["domain"].to_numpy())
    accelerator = make_accelerator()
    with tempfile.TemporaryDirectory() as name:
        opened = load_embedding_model(args.model, accelerator, Path(name), MODEL_PX, "squash")
        opened.embedder.to(accelerator.device)
        folder = Path(name) / "clutter"
        folder.mkdir()
        cluttered(table, manifest.split("train"), manifest.root, folder)
        files = {
            "as they are": [str(manifest.root / path) for path in table["image_path"]],
            "with clutter": [str(folder / f"{row}.jpg") for row in range(len(table))],
        }
        embedded = {
            title: np.stack(
                [embed(accelerator, opened, paths, one) for one in tqdm(regions_of(max(GRIDS)))],
                axis=1,
            )
            for title, paths in files.items()
        }
    rows = []
    query_QD = embedded["as they are"][search.query_Q, 0]
    for title, emb_TRD in embedded.items():
        ways = {n: score(query_QD, emb_TRD[search.index_I, :n], search, table) for n in GRIDS}
        rows += [(title, *row) for row in compared(ways, search, table)]
    heads = ["index images", "regions", "R@1", "mMP@5", "mAP@100", "gain in R@1", "from", "to"]
    show_and_save(heads, rows, f"{len(table):,} images, {args.model}", args.out)


def sampled(table: pd.DataFrame) -> pd.DataFrame:
    """Some classes of each domain, with some images of each, all drawn at random."""
    rng = np.random.default_rng(0)
    table = table[table.groupby("label")["label"].transform("size") > 1]
    kept = [
        name
        for _, rows in table.groupby("domain")
        for name in rng.permutation(sorted(rows["label"].unique()))[:CLASSES]
    ]
    rows = table[table["label"].isin(kept)].sample(frac=1.0, random_state=0)
    return rows.groupby("label").head(IMAGES).sort_index().reset_index(drop=True)


def embed(accelerator, opened, paths: list[str], region: Region) -> np.ndarray:
    """(T, D), unit vectors of one region of each image."""
    dataset = EvalDataset(paths, opened.preprocess, [region] * len(paths))
    emb_TD = embed_dataset(accelerator, opened.embedder, dataset, batch_size=64, workers=1)
    return unit_vectors(emb_TD, np.array(paths))


def score(query_QD: np.ndarray, index_IRD: np.ndarray, search, table: pd.DataFrame) -> pd.DataFrame:
    """The metrics of each query by the best region of every index image, without its own image."""
    label_T = table["label"].to_numpy(object)
    positives_Q = np.empty(len(query_QD), int)
    relevant_QK = np.empty((len(query_QD), DEPTH), bool)
    edges = [*range(0, len(query_QD), 512), len(query_QD)]
    for start, stop in pairwise(edges):
        near_BI = np.full((stop - start, len(index_IRD)), -1.0, np.float32)
        for region in range(index_IRD.shape[1]):
            np.maximum(near_BI, query_QD[start:stop] @ index_IRD[:, region].T, out=near_BI)
        own = search.query_Q[start:stop, None] == search.index_I
        same = label_T[search.query_Q[start:stop], None] == label_T[search.index_I]
        near_BI[own] = -np.inf
        order_BK = np.argsort(-near_BI, axis=1, kind="stable")[:, :DEPTH]
        relevant_QK[start:stop] = np.take_along_axis(same & ~own, order_BK, axis=1)
        positives_Q[start:stop] = (same & ~own).sum(axis=1)
    return pd.DataFrame(ranking_metrics(relevant_QK, positives_Q, KEYS))


if __name__ == "__main__":
    main()
