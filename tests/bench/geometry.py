"""How several models fill their space: room and directions of each domain, classes apart, the unseen near.

python tests/bench/geometry.py --manifest $M --out runs/geometry --embeddings own=folder all=u.npz
python tests/bench/geometry.py --manifest $M --out runs/geometry --embeddings all=16.npz one=16.npz:48 --train

Embeddings are embed.py's of the test split, and with --train of the train split too (embed.py --split train
--out 16.train.npz beside 16.npz); `:48` takes the first 48 numbers alone. Of a folder the rows of each domain
are in its own file, cars.npz. Distances are compared with the first's. Prints one
table or two; writes maps.png, spectra.png, ratios.png, room.png, and with --train pairs.png and nearest.png.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, show_frame

from guie.data.manifest import load_manifest
from guie.evaluation import geometry
from guie.evaluation.files import load_embeddings
from guie.evaluation.knn import unit_vectors
from guie.report.figures import densities, domain_bars, domain_map, project, sample_rows, spectra

AXES = 64  # of a spectrum, drawn
Spaces = dict[str, np.ndarray]  # by model: unit vectors in the order of a table's rows


def room(unit_ND: np.ndarray, table: pd.DataFrame) -> pd.Series:
    """Each domain's mean distance between classes, relative to that over all images.

    Below 1, the domain occupies a smaller region than the whole data set. Compare a specialist, whose
    domain is its whole data set, with a model of all domains. NaN for a domain with one class.
    """
    whole = apart(unit_ND, table["label"])
    found = {}
    for domain, rows in table.reset_index(drop=True).groupby("domain"):
        enough = rows["label"].nunique() > 1
        found[domain] = apart(unit_ND[rows.index], rows["label"]) / whole if enough else np.nan
    return pd.Series(found)


def apart(unit_ND: np.ndarray, labels: pd.Series) -> float:
    codes_N, rng = pd.factorize(labels)[0], np.random.default_rng(0)
    one, other = geometry.pairs_between(codes_N, geometry.PAIRS, rng)
    return float(np.linalg.norm(unit_ND[one] - unit_ND[other], axis=1).mean())


def directions(unit_ND: np.ndarray) -> float:
    """The participation ratio: (sum of variances)² over the sum of squared variances.

    1 if all embeddings are on a line, D if the variance is equal in all directions.
    """
    variance_D = geometry.spectrum(unit_ND)
    return float(variance_D.sum() ** 2 / (variance_D**2).sum())


def main() -> None:
    args = arguments(__doc__, manifest=Path, embeddings=list[str], out=Path, train=False)
    files = dict(named(one) for one in args.embeddings)
    manifest = load_manifest(args.manifest)
    table = manifest.split("test").drop_duplicates("image_path").reset_index(drop=True)
    spaces = read(files, table)
    args.out.mkdir(parents=True, exist_ok=True)
    draw_spaces(spaces, table, args.out)
    show_frame(by_domain(spaces, table))
    if args.train:
        seen = manifest.split("train").drop_duplicates("image_path").reset_index(drop=True)
        of_train = {n: (file.with_suffix(".train.npz"), dim) for n, (file, dim) in files.items()}
        train = read(of_train, seen)
        show_frame(draw_crowding(spaces, table, train, seen, args.out))


def named(written: str) -> tuple[str, tuple[Path, int | None]]:
    """`NAME=E.npz:48` -> the name, the file, how many of its numbers; None: all."""
    name, _, rest = written.partition("=")
    file, _, dim = rest.partition(":")
    return name, (Path(file), int(dim) if dim else None)


def read(files: dict[str, tuple[Path, int | None]], table: pd.DataFrame) -> Spaces:
    return {name: first(space(file, table), dim) for name, (file, dim) in files.items()}


def first(emb_ND: np.ndarray, dim: int | None) -> np.ndarray:
    """The first numbers, of unit length: of members side by side the first members."""
    cut_ND = emb_ND[:, :dim]
    return cut_ND / np.linalg.norm(cut_ND, axis=1, keepdims=True)


def space(file: Path, table: pd.DataFrame) -> np.ndarray:
    if not file.is_dir():
        return unit_vectors(load_embeddings(file, table), table["image_path"].to_numpy())
    own = {domain: space(file / f"{domain}.npz", rows) for domain, rows in table.groupby("domain")}
    emb_ND = np.empty((len(table), next(iter(own.values())).shape[1]), np.float32)
    for domain, rows in table.groupby("domain").groups.items():
        emb_ND[rows] = own[domain]
    return emb_ND


def draw_spaces(spaces: Spaces, table: pd.DataFrame, out: Path) -> None:
    """Maps, spectra, ratios over the first space, and room."""
    domains = table.groupby("domain").groups
    rows = sample_rows(table)
    points = {name: project(emb_ND[rows.index]) for name, emb_ND in spaces.items()}
    domain_map(points, rows["domain"]).savefig(out / "maps.png")
    spectra({
        domain: {name: geometry.spectrum(emb_ND[own])[:AXES] for name, emb_ND in spaces.items()}
        for domain, own in domains.items()
    }).savefig(out / "spectra.png")  # fmt: skip
    rooms = {name: room(emb_ND, table) for name, emb_ND in spaces.items()}
    domain_bars(pd.DataFrame(rooms), "room of a domain").savefig(out / "room.png")
    first, *others = spaces
    if others:
        ratios = pd.concat([
            ratio_rows(spaces[name], spaces[first], table.loc[own], domain).assign(panel=name)
            for name, (domain, own) in product(others, domains.items())
        ])  # fmt: skip
        densities(ratios, f"distance over that of {first}", mark=1).savefig(out / "ratios.png")


def ratio_rows(
    emb_ND: np.ndarray, over_ND: np.ndarray, own: pd.DataFrame, domain: str
) -> pd.DataFrame:
    pairs = geometry.draw_pairs(own["label"], 5000)
    ratio_P = geometry.distance_ratios(emb_ND[own.index], over_ND[own.index], pairs)
    return pd.DataFrame({"value": ratio_P, "line": domain, "dash": kind_of(pairs)})


def kind_of(pairs: geometry.Pairs) -> np.ndarray:
    return np.where(pairs.same, "one class", "two classes")


def by_domain(spaces: Spaces, table: pd.DataFrame) -> pd.DataFrame:
    """A line a model: of each domain its room, and in how many directions it spreads."""
    lines = {}
    for name, emb_ND in spaces.items():
        own_room = room(emb_ND, table)
        lines[name] = {
            domain: f"{own_room[domain]:.2f}, {directions(emb_ND[own]):.1f}"
            for domain, own in table.groupby("domain").groups.items()
        } | {"all": f"{directions(emb_ND):.1f}"}
    return pd.DataFrame(lines).T


def draw_crowding(
    spaces: Spaces, table: pd.DataFrame, train: Spaces, seen: pd.DataFrame, out: Path
) -> pd.DataFrame:
    """DREML's figures 4 and 5, and their numbers."""
    pairs = {
        "train": geometry.draw_pairs(seen["label"]),
        "test": geometry.draw_pairs(table["label"]),
    }
    alike, near, lines = [], [], {}
    for name, emb_ND in spaces.items():
        for split, space in (("train", train[name]), ("test", emb_ND)):
            cosine_P = geometry.cosines(space, pairs[split])
            alike.append(pd.DataFrame({"value": cosine_P, "panel": name, "line": split,
                                       "dash": kind_of(pairs[split])}))  # fmt: skip
        nearest_N = geometry.nearest(emb_ND, train[name])
        near.append(pd.DataFrame({"value": nearest_N, "panel": "", "line": name, "dash": "all"}))
        of_test = alike[-1]
        strangers = of_test.loc[of_test["dash"] == "two classes", "value"]
        lines[name] = {
            "two test classes above .75": f"{(strangers > 0.75).mean():.4f}",
            "test to nearest train, median": f"{np.median(nearest_N):.3f}",
            "above .9": f"{(nearest_N > 0.9).mean():.3f}",
        }
    densities(pd.concat(alike), "cosine").savefig(out / "pairs.png")
    densities(pd.concat(near), "cosine of a test image to its nearest of train").savefig(
        out / "nearest.png"
    )
    return pd.DataFrame(lines).T


if __name__ == "__main__":
    main()
