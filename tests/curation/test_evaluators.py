"""Evaluators of a mix: the proxy repeats itself and rewards data that helps; runs have names and folders."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import TypeAdapter
from torch.nn import functional

from guie.base.files import write_text
from guie.config import RunConfig, config_from
from guie.config.data import MixConfig, ProxyEvaluatorConfig, SelectionConfig
from guie.config.loading import to_yaml
from guie.config.model import HeadConfig
from guie.config.types import Name
from guie.curation.evaluators import FullTraining, Proxy
from guie.data.manifest import DomainDeclaration, Sidecar
from guie.data.manifest.reading import read_sidecar
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
COLUMNS = ["image_path", "label", "domain", "split", "role"]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, pd.DataFrame]:
    """Three domains: a class has a place in the 6 dimensions of its domain, among 24 of clutter.

    A head learns from `fonts` and `signs` where to look; `mess` has random labels. Only
    classes of fonts and signs validate.
    """
    rng = np.random.default_rng(0)
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
    return np.array(feats, np.float16), pd.DataFrame(rows, columns=COLUMNS)


def train_rows(table: pd.DataFrame, *domains: str) -> pd.DataFrame:
    rows = table[(table["split"] == "train") & table["domain"].isin(domains)]
    return rows.reset_index(drop=True)


def test_same_rows_and_seed_give_the_same_bits_and_use_no_random_number(data):
    """Shuffled with its features, the table gives the same scores: rows are found by image_path."""
    feat_NF, table = data
    rows = train_rows(table, "fonts", "signs")
    first = Proxy(feat_NF, table, FEW).score(rows, seed=3)
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    assert Proxy(feat_NF, table, FEW).score(rows, seed=3) == first
    assert torch.equal(torch.rand(3), wanted)
    assert Proxy(feat_NF, table, FEW).score(rows, seed=4) != first
    order = np.random.default_rng(1).permutation(len(table))
    mixed = table.iloc[order].reset_index(drop=True)
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
    of_domains = {name: found["domains"][name]["mmp_at_5"] for name in ("fonts", "signs")}
    assert score == (found["mmp_at_5"], of_domains)


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


@pytest.mark.parametrize(("epochs", "steps"), [(3, 20), (10, 30)])
def test_a_small_mix_is_trained_long_enough(data, monkeypatch, epochs, steps):
    feat_NF, table = data
    rates = []
    step = torch.optim.AdamW.step

    def counted(optimizer, *given):
        rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    rows = train_rows(table, "fonts")  # 192 images
    Proxy(feat_NF, table, FEW.model_copy(update={"epochs": epochs})).score(rows, seed=0)
    assert len(rates) == steps and rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(CONFIG.lr) and rates[-1] < 0.02 * CONFIG.lr


def test_identity_depends_on_features_rows_settings_and_metric(data):
    feat_NF, table = data
    found = {Proxy(feat_NF, table, CONFIG).identity}
    assert found == {Proxy(feat_NF.copy(), table.copy(), CONFIG).identity}
    found.add(Proxy(feat_NF * 2, table, CONFIG).identity)
    found.add(Proxy(feat_NF, table.assign(label="x"), CONFIG).identity)
    found.add(Proxy(feat_NF, table, CONFIG.model_copy(update={"lr": 1e-3})).identity)
    found.add(Proxy(feat_NF, table, CONFIG, metric="mmp_at_5").identity)
    assert len(found) == 5


def training() -> dict:
    """The config of a short run."""
    model = {"backbone": {"library": "open_clip", "name": "guie-tiny"}, "image": {"size_px": 32}}
    run = {"name": "judge", "model": model, "data": {"manifest": "given", "workers": 0}}
    run["train"] = {"epochs": 0.5, "batch_size": 16, "lr": {"head": 1e-3, "classes": 1e-2}}
    return run


def mix_config(folder: Path, **values) -> MixConfig:
    sources = [{"kind": "toy", "path": "t"}]
    return config_from(
        {"name": "m", "out": str(folder / "m.csv"), "sources": sources, **values}, MixConfig
    )


@pytest.mark.parametrize("mix", ["cars", "cars@50+dishes", "a/b+" + "+".join("cdefg" * 60)])
def test_a_whole_training_has_a_name_that_a_run_can_have(mix, tmp_path, monkeypatch):
    folder = tmp_path / "a: b #1"

    def trained(run: RunConfig, resume: bool) -> Path:
        assert resume and run.data.root == str(folder) and run.seed == 3
        assert TypeAdapter(Name).validate_python(run.name) and run.name.endswith("-3")
        assert Path(run.data.manifest).parent == Path(run.out)
        assert read_sidecar(Path(run.data.manifest)).domains["x"].index_is_train
        lines = ['{"step": 1, "val_r_at_1": 0.5, "val_r_at_1/x": 0.25}', '{"step": 2, "loss": 1}']
        lines.append('{"step": 3, "val_r_at_1": 0.1}\n')
        write_text(tmp_path / "metrics.jsonl", "\n".join(lines))
        return tmp_path

    monkeypatch.setattr("guie.training.loop.run_config", trained)
    (tmp_path / "judge.yaml").write_text(to_yaml(training()))
    selection = SelectionConfig(evaluator="full", full=str(tmp_path / "judge.yaml"))
    declared = Sidecar(domains={"x": DomainDeclaration(index_is_train=True)})
    rows = pd.DataFrame([dict.fromkeys(COLUMNS, "x")])
    score = FullTraining(rows, selection, mix_config(folder), declared).score(rows, 3, mix)
    assert score == (0.5, {"x": 0.25})


def test_scores_of_whole_trainings_belong_to_their_metric_config_and_rows(tmp_path: Path) -> None:
    rows = pd.DataFrame([dict.fromkeys(COLUMNS, "x")])

    def identity(metric: str = "r_at_1", label: str = "x", **changed) -> str:
        (tmp_path / "judge.yaml").write_text(to_yaml(training() | changed))
        full = {"full": str(tmp_path / "judge.yaml"), "metric": metric}
        selection = SelectionConfig(evaluator="full", **full)
        table = rows.assign(label=label)
        return FullTraining(table, selection, mix_config(tmp_path), Sidecar()).identity

    changes = [{}, {"metric": "mmp_at_5"}, {"label": "y"}, {"precision": "bf16"}]
    assert len({identity(**change) for change in changes}) == 4 and identity() == identity()
