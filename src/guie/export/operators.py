"""Check that PyTorch 1.11 has every operator of a TorchScript file, and say what to change."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from scorer.runtime import code_of, is_known, operator_of, overloads

_FUNCTIONAL = "call it as torch.nn.functional.{}, which the export replaces while tracing"
_REMEDIES = {
    f"aten::{name}": _FUNCTIONAL.format(name)
    for name in ("scaled_dot_product_attention", "gelu", "pad")
}
_REMEDY = "rewrite this module with older operators, or choose another backbone"


def check_operators(path: str | Path) -> list[str]:
    """Return one line per problem that PyTorch 1.11, or a GPU, would have with a TorchScript file.

    An operator must be in 1.11's list with an overload that accepts the call: the number of positional
    arguments, the keywords, and the types of literals (None, numbers, strings, lists). A tensor created
    on the CPU inside the traced code is reported too, as the scorer may use a GPU.
    """
    problems: dict[tuple[str, str], str] = {}
    for record, source in code_of(Path(path)).items():
        prefix = record.removeprefix("code/__torch__/").removesuffix(".py").replace("/", ".")
        for scope in source.body:
            module = f"{prefix}.{getattr(scope, 'name', '')}"
            module = re.sub(r"\.___torch_mangle_\d+", "", module)
            for call in ast.walk(scope):
                if isinstance(call, ast.Call) and (found := _problem(call)):
                    name, problem = found
                    problems.setdefault(found, f"{name} in {module}: {problem}")
    return list(problems.values())


def _problem(call: ast.Call) -> tuple[str, str] | None:
    """Return the operator and what is wrong with the call."""
    name = operator_of(call)
    if name == "aten::device":
        device = ast.unparse(call)
        return name, f"{device} is a fixed device; make that tensor a buffer to run on any device"
    if name is None or is_known(call):
        return None
    remedy = _REMEDIES.get(name, _REMEDY)
    if name not in overloads():
        return name, f"PyTorch 1.11 has no such operator; {remedy}"
    return name, f"PyTorch 1.11 does not accept {ast.unparse(call)[:120]}; {remedy}"
