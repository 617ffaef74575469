"""The cheapest floor: a backbone's own vectors, trained where they are (BitFit, LN-tuning)."""

from __future__ import annotations

from torch import nn

from guie.base.errors import UserError

BIASES = ("bias", "in_proj_bias", "q_bias", "v_bias")


def tuned_names(tower: nn.Module, of: str) -> list[str]:
    """Names of the tower's parameters that train.

    Args:
        of: `biases`, of linear maps and norms (Ben Zaken et al., BitFit, ACL 2022); `norms`, weights
            and biases of the norms; `both`.

    Raises UserError where the tower has none.
    """
    names = []
    for prefix, module in tower.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            bias = name in BIASES
            wanted = {"biases": bias, "norms": is_norm, "both": bias or is_norm}[of]
            if wanted and parameter.ndim == 1:
                names.append(f"{prefix}.{name}" if prefix else name)
    if not names:
        raise UserError(f"model.adapters: {type(tower).__name__} has no {of} to tune")
    return names
