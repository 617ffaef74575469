"""Views of an image: which passes are made, and what comes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from composing import composition, record
from guie.base.errors import UserError
from guie.data.dataset import image_shapes
from guie.data.manifest import load_manifest
from guie.ensembles.reduction import fit_domains
from guie.models import LoadedModel, open_model
from guie.models.opening import composed

SQUARE, OTHERS = {"aspect": {"max": 1.0}}, {"aspect": {"above": 1.0}}
# The 5th place's: one pass of a square, two of the rest, three for some domains
BY_SHAPE = [{"part": 0.9, **SQUARE}, OTHERS, {"fit": "pad", "part": 0.9, **OTHERS}]
ON_BLACK = [*BY_SHAPE[:2], {**BY_SHAPE[2], "pad_color": "black"}]
SIZES = [(1, 1), (1, 2000), (32, 32), (50, 31), (90, 120)]


@pytest.fixture(scope="module")
def run(kin: list[Path]) -> Path:
    return kin[0]


@pytest.fixture(scope="module")
def sample(data: dict[str, str]) -> dict[str, Any]:
    """Domains with enough images to fit a classifier on."""
    counts = load_manifest(data["manifest"], data["root"]).split("train")["domain"].value_counts()
    return data | {"domains": sorted(counts[counts >= 5].index)}


def picture(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height * 7 + width)
    return torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8, generator=generator)


def passes(model: LoadedModel, image: Tensor) -> int:
    """How often the member looks at an image."""
    seen: list[int] = []
    hook = model.embedder.members[0].register_forward_hook(lambda *words: seen.append(1))
    model.scored(image)
    hook.remove()
    return len(seen)


def seen_in(model: LoadedModel, views: list[dict[str, Any]], image: Tensor) -> Tensor:
    """The mean of the views, each by itself."""
    parts = [composed([model], views=[view]).scored(image) for view in views]
    return functional.normalize(torch.stack(parts).sum(dim=0), dim=1)


@torch.no_grad()
def test_shapes_decide_about_passes(run: Path, tmp_path: Path) -> None:
    model, one = open_model(composition(tmp_path / "x", [run], views=BY_SHAPE)), open_model(run)
    for size, count in {(32, 32): 1, (1, 1): 1, (50, 31): 2, (1, 2000): 2}.items():
        assert passes(model, picture(*size)) == count
        views = BY_SHAPE[:1] if count == 1 else BY_SHAPE[1:]
        plain = [{key: v for key, v in view.items() if key != "aspect"} for view in views]
        expected = seen_in(one, plain, picture(*size))
        torch.testing.assert_close(model.scored(picture(*size)), expected)


@torch.no_grad()
def test_raw_outputs_are_averaged_and_then_normalised(wide: Path, tmp_path: Path) -> None:
    """As the 5th place has it (make_torchscript_wcls.py:161), against a twin in numpy."""
    out = composition(tmp_path / "raw", [wide], views=ON_BLACK, average="raw")
    model, one = open_model(out), open_model(wide)
    plain = open_model(composition(tmp_path / "plain", [wide], views=ON_BLACK))
    image = picture(50, 31)
    raw = []
    for view in ({}, {"fit": "pad", "part": 0.9, "pad_color": "black"}):
        prepared = composed([one], views=[view]).preprocess(image).reshape(1, 3, 48, 48)
        features = one.embedder.backbone(prepared)
        raw.append(one.embedder.head(features, image_shapes(image)).numpy().astype(np.float64))
    lengths = [np.linalg.norm(emb) for emb in raw]
    assert max(lengths) / min(lengths) > 1.01  # else the order would not matter
    expected = np.mean(raw, axis=0)
    expected /= np.linalg.norm(expected)
    np.testing.assert_allclose(model.scored(image).numpy(), expected, atol=1e-5)
    before = np.mean([emb / length for emb, length in zip(raw, lengths, strict=True)], axis=0)
    before /= np.linalg.norm(before)
    np.testing.assert_allclose(plain.scored(image).numpy(), before, atol=1e-5)
    assert np.abs(before - expected).max() > 1e-4
    # of one view nothing is averaged, and the model that it was made of is as it was
    torch.testing.assert_close(one.scored(image).norm(), torch.tensor(1.0))
    torch.testing.assert_close(model.scored(picture(40, 40)), plain.scored(picture(40, 40)))


@torch.no_grad()
def test_raw_outputs_of_models_are_averaged(kin: list[Path]) -> None:
    both, image = [open_model(run) for run in kin], picture(50, 31)
    model = composed(both, join="average", weights=[2.0, 1.0], average="raw")
    raw = [
        one.embedder.head(one.embedder.backbone(one.preprocess(image)), image_shapes(image))
        for one in both
    ]
    expected = functional.normalize(2 * raw[0] + raw[1], dim=1)
    torch.testing.assert_close(model.scored(image), expected)


@torch.no_grad()
def test_a_batch_of_many_shapes_is_divided(run: Path) -> None:
    model = composed([open_model(run)], views=BY_SHAPE)
    images = [picture(*size) for size in SIZES]
    prepared, shapes = (
        torch.cat([f(image) for image in images]) for f in (model.preprocess, image_shapes)
    )
    together = model.embedder(prepared, shapes)
    alone = torch.cat([model.scored(image) for image in images])
    torch.testing.assert_close(together, alone)


@torch.no_grad()
def test_domains_decide_about_passes(run: Path, sample: dict[str, Any], tmp_path: Path) -> None:
    """Only of images that the classifier takes for this domain; it tells by the other views."""
    wanted = sample["domains"][-1]
    views = [{}, {"fit": "pad", "domains": [wanted]}]
    out = composition(tmp_path / "x", [run], views=views, classifier=sample)
    model, one = open_model(out), open_model(run)
    assert 0 < record(out)["classifier"]["accuracy_held_out"] <= 1
    names = model.config.domains
    image, emb = picture(50, 31), one.scored(picture(50, 31))
    found = names[int(model.embedder.classifier(emb).argmax())]
    assert passes(model, image) == 1 + (found == wanted)
    model.embedder.classifier.bias_N.zero_()
    weight_DN = model.embedder.classifier.weight_DN.zero_()
    weight_DN[:, names.index(wanted)] = emb[0]
    assert passes(model, image) == 2
    expected = seen_in(one, [{}, {"fit": "pad"}], image)
    torch.testing.assert_close(model.scored(image), expected)
    weight_DN[:, names.index(wanted)] = -emb[0]
    assert passes(model, image) == 1
    torch.testing.assert_close(model.scored(image), emb)


def test_domains_are_found_by_a_linear_map() -> None:
    rng = np.random.default_rng(0)
    emb_FD = rng.normal(size=(90, 5)) + np.repeat(np.eye(5)[:3] * 8, 30, axis=0)
    domain_F = np.repeat(["a", "b", "c"], 30)
    for kept in (domain_F != "", domain_F != "c"):  # three, and two
        names, weights, found = fit_domains(emb_FD[kept], domain_F[kept], {"a"})
        logits = emb_FD[kept] @ weights["classifier.weight_DN"].numpy()
        logits += weights["classifier.bias_N"].numpy()
        assert (np.array(names)[logits.argmax(axis=1)] == domain_F[kept]).mean() > 0.97
        assert found["accuracy_held_out"] > 0.9
    with pytest.raises(UserError, match="domain 'x' has no images .* available: a, b, c"):
        fit_domains(emb_FD, domain_F, {"x"})
    with pytest.raises(UserError, match="30 images of a and 1 domains; it needs two"):
        fit_domains(emb_FD[:30], domain_F[:30], {"a"})
