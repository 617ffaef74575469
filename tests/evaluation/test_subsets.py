"""Test sets within a test set, and galleries of one drawn image a class (VehicleID)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scored_tables import table_of

from guie.base.seeds import seeded_draws
from guie.evaluation.files import with_subsets
from guie.evaluation.protocols.catalogue import RECALLS, protocol_of
from guie.evaluation.protocols.evaluating import run_protocol

VEHICLES = {"small": range(6), "medium": range(9), "large": range(13)}


@pytest.fixture
def vehicles() -> tuple[pd.DataFrame, np.ndarray]:
    """Thirteen vehicles of five images, in an order of no meaning, and embeddings that half find them."""
    rng = np.random.default_rng(0)
    rows = [(f"{v}/{i}.jpg", f"vehicles/{v}", "both") for v in range(13) for i in range(5)]
    table = table_of(*(rows[i] for i in rng.permutation(len(rows))))
    class_T = table["label"].str.rpartition("/")[2].astype(int).to_numpy()
    embeddings_TD = rng.normal(size=(13, 8))[class_T] + 1.2 * rng.normal(size=(len(table), 8))
    return table, embeddings_TD.astype(np.float32)


def subsets_of(table: pd.DataFrame) -> pd.DataFrame:
    class_T = table["label"].str.rpartition("/")[2].astype(int)
    parts = [
        pd.DataFrame({"subset": name, "image_path": table["image_path"][class_T.isin(own)]})
        for name, own in VEHICLES.items()
    ]
    return pd.concat(parts)


def test_each_subset_scores_as_a_manifest_of_its_own(vehicles) -> None:
    table, embeddings_TD = vehicles
    whole = with_subsets(table, subsets_of(table))
    protocol = protocol_of("vehicleid").over(whole)
    assert len(protocol.parts) == 6 and "R@5, re-id, small" in {h.title for h in protocol.headlines}
    report, _ = run_protocol(protocol, embeddings_TD, whole, draws=20)
    for name, own in VEHICLES.items():
        mine = np.isin(table["label"], [f"vehicles/{v}" for v in own])
        alone = table[mine].reset_index(drop=True)
        assert protocol_of("vehicleid").over(alone) is protocol_of("vehicleid")
        expected, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD[mine], alone, draws=20)
        for title, value in expected["headline"].items():
            assert report["headline"][f"{title}, {name}"] == value
        for part, found in expected["parts"].items():
            assert report["parts"][f"{part}, {name}"]["domains"] == found["domains"]
    assert report["headline"]["R@1, small"] > report["headline"]["R@1, large"] > 0


def test_a_subset_that_the_table_lacks_is_not_scored(vehicles) -> None:
    table, _ = vehicles
    message = subsets_of(table)
    small = with_subsets(table, message[message["subset"] == "small"])
    assert [part.subset for part in protocol_of("vehicleid").over(small).parts] == ["small"] * 2


def test_re_identification_is_the_mean_of_its_draws(vehicles) -> None:
    """Against loops: the first of a class by its draw is its gallery, all others ask."""
    table, embeddings_TD = vehicles
    units_TD = embeddings_TD / np.linalg.norm(embeddings_TD, axis=1, keepdims=True)
    labels, found = table["label"].tolist(), {1: [], 5: []}
    for draw in range(10):
        order = np.argsort(seeded_draws(draw, table["image_path"]))
        gallery = {labels[row]: row for row in order[::-1]}
        queries = [row for row in range(len(table)) if row not in gallery.values()]
        for k, values in found.items():
            hits = []
            for row in queries:
                near = sorted(gallery.values(), key=lambda g: -float(units_TD[g] @ units_TD[row]))
                hits.append(labels[row] in [labels[g] for g in near[:k]])
            values.append(np.mean(hits))
    report, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD, table, draws=50)
    assert report["headline"]["R@1, re-id"] == pytest.approx(np.mean(found[1]), abs=1e-12)
    assert report["headline"]["R@5, re-id"] == pytest.approx(np.mean(found[5]), abs=1e-12)
    part = report["parts"]["re-identification"]
    assert part["domains"]["vehicles"]["queries"] == 13 * 4
    low, high = part["intervals"]["mean"]["r_at_1"]
    assert low < report["headline"]["R@1, re-id"] < high
    again = table.iloc[::-1].reset_index(drop=True)
    turned, _ = run_protocol(protocol_of("vehicleid"), embeddings_TD[::-1], again, draws=0)
    assert turned["headline"] == pytest.approx(report["headline"]), "the order of rows says nothing"
    assert RECALLS["vehicleid"] == (1, 5)
