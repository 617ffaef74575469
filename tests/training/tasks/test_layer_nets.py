"""Nets A to F of Vo and Hays compute what their code computes: lugiavn/generalization-dml.

The twin is written from train.py:122-131 and nams.py:436 alone, in plain torch.
"""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from guie.config import RunConfig, load_config
from guie.config.losses import BatchAllConfig
from guie.data.dataset import Batch, Classes
from guie.losses.in_batch import batch_all_triplet
from guie.training.stage import set_model, train_mode
from guie.training.tasks import build_task

RECIPES = Path(__file__).parents[3] / "configs" / "recipes"
SIZE_PX = 32
CLASSES = Classes(["a/0", "a/1", "a/2"], [2, 2, 2], ["a"] * 3)
LABELS = [0, 0, 1, 1, 2, 2]
# Fully connected layers up to the loss. B and C are A that begins elsewhere.
FC = {"a": 1, "d": 0, "e": 2, "f": 3}


class Net(nn.Module):
    """VGG16-BN, the global maximum, dropout, fc6 to fc8 with ReLUs between."""

    def __init__(self, layers: int):
        super().__init__()
        features: list[nn.Module] = []
        inputs = 3
        for outputs, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(convolutions):
                features += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)]
                features += [nn.ReLU()]
                inputs = outputs
            features += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*features)
        dropout = 0.01 if layers else 0.0  # the recipe of NetD has none, and tells
        self.pool = nn.Sequential(nn.MaxPool2d(SIZE_PX // 32), nn.Dropout(dropout))
        linears: list[nn.Module] = []
        for _ in range(layers):
            linears += [nn.Linear(512, 512), nn.ReLU()]
        self.classifier = nn.Sequential(*linears[:-1])

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))

    def scored(self, images: Tensor) -> Tensor:
        """fc6, or pool5.3 of NetD."""
        pooled = self.pool(self.features(images)).flatten(1)
        return self.classifier[0](pooled) if len(self.classifier) else pooled


def triplet_loss(out: Tensor) -> Tensor:
    """The mean over all triplets of log(1 + exp(d(a, p) - d(a, n))), of features of length 4."""
    scaled = 4.0 * out / out.norm(dim=1, keepdim=True)
    terms = []
    for a, p, n in product(range(len(LABELS)), repeat=3):
        if a != p and LABELS[a] == LABELS[p] != LABELS[n]:
            near, far = ((scaled[a] - scaled[one]).square().sum() for one in (p, n))
            terms.append(torch.log(1 + torch.exp(near - far)))
    return torch.stack(terms).mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", FC)
def test_a_net_computes_what_its_authors_does(name: str) -> None:
    """In a training step and when scored: loss, gradients, running statistics, embeddings."""
    small = [f"model.image.size_px={SIZE_PX}", "model.backbone.kwargs={mlp_ratio: 0.01}"]
    config = load_config(RECIPES / f"layers_net_{name}.yaml", RunConfig, small)
    number = len(config.stages) - 1
    torch.manual_seed(0)
    task = build_task(config, CLASSES, pretrained=False)
    set_model(task, config, number, [0, 1, 2])
    train_mode(task, config.stages[number])
    net = Net(FC[name]).train()
    tower = task.embedder.backbone.tower.features.state_dict()
    net.features.load_state_dict(tower)
    linears = [task.embedder.head.linear] if task.embedder.head else []
    linears += [one for one in task.projector if isinstance(one, nn.Linear)]
    assert len(linears) == FC[name]
    for ours, theirs in zip(linears, net.classifier[::2], strict=True):
        theirs.load_state_dict(ours.state_dict())

    images = torch.randn(len(LABELS), 3, SIZE_PX, SIZE_PX)
    batch = Batch(torch.tensor(LABELS), torch.arange(len(LABELS)), images_BCHW=images)
    torch.manual_seed(1)  # the same dropout
    loss, _ = task(batch)
    torch.manual_seed(1)
    expected = triplet_loss(net(images))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    close = {"rtol": 1e-3, "atol": 1e-5}
    for ours, theirs in zip(linears, net.classifier[::2], strict=True):
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, **close)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, **close)
    last = task.embedder.backbone.tower.features[40].weight.grad
    torch.testing.assert_close(last, net.features[40].weight.grad, **close)
    for key, value in task.embedder.backbone.tower.features.state_dict().items():
        torch.testing.assert_close(value, net.features.state_dict()[key], msg=key)

    task.eval()
    scored = nn.functional.normalize(net.eval().scored(images), dim=1)
    torch.testing.assert_close(task.embedder(images), scored)


def backward_of_theirs(features: np.ndarray) -> np.ndarray:
    """The gradient that nams.py:386-422 returns, written by hand there: softplus' slope, without the two."""
    grad, count = np.zeros_like(features), 0
    for a, p, n in product(range(len(LABELS)), repeat=3):
        if a != p and LABELS[a] == LABELS[p] != LABELS[n]:
            near, far = (((features[a] - features[one]) ** 2).sum() for one in (p, n))
            slope = 1 - 1 / (1 + np.exp(near - far))
            for sign, one in ((1, p), (-1, n)):
                grad[a] += sign * slope * (features[a] - features[one])
                grad[one] += sign * slope * (features[one] - features[a])
            count += 1
    return grad / count


def test_its_backward_pass_is_half_the_gradient() -> None:
    """So one step of SGD at half the rate and twice the decay, of its weights, is a step of theirs."""
    features = torch.randn(len(LABELS), 4, dtype=torch.float64)
    emb = nn.functional.normalize(features, dim=1).requires_grad_()
    config = BatchAllConfig(name="batch_all", length=4.0)
    loss = batch_all_triplet(config, emb, torch.tensor(LABELS))
    loss.backward()
    theirs = backward_of_theirs((4.0 * emb).detach().numpy())
    # Ours sees squared distances by inner products, so its gradient differs along the embedding
    ours = emb.grad / 4.0
    unit = emb.detach()
    across = ours - (ours * unit).sum(1, keepdim=True) * unit
    theirs_across = torch.from_numpy(theirs)
    theirs_across = theirs_across - (theirs_across * unit).sum(1, keepdim=True) * unit
    torch.testing.assert_close(across, 2 * theirs_across)

    steps = []
    for gradient, rate, decay in ((theirs_across, 1e-2, 5e-4), (across, 5e-3, 1e-3)):
        weight = nn.Parameter(unit.clone())
        optimizer = torch.optim.SGD([weight], lr=rate, momentum=0.9, weight_decay=decay)
        for _ in range(3):
            weight.grad = gradient.clone()
            optimizer.step()
        steps.append(weight.detach())
    torch.testing.assert_close(*steps)
