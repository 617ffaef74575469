"""Check that PyTorch 1.11 has every operator of a TorchScript file, and say what to change."""

import ast
import re
from pathlib import Path

from scorer.runtime import is_known, operator_calls, overloads

# While tracing, the export replaces these, where they are called as functions of torch.nn.functional.
REPLACED = {"aten::scaled_dot_product_attention", "aten::gelu", "aten::pad"}


def check_operators(path: str | Path) -> list[str]:
    """Return one line per problem that PyTorch 1.11, or a GPU, would have with a TorchScript file.

    An operator must be in 1.11's list with an overload that accepts the call. A tensor created on the CPU
    inside the traced code is reported too, as the scorer may use a GPU.
    """
    problems: dict[tuple[str, str], str] = {}  # the first of each
    for module, name, call in operator_calls(Path(path)):
        code = ast.unparse(call)[:120]
        if name == "aten::device":
            problem = f"{code} is a fixed device; make that tensor a buffer to run on any device"
        elif is_known(name, call):
            continue
        elif name in overloads():
            problem = f"PyTorch 1.11 does not accept {code}; {_remedy(name)}"
        else:
            problem = f"PyTorch 1.11 has no such operator; {_remedy(name)}"
        module = re.sub(r"\.___torch_mangle_\d+", "", module)
        problems.setdefault((name, problem), f"{name} in {module}: {problem}")
    return list(problems.values())


def _remedy(name: str) -> str:
    if name in REPLACED:
        function = name.removeprefix("aten::")
        return f"call it as torch.nn.functional.{function}, which the export replaces while tracing"
    return "rewrite this module with older operators, or choose another backbone"
