"""Planted copies, conflicts and leaks are found, and nearly nothing else: precision and recall."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageOps

import curate
from guie.config.data import CleaningConfig, NearConfig
from guie.config.loading import to_yaml
from guie.curation.cleaning import clean
from guie.curation.duplicates.differences import ALTERATIONS, PixelDifferences
from guie.curation.duplicates.links import Links, find_links
from guie.curation.features import embed_for
from guie.curation.findings import stops
from guie.data.images import open_as_seen
from guie.rows.checks import Checks
from guie.rows.comparison import compressed, cut
from guie.rows.fingerprints import FINGERPRINTS, thumbnails

REAL_MODEL = "timm:vit_tiny_patch16_224:{}/weights/" + (
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"
)


PLANTED: list[Callable[[Image.Image], Image.Image]] = [
    *ALTERATIONS,
    lambda image: image.resize((image.width, round(0.8 * image.height))),
    lambda image: ImageOps.expand(image, max(image.size) // 10, "white"),
    lambda image: ImageOps.expand(image, max(image.size) // 12, "black"),
]


def plant(rows: pd.DataFrame, root: Path, folder: str, how: Sequence[Callable]) -> pd.DataFrame:
    """Save an altered copy of each row's image, one alteration after another.

    Returns the rows with image_path of the copy, and the column original.
    """
    paths = [f"{folder}/{n:04d}.png" for n in range(len(rows))]
    (root / folder).mkdir(parents=True)
    for n, (path, original) in enumerate(zip(paths, rows["image_path"], strict=True)):
        how[n % len(how)](open_as_seen(root / original)).save(root / path)
    return rows.assign(original=rows["image_path"], image_path=paths)


def known(table: pd.DataFrame, root: Path) -> pd.DataFrame:
    """The table with the fingerprints of each image."""
    checks = Checks(FINGERPRINTS, root, table["image_path"].unique())
    checks.fill(1, "fingerprints")
    prints = checks.table().reindex(table["image_path"]).set_axis(table.index)
    return table.assign(**prints).reset_index(drop=True)


def some_toys(toy_manifest: Path, root: Path) -> pd.DataFrame:
    """Copy the toy images; return the rows of every third domain."""
    shutil.copytree(toy_manifest.parent, root)
    table = pd.read_csv(root / "manifest.csv")
    return table[table["domain"].isin(sorted(table["domain"].unique())[::3])]


@pytest.fixture(scope="module")
def copied(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory):
    """A folder with a near copy of every other image, and its rows."""
    root = tmp_path_factory.mktemp("planted") / "set"
    table = some_toys(toy_manifest, root)
    copies = plant(table.iloc[::2], root, "near", PLANTED)
    return root, known(pd.concat([table, copies]), root)


def pairs_of(found: pd.DataFrame) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in zip(found["image_path"], found["other_path"], strict=True)}


def linked_pairs(links: Links) -> set[frozenset[str]]:
    """Every pair of images that have a picture in common, or near ones."""
    paths = links.pictures.reset_index().groupby("picture")["image_path"].agg(list)
    near = zip(links.near["picture"], links.near["other"], strict=True)
    pictures = [*near, *((picture, picture) for picture in paths.index)]
    pairs = (product(paths[one], paths[other]) for one, other in pictures)
    return {frozenset(pair) for pair in chain.from_iterable(pairs) if pair[0] != pair[1]}


def planted_pairs(table: pd.DataFrame) -> set[frozenset[str]]:
    copies = table.dropna(subset=["original"])
    return pairs_of(copies.rename(columns={"original": "other_path"}))


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, REAL_MODEL])
def test_near_copies_are_found(copied, model, request, tmp_path):
    root, table = copied
    embed = partial(thumbnails, root=root, workers=1)
    if model:
        name = model.format(request.getfixturevalue("real_folder"))
        embed = embed_for(CleaningConfig(model=name, size_px=112), root, tmp_path, 0)
    links = find_links(table, NearConfig(), embed, PixelDifferences(root, 1, table))
    found, planted = linked_pairs(links), planted_pairs(table)
    assert len(found & planted) >= max(0.98 * len(found), 0.95 * len(planted))


@pytest.fixture(scope="module")
def faulty(toy_manifest, tmp_path_factory):
    """A folder with bytewise copies of training images, its table, and the pairs by kind of fault."""
    root = tmp_path_factory.mktemp("faulty") / "set"
    table = some_toys(toy_manifest, root)
    train = table[table["split"] == "train"]
    changes = {
        "exact duplicate": {},
        "conflict": {"label": "other/class"},
        "leak": {"split": "test", "role": "both", "label": "held/out"},
    }
    rows, planted = [table], {}
    for number, (kind, change) in enumerate(changes.items()):
        originals, folder = train.iloc[number:24:6], f"{kind.split()[-1]}s"
        (root / folder).mkdir()
        paths = [f"{folder}/{Path(p).parent.name}-{Path(p).name}" for p in originals["image_path"]]
        for path, original in zip(paths, originals["image_path"], strict=True):
            shutil.copy(root / original, root / path)
        rows.append(originals.assign(image_path=paths, **change))
        planted[kind] = set(map(frozenset, zip(paths, originals["image_path"], strict=True)))
    return root, known(pd.concat(rows, ignore_index=True), root), planted


@pytest.mark.slow
def test_planted_faults_are_all_found_and_nothing_else(faulty):
    root, table, planted = faulty
    seen = partial(thumbnails, root=root, workers=1), PixelDifferences(root, 1, table)
    cleaned, found, *_ = clean(table, CleaningConfig(leaks="drop_train"), *seen)
    for kind, pairs in planted.items():
        assert pairs_of(found[found["kind"] == kind]) == pairs, kind
    assert set(found["kind"]) <= {*planted, "near duplicate"}
    left = set(cleaned.loc[cleaned["split"] == "train", "image_path"])
    assert not any(pair & left for pair in planted["conflict"]), "both of a conflict go"
    assert all(len(pair & left) == 1 for pair in planted["exact duplicate"])
    held_out = table[table["split"] != "train"]
    assert set(cleaned.loc[cleaned["split"] != "train", "image_path"]) == {*held_out["image_path"]}
    leaked = {path for pair in planted["leak"] for path in pair} - {*held_out["image_path"]}
    assert leaked and not leaked & left

    lines = stops(clean(table, CleaningConfig(), *seen).findings).splitlines()
    assert lines[0].startswith(f"{len(planted['leak'])} training images are copies")
    assert "set clean.leaks to drop_train" in lines[0]
    assert len(lines) == 1 + len(planted["leak"]) and "leaks/" in lines[1]
    config = CleaningConfig(leaks="declared", conflicts="report")
    kept, found, *_ = clean(table, config, *seen)
    assert not stops(found)
    assert set(found.loc[found["kind"] == "leak", "action"]) == {"declared"}
    assert leaked <= set(kept["image_path"])


@pytest.mark.slow
def test_copies_of_logos_and_packages_are_dropped_and_a_low_limit_is_named(
    real_folder, tmp_path, capsys
):
    """30 copies among 150 classes whose images look alike: styles of a logo, yoghurts of a shelf."""
    images = real_folder / "data/mini-uned"
    table = pd.read_csv(images / "manifest.csv")
    table = table[table["domain"].isin(["packages", "logos"]) & (table["split"] == "train")]
    rng = np.random.default_rng(0)
    drawn = rng.permutation(sorted(table["label"].unique()))[:150]
    table = table[table["label"].isin(drawn)]
    table["image_path"] = "set/" + table["image_path"]
    (tmp_path / "set").symlink_to(images)
    changes = [
        partial(compressed, quality=50),
        lambda image: image.resize((image.width // 2, image.height // 2)),
        partial(cut, share=0.05),
    ]
    copies = plant(table.iloc[rng.permutation(len(table))[:30]], tmp_path, "planted", changes)
    pd.concat([table, copies.drop(columns="original")]).to_csv(tmp_path / "set.csv", index=False)
    mix = {"name": "mix", "out": f"{tmp_path}/mix.csv"}
    mix["sources"] = [{"kind": "manifest", "path": f"{tmp_path}/set.csv"}]

    def dropped(near: dict[str, float]) -> tuple[int, int]:
        """Return the number of planted and of other pairs that lose an image."""
        # Most copies are of packages, so more than 5 % of their images go
        config = mix | {"clean": {"near": near, "share_max": 0.5}}
        (tmp_path / "mix.yaml").write_text(to_yaml(config))
        curate.main(["--config", f"{tmp_path}/mix.yaml", "--workers", "2"])
        found = pd.read_csv(tmp_path / "mix.findings.csv", keep_default_na=False)
        pairs = pairs_of(found[found["action"] == "dropped"])
        return len(pairs & planted_pairs(copies)), len(pairs - planted_pairs(copies))

    planted, others = dropped({})
    assert planted >= 24 and others <= 1
    assert "look-alikes" not in capsys.readouterr().out
    assert dropped({"false_sure": 1e-7, "false_copies": 1e-6}) == (0, 0)
    note = "logos, labels in common: look-alikes differ as little as copies"
    assert note in capsys.readouterr().out
