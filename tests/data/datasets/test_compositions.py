"""The compositions of benchmarks and winners: valid, and on miniatures they make legal mixes."""

from pathlib import Path

import pandas as pd
import pytest

from guie.config import load_config
from guie.config.data import DatasetSource, MixConfig
from guie.curation.thinning import read_source
from guie.data.datasets.finding import located
from guie.data.manifest import DomainDeclaration, Sidecar, check
from miniatures import MINIATURES, SMALL_SPLITS

MIXES = sorted((Path(__file__).parents[3] / "configs" / "mixes").glob("*.yaml"))


class Ensemble(MixConfig):
    """A mix of public datasets alone."""

    sources: list[DatasetSource]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Every dataset in small, side by side."""
    root = tmp_path_factory.mktemp("input")
    for make in MINIATURES.values():
        make(root)
    return root


def in_small(source: DatasetSource, root: Path) -> DatasetSource:
    """The source on a miniature, which is incomplete and has few classes."""
    small = {**source.options, **SMALL_SPLITS.get(source.kind, {})}
    if source.kind == "gldv2":  # the miniature has the cleaned list
        small["train_list"] = "clean"
    folder = str(located(source.kind, [root]))
    return source.model_copy(update={"partial": True, "path": folder, "options": small})


@pytest.mark.parametrize("path", MIXES, ids=lambda path: path.stem)
def test_the_sources_fit_together(path, data):
    config = load_config(path, Ensemble)
    assert (config.name, config.out) == (path.stem, f"input/{path.stem}.parquet")
    tables, declared = [], {}
    for source in config.sources:
        manifest, _ = read_source(in_small(source, data), config.seed)
        prefix = manifest.root.relative_to(data).as_posix() + "/"
        tables.append(manifest.table.assign(image_path=prefix + manifest.table["image_path"]))
        for name, new in manifest.sidecar.domains.items():
            old = declared.get(name, DomainDeclaration())
            declared[name] = DomainDeclaration(
                shared_classes=old.shared_classes or new.shared_classes,
                index_is_train=old.index_is_train or new.index_is_train,
            )
    table = pd.concat(tables, ignore_index=True)
    assert config.benchmark != (table["split"] == "train").any()
    assert check(table, Sidecar(domains=declared)) == []


def test_benchmarks_have_a_domain_a_dataset():
    domains = {
        path.stem: [source.domain for source in load_config(path, Ensemble).sources]
        for path in MIXES
    }
    assert len(set(domains["puma"])) == 8
    uned = ["food2k", "cars", "sop", "inshop", "inat", "met", "gldv2", "rp2k"]
    assert domains["uned_own"] == uned
    assert [domains[f"unify_{n}"] for n in (1, 2, 3, 4)] == [
        ["cub", "cars196", "inshop"],
        ["sop", "vehicleid", "inshop"],
        ["imagenet", "cub"],
        ["imagenet", "cars196"],
    ]
