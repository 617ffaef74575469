"""The losses that PUMA compares: what its recipes set, or say to set, held against its code."""

import re
from pathlib import Path
from typing import Any

import pytest

from guie.config import RunConfig, load_config

RECIPES = Path(__file__).parents[2] / "configs" / "recipes"
SOFTMAX = {"init": "he_uniform", "scale": 64.0, "centers": 1, "classifier": "joint"}
# Every setting of every loss, with its lines in tjddus9597/PUMA-WACV25 losses.py
PROXIES: dict[str, dict[str, Any]] = {
    "arcface": {**SOFTMAX, "margin_rad": 0.5},  # 183, 193
    "cosface": {**SOFTMAX, "margin_cos": 0.35},  # 151, 160
    "proxy_anchor": {"init": "he_uniform", "margin_cos": 0.1, "scale": 32.0},  # 57, 66
    "proxy_nca": {"init": "he_uniform", "temperature": 1.0},  # 134, 142-144: -D without a factor
    "soft_triple": {  # 377
        **{"scale": 20.0, "margin_cos": 0.01, "centers": 10, "center_temperature": 0.1},
        # losses/test_in_batch_losses.py holds the library's start, kaiming_uniform_(a=sqrt(5)) on (128, 10 C)
        "init": "torch_uniform",
    },
}
PAIRS: dict[str, dict[str, Any]] = {
    "triplet": {  # 21, 22
        **{"margin_distance": 0.05, "distance": "cosine", "miner": "batch_hard", "memory": 0}
    },
    "margin": {  # 47, 48
        **{"margin_distance": 0.2, "boundary_distance": 1.2, "learn_boundary": False},
        **{"miner": "multi_similarity", "memory": 0},
    },
    "multi_similarity": {  # 34, 35
        **{"positive_scale": 2.0, "negative_scale": 50.0, "base_cos": 0.5},
        **{"mining_margin_cos": 0.1, "miner": "distance_weighted", "memory": 0},
    },
    "supcon": {"temperature": 0.1, "memory": 0},  # 218
    "hyperbolic": {
        "curvature": 0.1,
        "radius": 2.3,
        "temperature": 0.1,
    },  # 218; README.md:23; train.py:164
}
OF_RECIPE = {"puma_losses": PROXIES, "puma_pairs": PAIRS}
each = pytest.mark.parametrize("name", OF_RECIPE)


def arguments(name: str, key: str) -> list[str]:
    """What the recipe's header says to --set of this key."""
    header = re.match(r"(#.*\n)+", (RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))[0]
    return re.findall(rf"--set '?({re.escape(key)}=[^'\n]+)", header)


def loss_of(recipe: str, *overrides: str) -> tuple[str, dict[str, Any]]:
    """The name of a recipe's loss, and its settings."""
    config = load_config(RECIPES / f"{recipe}.yaml", RunConfig, overrides)
    settings = config.task.loss.model_dump()
    return settings.pop("name"), settings


@each
def test_every_loss_of_the_header_is_the_codes(name: str) -> None:
    own, *others = loss_of(name), *(loss_of(name, line) for line in arguments(name, "task.loss"))
    assert {loss for loss, _ in [own, *others]} == set(OF_RECIPE[name])
    for loss, settings in [own, *others]:
        assert settings == OF_RECIPE[name][loss], loss


@each
def test_puma_trains_with_each_of_them(name: str) -> None:
    """Table 5, by puma_vit_s.yaml and the header's arguments."""
    keys = ("train.lr.classes", "train.sampler")
    more = [line for key in keys for line in arguments(name, key)]
    assert len(more) == (2 if name == "puma_pairs" else 0)
    losses = [loss_of("puma_vit_s", line, *more) for line in arguments(name, "task.loss")]
    assert dict(losses) == OF_RECIPE[name]
    for line in arguments(name, "task.loss.memory"):  # of table 8
        assert loss_of(name, line)[1]["memory"] == 4096  # train.py:344
