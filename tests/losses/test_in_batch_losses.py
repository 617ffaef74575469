"""Losses on the images of a batch, and the plain softmax, against their slow twins: values and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import twins
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional

from guie.base.errors import UserError
from guie.config.losses import HyperbolicConfig, LossConfig
from guie.losses.build import build_loss
from guie.losses.in_batch import hyperbolic, hyperbolic_distances

CLASSES, DIM = 5, 6
LABELS = [3, 0, 0, 1, 4, 3, 1, 0, 4, 1, 3]  # class 2 is absent


def built(dim: int = DIM, **values) -> nn.Module:
    config = TypeAdapter(LossConfig).validate_python(values)
    return build_loss(config, dim, [3] * CLASSES, ["a"] * CLASSES)


def batch(count: int = len(LABELS), spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Vectors and their unit-length embeddings, float64; a small spread makes all pairs near."""
    vectors = torch.randn(count, DIM, dtype=torch.float64)
    vectors = (torch.ones(DIM) + spread * vectors).requires_grad_()
    return vectors, functional.normalize(vectors, dim=-1)


Settings = dict[str, Any]
# Of a loss its settings, and the twin of embeddings, labels and proxies
TWINS: dict[str, tuple[Settings, Callable[..., Tensor]]] = {
    "batch_all": ({"length": 3.0}, lambda e, y: twins.batch_all(e, y, 3.0)),
    "contrastive": ({"margin": 5.0}, lambda e, y: twins.contrastive(e, y, 3.0, 5.0)),
    "hyperbolic": (
        {"curvature": 0.2, "radius": 1.5, "temperature": 0.4},
        lambda e, y: twins.hyperbolic(e, y, 0.2, 1.5, 0.4),
    ),
    "triplet": ({"margin_distance": 0.3}, lambda e, y: twins.semi_hard(e, y, 0.3)),
    "triplet, PUMA's": (
        {"margin_distance": 0.05, "distance": "cosine", "miner": "batch_hard"},
        lambda e, y: twins.batch_hard(e, y, 0.05),
    ),
    "margin, PUMA's": (
        {"miner": "multi_similarity"},
        lambda e, y: twins.margin_loss(
            e, twins.multi_similarity_triplets(e, y, 0.1), [1.2] * len(y), 0.2
        ),
    ),
    "multi_similarity": (
        {"positive_scale": 3.0, "negative_scale": 20.0, "base_cos": 0.4, "mining_margin_cos": 0.05},
        lambda e, y: twins.multi_similarity_of(
            e, twins.multi_similarity_triplets(e, y, 0.05), 3.0, 20.0, 0.4
        ),
    ),
    "supcon": ({"temperature": 0.3}, lambda e, y: twins.supcon(e, y, 0.3)),
    "proxy_anchor": (
        {"margin_cos": 0.2, "scale": 9.0},
        lambda e, y, w: twins.proxy_anchor(e, y, w, 0.2, 9.0),
    ),
    "proxy_nca": ({"temperature": 0.25}, lambda e, y, w: twins.proxy_nca(e, y, w, 0.25)),
    "soft_triple": (
        {"scale": 12.0, "margin_cos": 0.05, "centers": 3, "center_temperature": 0.2},
        lambda e, y, w: twins.soft_triple(e, y, w, 3, 12.0, 0.05, 0.2),
    ),
}
# The twin takes the triplets that the miner draws
DRAWN: dict[str, tuple[Settings, float, Callable[..., Tensor]]] = {
    "margin": (
        {"margin_distance": 0.3, "boundary_distance": 0.9},
        1.2,
        lambda e, drawn: twins.margin_loss(e, drawn, [0.9] * len(LABELS), 0.3),
    ),
    "margin, learnt": (
        {"margin_distance": 0.3, "boundary_distance": 0.9, "learn_boundary": True},
        1.2,
        lambda e, drawn, beta: twins.margin_loss(e, drawn, beta[torch.tensor(LABELS)], 0.3),
    ),
    "multi_similarity, PUMA's": (
        {"miner": "distance_weighted"},
        1.4,
        lambda e, drawn: twins.multi_similarity_of(e, drawn, 2.0, 50.0, 0.5),
    ),
}
ALL = [(name, kind[0]) for name, kind in (TWINS | DRAWN).items()]
every_loss = pytest.mark.parametrize(("name", "settings"), ALL, ids=[name for name, _ in ALL])


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_equals_the_twin(name: str, spread: float) -> None:
    torch.manual_seed(0)
    settings, twin = TWINS[name]
    vectors, emb = batch(spread=spread)
    loss = built(name=name.partition(",")[0], **settings).double()
    weights = list(loss.parameters())
    value, _ = loss(emb, torch.tensor(LABELS))
    twins.assert_equal(value, twin(emb, LABELS, *weights), vectors, *weights)


@pytest.mark.parametrize("name", DRAWN)
def test_equals_the_twin_on_the_triplets_it_draws(name: str) -> None:
    torch.manual_seed(2)
    settings, farthest, twin = DRAWN[name]
    loss = built(name=name.partition(",")[0], **settings).double()
    vectors, emb = batch()
    torch.manual_seed(3)
    value, _ = loss(emb, torch.tensor(LABELS))
    torch.manual_seed(3)
    mined = loss.miner(emb, torch.tensor(LABELS))
    drawn = [tuple(map(int, t)) for t in zip(*mined, strict=True)]
    assert len(drawn) > 8 and all(
        LABELS[a] == LABELS[p] != LABELS[n] and twins.distance(emb[a], emb[n]) < farthest
        for a, p, n in drawn
    )
    assert max(twins.distance(emb[a], emb[n]) for a, _, n in drawn) > farthest - 0.3
    boundaries = list(loss.parameters())
    twins.assert_equal(value, twin(emb, drawn, *boundaries), vectors, *boundaries)


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_semi_hard_is_the_first_negative_farther_than_the_positive(spread: float) -> None:
    """Feng et al., section 2. All negatives within the margin are another loss, a lower one."""
    torch.manual_seed(0)
    vectors, emb = batch(spread=spread)
    wanted = twins.nearest_semi_hard(emb, LABELS, 0.3)
    assert wanted > 1.1 * twins.semi_hard(emb, LABELS, 0.3)
    for memory in (0, 64):  # with a memory, images are compared with themselves in it
        loss = built(name="triplet", miner="semihard_nearest", margin_distance=0.3, memory=memory)
        value, _ = loss(emb.float() if memory else emb, torch.tensor(LABELS))
        if memory:
            assert value.item() == pytest.approx(wanted.item(), rel=1e-4)
        else:
            twins.assert_equal(value, wanted, vectors)


def test_contrastive_has_its_authors_margin_and_scale() -> None:
    """nams.py:247 and 442: .2 on squared distances of features of length 3; numbers by hand."""
    emb = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0], [0.995, 0.0999]])
    emb = functional.normalize(emb.double(), dim=1)
    value, _ = built(name="contrastive")(emb, torch.tensor([0, 0, 1, 2]))
    # Positives: 9 * 0.8. Negatives within .2: rows 0 and 2 with 3 at about 9 * 0.01, 0 with 2 at 0
    close = 9 * (2 - 2 * float(emb[0] @ emb[3]))
    assert value.item() == pytest.approx((7.2 + (0.2 + 2 * (0.2 - close)) / 3) / 2)


def test_hyperbolic_of_two_images_a_class_is_the_published_loss() -> None:
    """The authors' layout: rows i of two matrices are a pair, all other rows are negatives."""
    torch.manual_seed(5)
    first, second = (functional.normalize(torch.randn(7, DIM), dim=-1) for _ in range(2))
    config = HyperbolicConfig(name="hyperbolic", temperature=0.3)
    both = torch.cat([first, second])
    value = hyperbolic(config, both, torch.arange(7).repeat(2))
    near = -hyperbolic_distances(config, both) / 0.3
    near.fill_diagonal_(-torch.inf)
    pair = torch.cat([torch.arange(7) + 7, torch.arange(7)])
    torch.testing.assert_close(value, functional.cross_entropy(near, pair))


@every_loss
@pytest.mark.parametrize("labels", [[0], [1, 1, 1], [0, 1, 2]])
def test_batches_without_pairs_or_rivals_are_finite(
    name: str, settings: dict, labels: list[int]
) -> None:
    loss = built(name=name.partition(",")[0], **settings)
    emb = functional.normalize(torch.ones(len(labels), DIM), dim=-1).requires_grad_()
    value, _ = loss(emb, torch.tensor(labels))  # all embeddings alike: no distance has a slope
    value.backward()
    assert value.isfinite() and emb.grad.isfinite().all()


@every_loss
def test_computes_in_fp32_under_autocast(name: str, settings: dict) -> None:
    torch.manual_seed(6)
    loss, labels = built(name=name.partition(",")[0], **settings), torch.tensor(LABELS)
    emb = batch()[1].detach().to(torch.bfloat16)
    torch.manual_seed(7)
    expected, _ = loss(emb.float(), labels)
    torch.manual_seed(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = loss(emb, labels)
    assert value.dtype == torch.float32 and value.item() == expected.item()


def test_memory_holds_the_newest_embeddings_and_survives_a_checkpoint() -> None:
    torch.manual_seed(8)
    batches = [(batch(4), [int(c) for c in torch.randint(2, (4,))]) for _ in range(5)]
    through, loss = [], built(name="supcon", temperature=0.5, memory=10)
    for step, ((_, emb), labels) in enumerate(batches):
        if step == 3:  # resumed: another process with the same state
            state = loss.state_dict()
            loss = built(name="supcon", temperature=0.5, memory=10)
            loss.load_state_dict(state)
        through.append(loss(emb, torch.tensor(labels))[0])
    for step in (0, 1, 2, 3, 4):  # from step 2 on the memory is full and drops its oldest
        rows = [
            (x.detach(), label)
            for (_, emb), labels in batches[: step + 1]
            for x, label in zip(emb, labels, strict=True)
        ][-10:]
        memory = torch.stack([x for x, _ in rows]), [label for _, label in rows]
        (vectors, emb), labels = batches[step]
        twins.assert_equal(through[step], twins.supcon(emb, labels, 0.5, memory), vectors)


def test_memory_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match="loss.memory 8 is smaller than a batch of 11 images"):
        built(name="triplet", memory=8)(batch()[1], torch.tensor(LABELS))


# ---------------------------------------------------------------- the plain softmax, of raw vectors


@pytest.mark.parametrize("embedding", ["raw", "unit"])
def test_linear_softmax_equals_the_twin(embedding: str) -> None:
    """Of Vo and Hays' code."""
    torch.manual_seed(0)
    loss, (raw, emb) = built(name="linear_softmax", embedding=embedding).double(), batch()
    weight = loss.weight_CD
    assert weight.abs().max().item() == pytest.approx(DIM**-0.5, rel=0.2)  # as torch's Linear
    value, logs = loss(emb, torch.tensor(LABELS), raw)
    seen = raw if embedding == "raw" else emb
    twins.assert_equal(value, twins.linear_softmax(seen, LABELS, weight), raw, weight)
    hits = (seen @ weight.T).argmax(1) == torch.tensor(LABELS)
    assert logs["accuracy"].item() == pytest.approx(hits.float().mean().item())


def test_with_the_identity_it_is_dremls_loss_and_has_no_weights() -> None:
    torch.manual_seed(0)
    loss = built(CLASSES, name="linear_softmax", weights="identity").double()
    raw = (3 * torch.randn(len(LABELS), CLASSES, dtype=torch.float64)).requires_grad_()
    value, _ = loss(functional.normalize(raw, dim=1), torch.tensor(LABELS), raw)
    identity = torch.eye(CLASSES, dtype=torch.float64)
    twins.assert_equal(value, twins.linear_softmax(raw, LABELS, identity), raw)
    assert not list(loss.parameters())
    with pytest.raises(UserError, match=r"has 6 for 5 classes; set model.head.dim to 5"):
        built(name="linear_softmax", weights="identity")
