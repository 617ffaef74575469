"""Slow twins: each loss again from its definition, one image at a time or over one-hot matrices.

They share no code with the package. All take float64 and leave the gradients to autograd.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor


def assert_equal(loss: Tensor, expected: Tensor, *leaves: Tensor) -> None:
    """Values and the gradients of all leaves."""
    assert expected > 0.01  # a loss of 0 would show nothing
    torch.testing.assert_close(loss, expected)
    got = torch.autograd.grad(loss, leaves, retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(expected, leaves, retain_graph=True))


def angular(cos: Tensor, margin: float) -> Tensor:
    """ArcFace by the angle itself, with the straight line past pi - m."""
    theta = torch.acos(cos)
    return (
        torch.cos(theta + margin) if theta + margin < math.pi else cos - margin * math.sin(margin)
    )


def additive(cos: Tensor, margin: float) -> Tensor:
    return cos - margin


def margin_softmax(
    emb: Tensor,
    weight: Tensor,
    labels: list[int],
    *,
    scale: float,
    rule=angular,
    margins: list[float],
    centers: int = 1,
    edges: tuple[int, ...] | None = None,
    t: list[float] | None = None,
) -> tuple[Tensor, float]:
    """Loss and accuracy. `margins` by class; `t` by image turns CurricularFace on."""
    classes = len(weight) // centers
    edges = edges or (0, classes)
    unit = weight / weight.norm(dim=1, keepdim=True)
    losses, hits = [], []
    for i, label in enumerate(labels):
        low, high = next((a, b) for a, b in pairwise(edges) if a <= label < b)
        cosines = [
            max(emb[i] @ unit[c * centers + j] for j in range(centers)) for c in range(low, high)
        ]
        own = rule(cosines[label - low], margins[label])
        logits = []
        for c, cos in enumerate(cosines, start=low):
            if c == label:
                cos = own
            elif t is not None and cos > own:
                cos = cos * (t[i] + cos)
            logits.append(scale * cos)
        logits = torch.stack(logits)
        losses.append(-torch.log_softmax(logits, 0)[label - low])
        hits.append(int(torch.stack(cosines).argmax()) == label - low)
    return torch.stack(losses).mean(), sum(hits) / len(hits)


def distance(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square().sum().sqrt()


def triplets(labels: list[int]) -> list[tuple[int, int, int]]:
    n = range(len(labels))
    return [
        (a, p, q)
        for a in n
        for p in n
        for q in n
        if a != p and labels[a] == labels[p] and labels[a] != labels[q]
    ]


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean() if values else torch.zeros((), dtype=torch.float64)


def batch_all(emb: Tensor, labels: list[int], length: float) -> Tensor:
    far = lambda i, j: (length * emb[i] - length * emb[j]).square().sum()  # noqa: E731
    return mean([torch.log1p((far(a, p) - far(a, n)).exp()) for a, p, n in triplets(labels)])


def contrastive(emb: Tensor, labels: list[int], length: float, margin: float) -> Tensor:
    """Vo and Hays' nams.py:243-274 on features of nams.py:441-450, pair by pair."""
    positives, negatives = [], []
    for i, x in enumerate(length * emb):
        for j, y in enumerate(length * emb):
            if i == j:
                continue
            far = (x - y).square().sum()
            if labels[i] == labels[j]:
                positives.append(far)
            elif far < margin:
                negatives.append(margin - far)
    return (mean(positives) + mean(negatives)) / 2


def linear_softmax(seen: Tensor, labels: list[int], weight: Tensor) -> Tensor:
    """Vo and Hays' nams.py:508-518, and DREML's _code/Loss.py:14-22 with the identity."""
    losses = []
    for x, label in zip(seen, labels, strict=True):
        logits = torch.stack([(x * row).sum() for row in weight])
        losses.append(logits.exp().sum().log() - logits[label])
    return mean(losses)


def hyperbolic(
    emb: Tensor, labels: list[int], curvature: float, radius: float, temperature: float
) -> Tensor:
    """With Moebius addition, as hyperbolic networks are usually written."""
    c = curvature
    length = math.tanh(math.sqrt(c) * radius) / math.sqrt(c)
    ball = [length * x for x in emb]

    def away(x: Tensor, y: Tensor) -> Tensor:
        x = -x
        xy, xx, yy = x @ y, x @ x, y @ y
        added = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
        added = added / (1 + 2 * c * xy + c * c * xx * yy)
        return 2 / math.sqrt(c) * torch.atanh(math.sqrt(c) * added.norm())

    losses = []
    for i, own in enumerate(labels):
        rivals = [away(ball[i], ball[j]) for j in range(len(labels)) if labels[j] != own]
        for j in range(len(labels)):
            if j != i and labels[j] == own:
                all_ = torch.stack([away(ball[i], ball[j]), *rivals]) / -temperature
                losses.append(-torch.log_softmax(all_, 0)[0])
    return mean(losses)


def semi_hard(emb: Tensor, labels: list[int], margin: float) -> Tensor:
    losses = []
    for a, p, n in triplets(labels):
        gap = distance(emb[a], emb[n]) - distance(emb[a], emb[p])
        if 0 < gap < margin:
            losses.append(margin - gap)
    return mean(losses)


def nearest_semi_hard(emb: Tensor, labels: list[int], margin: float) -> Tensor:
    """Hinge on each positive pair's first negative farther than the positive; mean where not 0."""
    losses = []
    for a, p in {(a, p) for a, p, _ in triplets(labels)}:
        own = distance(emb[a], emb[p])
        rivals = [distance(emb[a], emb[n]) for n in range(len(labels)) if labels[n] != labels[a]]
        farther = sorted(d for d in rivals if d > own)
        if farther and farther[0] - own < margin:
            losses.append(margin - (farther[0] - own))
    return mean(losses)


def batch_hard(emb: Tensor, labels: list[int], margin: float) -> Tensor:
    """Hinge on each image's least similar positive and most similar negative, by cosine; mean where not 0."""
    losses = []
    for a, own in enumerate(labels):
        cos = emb @ emb[a]
        same = [cos[j] for j in range(len(labels)) if j != a and labels[j] == own]
        other = [cos[j] for j in range(len(labels)) if labels[j] != own]
        gap = max(other) - min(same) + margin
        if gap > 0:
            losses.append(gap)
    return mean(losses)


def multi_similarity_triplets(
    emb: Tensor, labels: list[int], epsilon: float
) -> list[tuple[int, int, int]]:
    """Every hard positive pair of an image with every hard negative pair of it."""
    chosen = []
    for a, p, n in triplets(labels):
        cos = emb @ emb[a]
        same = [cos[j] for j in range(len(labels)) if j != a and labels[j] == labels[a]]
        other = [cos[j] for j in range(len(labels)) if labels[j] != labels[a]]
        if cos[p] - epsilon < max(other) and cos[n] + epsilon > min(same):
            chosen.append((a, p, n))
    return chosen


def multi_similarity_of(
    emb: Tensor,
    chosen: list[tuple[int, int, int]],
    alpha: float,
    beta: float,
    base: float,
) -> Tensor:
    """Multi-Similarity on the pairs of these triplets, each pair once; mean over all images.

    An image with a hard positive pair has a hard negative one, so that triplets name all hard pairs.
    """
    losses = []
    for i in range(len(emb)):
        cos = emb @ emb[i]
        same = {p for a, p, _ in chosen if a == i}
        other = {n for a, _, n in chosen if a == i}
        pull = sum((torch.exp(-alpha * (cos[j] - base)) for j in same), emb.new_zeros(()))
        push = sum((torch.exp(beta * (cos[j] - base)) for j in other), emb.new_zeros(()))
        losses.append(torch.log1p(pull) / alpha + torch.log1p(push) / beta)
    return mean(losses)


def margin_loss(
    emb: Tensor, chosen: list[tuple[int, int, int]], boundaries: list[Tensor], margin: float
) -> Tensor:
    """Sum over the chosen triplets' two hinges, over the number of hinges that are not 0."""
    hinges = []
    for a, p, n in chosen:
        hinges.append((distance(emb[a], emb[p]) - boundaries[a] + margin).clamp(min=0))
        hinges.append((boundaries[a] - distance(emb[a], emb[n]) + margin).clamp(min=0))
    hinges = torch.stack(hinges)
    return hinges.sum() / (hinges > 0).sum()


def supcon(
    emb: Tensor,
    labels: list[int],
    temperature: float,
    memory: tuple[Tensor, list[int]] | None = None,
) -> Tensor:
    """Against the batch, or against a memory that ends with the batch itself."""
    rows, row_labels = memory or (emb, labels)
    first = len(rows) - len(emb)
    losses = []
    for i, own in enumerate(labels):
        others = [j for j in range(len(rows)) if j != first + i]
        z = torch.stack([emb[i] @ rows[j] for j in others]) / temperature
        log_p = z - z.exp().sum().log()
        kept = [v for v, j in zip(log_p, others, strict=True) if row_labels[j] == own]
        losses.append(-mean(kept))
    return mean(losses)


def proxy_anchor(
    emb: Tensor, labels: list[int], proxies: Tensor, margin: float, scale: float
) -> Tensor:
    unit = proxies / proxies.norm(dim=1, keepdim=True)
    pulls, pushes = [], []
    for c, proxy in enumerate(unit):
        own = [emb[i] @ proxy for i, label in enumerate(labels) if label == c]
        rest = [emb[i] @ proxy for i, label in enumerate(labels) if label != c]
        if own:
            pulls.append(torch.log1p(sum(torch.exp(-scale * (cos - margin)) for cos in own)))
        pushes.append(torch.log1p(sum(torch.exp(scale * (cos + margin)) for cos in rest)))
    return mean(pulls) + mean(pushes)


def proxy_nca(emb: Tensor, labels: list[int], proxies: Tensor, temperature: float) -> Tensor:
    unit = proxies / proxies.norm(dim=1, keepdim=True)
    losses = []
    for x, label in zip(emb, labels, strict=True):
        near = torch.stack([-(x - proxy).square().sum() / temperature for proxy in unit])
        losses.append(-torch.log_softmax(near, 0)[label])
    return mean(losses)


def soft_triple(
    emb: Tensor,
    labels: list[int],
    weight: Tensor,
    centers: int,
    scale: float,
    margin: float,
    gamma: float,
) -> Tensor:
    """weight (D, C * centers), as pytorch-metric-learning keeps it."""
    unit = (weight / weight.norm(dim=0, keepdim=True)).T
    losses = []
    for x, label in zip(emb, labels, strict=True):
        logits = []
        for c in range(len(unit) // centers):
            near = torch.stack([x @ unit[c * centers + j] for j in range(centers)])
            relaxed = (torch.softmax(near / gamma, 0) * near).sum()
            logits.append(scale * (relaxed - (margin if c == label else 0.0)))
        losses.append(-torch.log_softmax(torch.stack(logits), 0)[label])
    return mean(losses)
