"""Losses from a Python file of the user's own: `custom_rule` and `custom_loss` of the config.

Only training runs the file, and only the one that the config names: a checkpoint, a run's folder or a hub
folder brings no code.
"""

import hashlib
import inspect
import runpy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model
from torch import Tensor, nn

from guie.base.errors import UserError
from guie.config.loading import Values, validated
from guie.config.losses import CustomConfig, CustomRuleConfig, Margin, MarginSchedule
from guie.config.types import Config, remedy
from guie.losses.base import Criterion
from guie.losses.in_batch import InBatchLoss
from guie.losses.rules import MarginRule, margin_of

GIVEN = ("dim", "sizes", "domains")  # arguments as of `build_loss`, for a class that names them
METHODS: dict[type[nn.Module], str] = {  # what a subclass writes
    MarginRule: "own(self, cos_B, label_B, norm_B)",
    InBatchLoss: "of_batch(self, emb_BD, label_B)",
    Criterion: "forward(self, emb_BD, label_B, raw_BD)",
}


def build_custom(
    config: CustomConfig, dim: int, sizes: Sequence[int], domains: Sequence[str]
) -> Any:
    """Return the user's rule or loss; arguments as of `build_loss`. Raises UserError as `custom_class`."""
    kind, settings = custom_class(config)
    given = dict(zip(GIVEN, (dim, sizes, domains), strict=True))
    values = {key: given[key] for key in given if key in inspect.signature(kind).parameters}
    values |= {key: margin_of(value, sizes) for key, value in settings.items()}
    try:
        return kind(**values)
    except Exception as error:
        raise UserError(f"{config.source}: {type(error).__name__}: {error}") from None


def custom_class(config: CustomConfig) -> tuple[type[nn.Module], dict[str, Any]]:
    """Run the user's file; return the class and its settings, by the types of its arguments.

    Raises UserError if the file fails or changed, has no such class, or the class does not fit.
    """
    source = config.source
    kind = _run(source, config.sha256)
    base = MarginRule if isinstance(config, CustomRuleConfig) else Criterion
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{source}: must be a subclass of {base.__module__}.{base.__name__}")
    known = next(known for known in METHODS if issubclass(kind, known))
    name = METHODS[known].partition("(")[0]
    own = getattr(kind, name)
    arguments = len(inspect.signature(own).parameters)
    if own is getattr(known, name) or arguments != METHODS[known].count(",") + 1:
        raise UserError(f"{source}: needs def {METHODS[known]}")
    try:
        model = _settings_model(kind)
    except Exception as error:  # a name that is not defined, a type that is none
        reason = str(error).partition("\n")[0]
        raise UserError(f"{source}: its arguments cannot be settings: {reason}") from None
    checked = validated(Values.of(config.settings, f"{source}: settings"), model)
    return kind, {name: getattr(checked, name) for name in model.model_fields}


@cache
def _run(source: str, sha256: str) -> Any:
    file, _, name = source.rpartition(":")
    if hashlib.sha256(Path(file).read_bytes()).hexdigest() != sha256:
        raise UserError(f"{file}: is not the file of sha256 {sha256}; restore it, or drop sha256")
    try:
        found = runpy.run_path(file)
    except (Exception, SystemExit) as error:
        raise UserError(f"{file}: {type(error).__name__}: {error}") from None
    if name not in found:
        classes = [key for key, value in found.items() if isinstance(value, type)]
        raise UserError(f"{file}: has no class {name}{remedy(name, classes)}")
    return found[name]


def _settings_model(kind: type[nn.Module]) -> type[Config]:
    """Return a model of the constructor's arguments. Raises TypeError if one has no name or type."""
    fields: dict[str, Any] = {}
    own = kind.__init__ is not nn.Module.__init__
    for name, argument in inspect.signature(kind, eval_str=True).parameters.items() if own else ():
        if name in GIVEN:
            continue
        if str(argument).startswith("*") or argument.annotation is argument.empty:
            raise TypeError(f"{argument} needs a name and a type, such as scale: float = 1.0")
        # A rule that takes any margin of ours is configured by any
        ours = argument.annotation == float | Tensor | MarginSchedule
        default = ... if argument.default is argument.empty else argument.default
        fields[name] = (Margin if ours else argument.annotation, default)
    return create_model(kind.__name__, __base__=Config, **fields)
