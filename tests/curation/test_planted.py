"""Planted copies, conflicts and leaks are found, and nearly nothing else: precision and recall."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import ImageOps
from planted import ALTERATIONS, known, pixels_of, plant

import curate
import toydomains
from guie.base.errors import UserError
from guie.config.data import CleaningConfig, NearConfig
from guie.config.loading import to_yaml
from guie.curation.cleaning import Evidence, clean
from guie.curation.duplicates.findings import refuse
from guie.curation.duplicates.links import Links, find_links
from guie.curation.features import embed_for
from guie.data.images import open_as_seen
from guie.rows.checks import thumbnails
from guie.rows.comparison import compressed, cut

REAL_MODEL = "timm:vit_tiny_patch16_224:{}/weights/" + (
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k.fp16.safetensors"
)


@pytest.fixture(scope="module")
def copied(toy_manifest: Path, tmp_path_factory: pytest.TempPathFactory):
    """Domains of the toy benchmark, a near copy of every other image; the folder and its rows."""
    root = tmp_path_factory.mktemp("planted") / "set"
    shutil.copytree(toy_manifest.parent, root)
    table = pd.read_csv(root / "manifest.csv")
    table = table[table["domain"].isin(sorted(table["domain"].unique())[::3])]
    return root, known(pd.concat([table, plant(table, root, "near", every=2)]), root)


def pairs_of(found: pd.DataFrame) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in zip(found["image_path"], found["other_path"], strict=True)}


def linked_pairs(links: Links) -> set[frozenset[str]]:
    """Every pair of images that have a picture in common, or near ones."""
    paths = links.pictures.reset_index().groupby("picture")["image_path"].agg(list)
    near = zip(links.near["picture"], links.near["other"], strict=True)
    pictures = [*near, *((picture, picture) for picture in paths.index)]
    pairs = (product(paths[one], paths[other]) for one, other in pictures)
    return {frozenset(pair) for pair in chain.from_iterable(pairs) if pair[0] != pair[1]}


def truth_of(table: pd.DataFrame) -> dict[frozenset[str], str]:
    """{pair of paths: how one was made of the other}."""
    made = table.dropna(subset=["original"])
    pairs = zip(made["image_path"], made["original"], strict=True)
    return dict(zip(map(frozenset, pairs), made["how"], strict=True))


def measured(links: Links, table: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall over all pairs, and recall by alteration."""
    found, truth = linked_pairs(links), truth_of(table)
    rows = [("all", len(truth), len(found & truth.keys()) / len(truth))]
    for how in ALTERATIONS:
        pairs = {pair for pair, name in truth.items() if name == how}
        if pairs:
            rows.append((how, len(pairs), len(found & pairs) / len(pairs)))
    measures = pd.DataFrame(rows, columns=["alteration", "pairs", "recall"])
    return measures.assign(
        precision=[len(found & truth.keys()) / len(found)] + [None] * len(rows[1:])
    )


@pytest.mark.slow
def test_near_copies_without_a_model(copied):
    root, table = copied
    links = find_links(
        table, NearConfig(), partial(thumbnails, root=root, workers=1), pixels_of(table, root)
    )
    all_pairs = measured(links, table).iloc[0]
    assert all_pairs["precision"] >= 0.98 and all_pairs["recall"] >= 0.95


@pytest.mark.slow
def test_near_copies_confirmed_by_a_real_model(copied, real_folder, tmp_path):
    root, table = copied
    config = CleaningConfig(model=REAL_MODEL.format(real_folder), size_px=112)
    links = find_links(
        table, NearConfig(), embed_for(config, root, tmp_path, 0), pixels_of(table, root)
    )
    all_pairs = measured(links, table).iloc[0]
    assert all_pairs["precision"] >= 0.98 and all_pairs["recall"] >= 0.95


@pytest.mark.slow
def test_links_do_not_depend_on_row_order(copied):
    root, table = copied
    embed = partial(thumbnails, root=root, workers=1)
    first = table["image_path"].iloc[:30]
    part = table[table["image_path"].isin(first) | table["original"].isin(first)]
    shuffled = part.sample(frac=1, random_state=0)
    one, other = (
        find_links(rows, NearConfig(), embed, pixels_of(rows, root)) for rows in (part, shuffled)
    )
    assert len(one.near)
    pd.testing.assert_series_equal(one.pictures, other.pictures)
    pd.testing.assert_frame_equal(one.near, other.near)


def plant_faults(table: pd.DataFrame, root: Path) -> tuple[pd.DataFrame, dict[str, set[frozenset]]]:
    """The table with bytewise copies of training images: duplicates, conflicts and leaks."""
    train = table[table["split"] == "train"]
    chosen = {"exact duplicate": train.iloc[0:24:6], "conflict": train.iloc[1:24:6]}
    chosen["leak"] = train.iloc[2:24:6]
    rows, truth = [table], {}
    for kind, originals in chosen.items():
        folder = f"{kind.split()[-1]}s"
        (root / folder).mkdir()
        paths = [f"{folder}/{Path(p).parent.name}-{Path(p).name}" for p in originals["image_path"]]
        for path, original in zip(paths, originals["image_path"], strict=True):
            shutil.copy(root / original, root / path)
        copies = originals.assign(image_path=paths)
        if kind == "conflict":
            copies["label"] = "other/class"
        if kind == "leak":
            copies = copies.assign(split="test", role="both", label="held/out")
        rows.append(copies)
        truth[kind] = set(map(frozenset, zip(paths, originals["image_path"], strict=True)))
    return pd.concat(rows, ignore_index=True), truth


@pytest.fixture(scope="module")
def faulty(toy_manifest, tmp_path_factory):
    """A folder with planted faults, its table with the hashes, and the pairs by kind of fault."""
    root = tmp_path_factory.mktemp("faulty") / "set"
    shutil.copytree(toy_manifest.parent, root)
    table = pd.read_csv(root / "manifest.csv")
    table = table[table["domain"].isin(sorted(table["domain"].unique())[::3])]
    table, truth = plant_faults(table, root)
    return root, known(table, root), truth


@pytest.mark.slow
def test_planted_faults_are_all_found_and_nothing_else(faulty):
    root, table, truth = faulty
    config = CleaningConfig(leaks="drop_train")
    embed = partial(thumbnails, root=root, workers=1)
    cleaned, found, *_ = clean(table, config, Evidence(embed, pixels_of(table, root)))
    for kind, pairs in truth.items():
        assert pairs_of(found[found["kind"] == kind]) == pairs, kind
    assert set(found["kind"]) <= {*truth, "near duplicate"}

    left = set(cleaned.loc[cleaned["split"] == "train", "image_path"])
    assert not any(pair & left for pair in truth["conflict"]), "both of a conflict go"
    assert all(len(pair & left) == 1 for pair in truth["exact duplicate"])
    held_out = table[table["split"] != "train"]
    assert set(cleaned.loc[cleaned["split"] != "train", "image_path"]) == {*held_out["image_path"]}
    leaked = {path for pair in truth["leak"] for path in pair} - {*held_out["image_path"]}
    assert leaked and not leaked & left


@pytest.mark.slow
def test_a_leak_stops_with_the_pairs_unless_declared(faulty):
    root, table, truth = faulty
    seen = Evidence(partial(thumbnails, root=root, workers=1), pixels_of(table, root))
    with pytest.raises(UserError) as caught:
        refuse(clean(table, CleaningConfig(), seen).findings)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{len(truth['leak'])} training images are copies")
    assert "set clean.leaks to drop_train" in lines[0]
    assert len(lines) == 1 + len(truth["leak"]) and "leaks/" in lines[1]

    config = CleaningConfig(leaks="declared", conflicts="report")
    kept, found, *_ = clean(table, config, seen)
    refuse(found)
    assert set(found.loc[found["kind"] == "leak", "action"]) == {"declared"}
    leaked = {path for pair in truth["leak"] for path in pair}
    assert leaked <= set(kept["image_path"])


@pytest.mark.slow
def test_the_readmes_table(tmp_path, real_folder):
    """Run with `pytest -m slow -s tests/curation/test_planted.py`."""
    manifest = toydomains.draw(tmp_path / "set", images=2000, seed=7)
    table = pd.read_csv(manifest)
    root = manifest.parent
    table = known(pd.concat([table, plant(table, root, "near", every=2)]), root, workers=2)
    config = CleaningConfig(model=REAL_MODEL.format(real_folder), size_px=112)
    by = {
        "thumbnails": partial(thumbnails, root=root, workers=2),
        "ViT-Ti/16 at 112 px": embed_for(config, root, tmp_path / "features", 2),
    }
    for name, embed in by.items():
        measures = measured(
            find_links(table, NearConfig(), embed, pixels_of(table, root, 2)), table
        )
        print(f"\nnear-duplicates among {len(table):,} images, confirmed by {name}")
        print(measures.to_string(index=False, float_format="{:.3f}".format, na_rep=""))
        assert measures["recall"].iloc[0] > 0.95 and measures["precision"].iloc[0] > 0.98


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
    (tmp_path / "planted").mkdir()
    changes = [
        partial(compressed, quality=50),
        lambda image: image.resize((image.width // 2, image.height // 2)),
        partial(cut, share=0.05),
    ]
    copies = table.iloc[rng.permutation(len(table))[:30]].assign(
        original=lambda rows: rows["image_path"],
        image_path=[f"planted/{number:02d}.png" for number in range(30)],
    )
    for number, copy in enumerate(copies.itertuples()):
        changed = changes[number % 3](open_as_seen(tmp_path / copy.original))
        changed.save(tmp_path / copy.image_path)
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
        planted = {
            frozenset(pair) for pair in zip(copies["image_path"], copies["original"], strict=True)
        }
        return len(pairs & planted), len(pairs - planted)

    planted, others = dropped({})
    assert planted >= 24 and others <= 1
    assert "look-alikes" not in capsys.readouterr().out
    assert dropped({"false_sure": 1e-7, "false_copies": 1e-6}) == (0, 0)
    assert (
        "logos, labels in common: look-alikes differ as little as copies" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_mirror_images_are_found_where_they_are_asked_for_without_a_model(toy_manifest, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(toy_manifest.parent, root)
    table = pd.read_csv(root / "manifest.csv").iloc[:60]
    chosen = table.iloc[::6]
    (root / "mirrored").mkdir()
    paths = [f"mirrored/{n}.png" for n in range(len(chosen))]
    for path, original in zip(paths, chosen["image_path"], strict=True):
        ImageOps.mirror(open_as_seen(root / original)).save(root / path)
    mirrored = chosen.assign(image_path=paths, original=chosen["image_path"], how="mirrored")
    table = known(pd.concat([table, mirrored], ignore_index=True), root)
    seen = partial(thumbnails, root=root, workers=1), pixels_of(table, root)
    found = linked_pairs(find_links(table, NearConfig(mirrored=True), *seen))
    assert len(found & truth_of(table).keys()) >= 0.9 * len(chosen)
