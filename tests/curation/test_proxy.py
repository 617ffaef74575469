"""The proxy: repeatable, better with data that helps, and a judge for the greedy search."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional

from guie.config.data import ProxyEvaluatorConfig, SelectionRule
from guie.config.model import HeadConfig
from guie.curation.evaluators import Proxy
from guie.curation.selection import Evaluations, candidates_of, mix_name, mix_rows, search
from guie.evaluation.validation import quick_scores

CONFIG = ProxyEvaluatorConfig(
    model="timm:resnet18",
    head=HeadConfig(norm="bn", dim=12),
    epochs=3,
    min_steps=150,
    batch_size=64,
)
FEW = CONFIG.model_copy(update={"epochs": 1, "min_steps": 20})  # steps
SIGNAL, CLUTTER = 6, 24


def features(seed: int = 0) -> tuple[np.ndarray, pd.DataFrame]:
    """Three domains: a class has a place in the 6 dimensions of its domain, among 24 of clutter.

    A head learns from `fonts` and `signs` where to look; `mess` has labels drawn by lot. Only
    classes of fonts and signs validate.
    """
    rng = np.random.default_rng(seed)
    feats, rows = [], []
    for number, domain in enumerate(("fonts", "signs", "mess")):
        for place in range(40):
            center = rng.normal(size=SIGNAL)
            split = "train" if place < 24 or domain == "mess" else "val"
            for n in range(8):
                own = rng.normal(size=SIGNAL) if domain == "mess" else center
                feat = rng.normal(size=2 * SIGNAL + CLUTTER)
                feat[: 2 * SIGNAL] *= 0.4
                start = SIGNAL * (number % 2)
                feat[start : start + SIGNAL] = own + rng.normal(size=SIGNAL) * 0.3
                feats.append(feat)
                role = "train" if split == "train" else "both"
                path = f"{domain}/{place}/{n}.jpg"
                rows.append((path, f"{domain}/{place}", domain, split, role))
    columns = ["image_path", "label", "domain", "split", "role"]
    return np.array(feats, np.float16), pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def data():
    return features()


def train_rows(table: pd.DataFrame, *domains: str) -> pd.DataFrame:
    rows = table[(table["split"] == "train") & table["domain"].isin(domains)]
    return rows.reset_index(drop=True)


def test_same_rows_and_seed_give_the_same_bits(data):
    feat_NF, table = data
    rows = train_rows(table, "fonts", "signs")
    first = Proxy(feat_NF, table, FEW).score(rows, seed=3)
    torch.rand(17)  # whatever came before
    assert Proxy(feat_NF, table, FEW).score(rows, seed=3) == first
    assert Proxy(feat_NF, table, FEW).score(rows, seed=4) != first


def test_random_numbers_outside_are_left_alone(data):
    feat_NF, table = data
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    Proxy(feat_NF, table, FEW).score(train_rows(table, "fonts"), seed=0)
    assert torch.equal(torch.rand(3), wanted)


def test_rows_of_the_table_find_their_features(data):
    """Shuffled with its features, the table gives what it gave: rows are found by image_path."""
    feat_NF, table = data
    order = np.random.default_rng(1).permutation(len(table))
    mixed = table.iloc[order].reset_index(drop=True)
    rows = train_rows(table, "fonts", "signs")
    plain, shuffled = Proxy(feat_NF, table, CONFIG), Proxy(feat_NF[order], mixed, CONFIG)
    ours, theirs = plain.score(rows, seed=0), shuffled.score(rows, seed=0)
    assert ours.domains == pytest.approx(theirs.domains, abs=0.02)


def test_the_score_is_that_of_the_head(data, monkeypatch):
    feat_NF, table = data
    proxy = Proxy(feat_NF, table, FEW, metric="mmp_at_5")
    kept = []
    train = proxy._train
    monkeypatch.setattr(proxy, "_train", lambda *given: kept.append(train(*given)) or kept[-1])
    score = proxy.score(train_rows(table, "fonts"), seed=0)
    val = (table["split"] == "val").to_numpy()
    with torch.no_grad():
        emb_ND = functional.normalize(kept[0](torch.from_numpy(feat_NF[val].astype(np.float32))))
    found = quick_scores(emb_ND.numpy(), table[val].reset_index(drop=True))
    assert score.value == found["mmp_at_5"]
    assert score.domains == {
        name: found["domains"][name]["mmp_at_5"] for name in ("fonts", "signs")
    }


def test_training_on_a_domain_helps_it(data):
    feat_NF, table = data
    proxy = Proxy(feat_NF, table, CONFIG)
    fonts = proxy.score(train_rows(table, "fonts"), seed=0)
    both = proxy.score(train_rows(table, "fonts", "signs"), seed=0)
    val = (table["split"] == "val").to_numpy()
    raw = quick_scores(feat_NF[val], table[val].reset_index(drop=True))
    assert fonts.domains["fonts"] > raw["domains"]["fonts"]["r_at_1"] + 0.1
    assert fonts.domains["fonts"] > fonts.domains["signs"] + 0.2
    assert both.domains["signs"] > fonts.domains["signs"] + 0.2


def test_a_small_mix_is_trained_long_enough(data, monkeypatch):
    feat_NF, table = data
    steps = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *a: steps.append(1) or step(self, *a)
    )
    rows = train_rows(table, "fonts")  # 192 images
    for epochs, wanted in ((3, 20), (10, 30)):
        steps.clear()
        Proxy(feat_NF, table, FEW.model_copy(update={"epochs": epochs})).score(rows, seed=0)
        assert len(steps) == wanted


def test_identity_tells_features_rows_and_settings_apart(data):
    feat_NF, table = data
    found = {Proxy(feat_NF, table, CONFIG).identity()}
    assert found == {Proxy(feat_NF.copy(), table.copy(), CONFIG).identity()}
    found.add(Proxy(feat_NF * 2, table, CONFIG).identity())
    found.add(Proxy(feat_NF, table.assign(label="x"), CONFIG).identity())
    found.add(Proxy(feat_NF, table, CONFIG.model_copy(update={"lr": 1e-3})).identity())
    found.add(Proxy(feat_NF, table, CONFIG, metric="mmp_at_5").identity())
    assert len(found) == 5


@pytest.mark.slow
def test_greedy_selection_takes_what_helps_and_leaves_the_mess(data, tmp_path):
    feat_NF, table = data
    proxy = Proxy(feat_NF, table, CONFIG)
    evaluations = Evaluations(
        tmp_path / "log.jsonl",
        proxy.identity(),
        lambda mix, seed: proxy.score(mix_rows(table, mix, "domain", seed=0), seed),
    )
    candidates = candidates_of(table, "domain", [None])
    steps = search(
        candidates, evaluations, SelectionRule(seeds=2, confirm_seeds=2), tmp_path / "steps.json"
    )
    assert mix_name(steps[-1].mix) == "fonts+signs" and not steps[-1].accepted
    assert steps[1].gain > 0.1
