"""Model soups: average the weights of several models (Wortsman et al., ICML 2022).

Greedy soups are selected on the val split.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guie.base.errors import UserError
from guie.config import RunConfig, load_config
from guie.config.ensemble import MemberConfig, ModelMember
from guie.ensembles.samples import Scores
from guie.models.backbones.base import BACKBONES
from guie.models.opening import LoadedModel, open_model, rebuild
from guie.models.pretrained import sha256_of, state_hash
from guie.models.weights import ImageSize
from guie.training.checkpoint import Checkpoints, embedder_weights, load_checkpoint

# Cosine. Measured between heads: 0.97 or more from one initialisation, 0.00 from independent ones.
MIN_SIMILARITY = 0.5
# Config keys in which ingredients may differ: where weights came from, how they were trained. The image
# size is compared as stated in the weights file.
MAY_DIFFER = {"pretrained", "sha256", "revision", "dropout", "branches", "mean", "std"}
COUNTER = "num_batches_tracked"  # of batch normalisation; read by no forward pass

Evaluate = Callable[[LoadedModel], Scores]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Ingredient:
    """Weights that go into a soup: a run's best, its last, or one of its checkpoints."""

    run: str  # the folder, or a library's model
    file: Path | None = None  # the weights; None for a library's model
    sha256: str = ""  # of the file; for a library's model, of its weights
    # Cosine of its weights with those of the first ingredient, part by part
    similarity: dict[str, float] = field(default_factory=dict)
    alone: Scores = None  # its own
    kept: bool = True  # in the soup
    soup: Scores = None  # for a greedy soup, with it added

    @property
    def name(self) -> str:
        """The name used in messages and records."""
        return str(self.file or self.run)

    def load(self) -> LoadedModel:
        """Return the model with these weights; raise UserError for an ensemble."""
        if self.file is None:
            return open_model(self.run)
        if self.file.suffix != ".pt":
            model = open_model(self.run, weights=self.file.name)
            model.alone("average the runs of each, one by one")
            return model
        config = load_config(Path(self.run) / "config.yaml", RunConfig)
        saved = load_checkpoint(self.file)
        size = ImageSize(*config.image_size(config.stages[saved["state"].stage]))
        member = MemberConfig(source=self.name, model=size.set_in(config.model), run=config)
        return rebuild(member, embedder_weights(saved), self.name)

    def as_json(self) -> dict[str, Any]:
        return {
            "member": self.name,
            "sha256": self.sha256,
            "alike": self.similarity,
            "alone": self.alone,
            "joined": self.kept,
            "soup": self.soup,
        }


def ingredients_of(members: Sequence[ModelMember]) -> list[Ingredient]:
    """Return the ingredients of a soup: the weights of each member, or all checkpoints of its run.

    Raises UserError for weights named twice, or a run without checkpoints.
    """
    ingredients: list[Ingredient] = []
    for member in members:
        run = Path(member.model)
        files: list[Path | None] = [run / f"{member.weights}.safetensors"]
        if member.checkpoints:
            files = list(Checkpoints(run, keep=1).paths())
        elif member.model.partition(":")[0] in BACKBONES:
            files = [None]
        if not files:
            raise UserError(f"{run}: no checkpoints to average; train again, or name its weights")
        ingredients += [Ingredient(member.model, file) for file in files]
    names: set[Path] = set()
    for one in ingredients:
        if Path(one.name).resolve() in names:
            raise UserError(f"{one.name}: given twice; name each once")
        names.add(Path(one.name).resolve())
    return ingredients


def examine(
    ingredients: Sequence[Ingredient], evaluate: Evaluate, heads: bool = False
) -> list[Ingredient]:
    """Score each ingredient alone, and compare it with the first; beside `heads` all must be identical.

    Raises UserError, naming the first difference, for one that cannot be averaged with the first.
    """
    first, first_model = ingredients[0], ingredients[0].load()
    expected, first_state = _architecture(first_model), first_model.embedder.state_dict()
    if heads and not any(name.startswith("head.") for name in first_state):
        raise UserError(f"{first.name}: has no head to average; use join: soup or average")
    found = []
    for one in ingredients:
        model = one.load()
        own, state = _architecture(model), model.embedder.state_dict()
        for key in {**expected, **own}:
            if own.get(key) != expected.get(key):
                raise UserError(
                    f"{one.name}: {key} is {own.get(key)}, but {expected.get(key)} in {first.name};"
                    " averaging weights needs one architecture and image size"
                )
        for name, value in state.items():
            if not value.isfinite().all():
                raise UserError(f"{one.name}: {name} is not finite; leave this one out")
            if heads and not name.startswith("head.") and not torch.equal(value, first_state[name]):
                raise UserError(
                    f"{one.name}: {name} differs from that of {first.name}; join: heads needs identical"
                    " backbones; use join: soup or average"
                )
        similarity = similarity_by_part(state, first_state)
        sha256 = sha256_of(one.file) if one.file else state_hash(state)
        found.append(replace(one, sha256=sha256, similarity=similarity, alone=evaluate(model)))
    return found


def _architecture(model: LoadedModel) -> dict[str, Any]:
    """Return what must agree: config, normalisation, names and shapes of weights, integer buffers."""
    parts: dict[str, Any] = {}
    for section, values in model.config.model_dump().items():
        if isinstance(values, dict):
            parts |= {f"{section}.{k}": v for k, v in values.items() if k not in MAY_DIFFER}
        else:
            parts[section] = values
    parts |= {f"image.{key}": value for key, value in model.preprocess.recipe().items()}
    for name, value in model.embedder.state_dict().items():
        whole = not value.is_floating_point() and not name.endswith(COUNTER)
        parts[name] = value.tolist() if whole else tuple(value.shape)
    return parts


def mean_of_weights(
    ingredients: Sequence[Ingredient], evaluate: Evaluate, greedy: bool
) -> tuple[LoadedModel, Scores, list[Ingredient]]:
    """Average the weights of all ingredients, and score the mean.

    Greedily, add ingredients, best first, and keep those that do not lower the held-out score (Wortsman
    et al., recipe 1). They are returned in that order.
    """
    if greedy:
        ingredients = sorted(ingredients, key=lambda one: held_out(one.alone), reverse=True)
    model, scores = ingredients[0].load(), ingredients[0].alone
    sums: State = {}
    done: list[Ingredient] = []
    count = 0
    for one in ingredients:
        larger = _plus(sums, one.load().embedder.state_dict())
        if greedy:
            model.embedder.load_state_dict(_mean(larger, count + 1))
            with_it = evaluate(model) if done else one.alone
            one = replace(one, soup=with_it, kept=held_out(with_it) >= held_out(scores))
        if one.kept:
            sums, count, scores = larger, count + 1, one.soup
        done.append(one)
    model.embedder.load_state_dict(_mean(sums, count))
    return model, scores if greedy else evaluate(model), done


def _plus(sums: State, state: State) -> State:
    """Add a model's weights to sums in float64; integers are counters, of which the larger is kept."""
    larger = {}
    for name, value in state.items():
        value = value.detach().cpu()
        if not value.is_floating_point():
            larger[name] = torch.maximum(value, sums.get(name, value))
        else:  # the first is not added to 0, which would lose the sign of -0.0
            larger[name] = sums[name] + value.double() if sums else value.double()
    return larger


def _mean(sums: State, count: int) -> dict[str, Tensor]:
    """Divide sums by the number of models; `load_state_dict` rounds to the type of the weights."""
    return {k: v / count if v.is_floating_point() else v for k, v in sums.items()}


def held_out(scores: Scores) -> float:
    """Return the score that selects a greedy soup: R@1 on the val split, mean over domains."""
    assert scores is not None  # the config of a greedy soup requires a val split
    return scores["val_r_at_1"]


def similarity_by_part(a: State, b: State) -> dict[str, float]:
    """Return the cosine between the weights of two models, by part (`backbone`, `head`), each one vector.

    One-dimensional weights are left out, because the scales of norms are near 1 in every model.
    """
    products: dict[str, Tensor] = {}
    for name, value in a.items():
        if value.is_floating_point() and value.ndim > 1:
            x, y = value.detach().double().flatten(), b[name].detach().double().flatten()
            part = name.partition(".")[0]
            moments = torch.stack([x @ y, x @ x, y @ y])
            products[part] = products.get(part, 0.0) + moments
    return {
        part: (xy / (xx * yy).sqrt().clamp(min=1e-300)).item()  # 0 where all weights are
        for part, (xy, xx, yy) in products.items()
    }


def trained_apart(ingredients: Sequence[Ingredient]) -> list[str]:
    """Return a warning for each part not trained from the same initialisation as the first one's."""
    first = ingredients[0].name
    return [
        f"{one.name}: its {part} was trained independently of that of {first} (cosine"
        f" {cosine:.2f}); averaging such weights usually fails: check the val score"
        for one in ingredients
        for part, cosine in one.similarity.items()
        if cosine < MIN_SIMILARITY
    ]


def spaces_apart(models: Sequence[LoadedModel]) -> list[str]:
    """Return a warning for each model whose head, or else backbone, differs from the first one's.

    Independently trained models have embedding spaces rotated against each other, so the mean fits neither
    (the challenge's 1st place).
    """
    first, *others = (
        {name: value for name, value in state.items() if name.startswith("head.")} or state
        for state in (model.embedder.state_dict() for model in models)
    )
    lines = []
    for model, own in zip(models[1:], others, strict=True):
        alike = own.keys() == first.keys() and all(own[k].shape == first[k].shape for k in own)
        cosine = min(similarity_by_part(own, first).values(), default=0.0) if alike else 0.0
        if cosine < MIN_SIMILARITY:
            message = f"cosine {cosine:.2f}" if alike else "another architecture"
            lines.append(
                f"{model.source}: its head was trained independently of that of {models[0].source}"
                f" ({message}); averaging such embeddings seldom helps: use join: side_by_side"
            )
    return lines
