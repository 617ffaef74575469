"""Check that PyTorch 1.11 has every operator of a TorchScript file.

The check reads the source text in the archive, not the graph of the loaded module. PyTorch 1.11 parses that
text, whose arguments omit defaults. Loading would resolve it with current schemas. The text is a subset of
Python: `aten` operators are `torch.name(...)`, all others `ops.namespace.name(...)`.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

_FUNCTIONAL = "call it as torch.nn.functional.{}, which the export replaces while tracing"
_REMEDIES = {
    name: _FUNCTIONAL.format(name) for name in ("scaled_dot_product_attention", "gelu", "pad")
}
_REMEDY = "rewrite this module with older operators, or choose another backbone"


class Argument(NamedTuple):
    """One argument of an operator's schema."""

    type: str
    name: str
    has_default: bool
    keyword_only: bool


def check_operators(path: str | Path) -> list[str]:
    """Return one line per problem that PyTorch 1.11, or a GPU, would have with a TorchScript file.

    An operator must be in 1.11's list with an overload that accepts the call: the number of positional
    arguments, the keywords, and the types of literals (None, numbers, strings, lists). A tensor created
    on the CPU inside the traced code is reported too, as the scorer may use a GPU.
    """
    problems: dict[tuple[str, str], str] = {}
    for module, call, name in _calls(path):
        problem = _problem(call, name)
        if problem:
            problems.setdefault((name, problem), f"{name} in {module}: {problem}")
    return list(problems.values())


def _problem(call: ast.Call, name: str) -> str | None:
    if name == "aten::device":
        return (
            f"{ast.unparse(call)} is a fixed device; make that tensor a buffer to run on any device"
        )
    remedy = _REMEDIES.get(name.removeprefix("aten::"), _REMEDY)
    overloads = _runtime().get(name)
    if overloads is None:
        return f"PyTorch 1.11 has no such operator; {remedy}"
    if not any(_accepts(overload, call) for overload in overloads):
        return f"PyTorch 1.11 does not accept {ast.unparse(call)[:120]}; {remedy}"
    return None


def _calls(path: str | Path) -> Iterator[tuple[str, ast.Call, str]]:
    """Yield module, call and operator name for every operator call in the archive."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.namelist():
            _, found, source = record.partition("/code/__torch__/")
            if not found or not source.endswith(".py"):
                continue
            prefix = source.removesuffix(".py").replace("/", ".")
            for scope in ast.parse(archive.read(record)).body:
                module = re.sub(
                    r"\.___torch_mangle_\d+", "", f"{prefix}.{getattr(scope, 'name', '')}"
                )
                for node in ast.walk(scope):
                    if isinstance(node, ast.Call) and (name := _operator(ast.unparse(node.func))):
                        yield module, node, name


def _operator(function: str) -> str | None:
    """Map `torch.add` to aten::add, `ops.prim.max` to prim::max, other functions to None."""
    if function.startswith("ops."):
        return function.removeprefix("ops.").replace(".", "::", 1)
    if function.startswith("torch."):
        return "aten::" + function.removeprefix("torch.")
    return None


def _accepts(overload: tuple[Argument, ...], call: ast.Call) -> bool:
    """Return whether 1.11's schema matching can bind the call's arguments to this overload."""
    if any(argument.type == "..." for argument in overload):
        return True
    positional = [argument for argument in overload if not argument.keyword_only]
    if len(call.args) > len(positional):
        return False
    given: dict[str | None, ast.expr] = {}
    given |= zip((a.name for a in positional), call.args, strict=False)
    given |= {keyword.arg: keyword.value for keyword in call.keywords}
    if not given.keys() <= {argument.name for argument in overload}:
        return False
    return all(
        _fits(given[argument.name], argument.type)
        if argument.name in given
        else argument.has_default
        for argument in overload
    )


def _fits(value: ast.expr, kind: str) -> bool:
    """Return whether a literal is allowed for this type; other expressions always are."""
    base = kind.removesuffix("?")
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if base in {"t", "t1", "t2", "Any"}:
        return True
    if isinstance(value, ast.List):
        return "[" in base
    if not isinstance(value, ast.Constant):
        return True
    if value.value is None:
        return kind.endswith("?")
    allowed = {
        bool: {"bool", "Scalar"},
        int: {"int", "float", "complex", "Scalar"},
        float: {"float", "complex", "Scalar"},
        str: {"str", "Device"},
    }.get(type(value.value), {base})
    # int[2] accepts one int for both.
    return re.sub(r"\[\d+\]$", "", base) in allowed


@cache
def _runtime() -> dict[str, list[tuple[Argument, ...]]]:
    """Return the operators of PyTorch 1.11, each with its overloads."""
    overloads: dict[str, list[tuple[Argument, ...]]] = {}
    for line in files("guie.export").joinpath("operators_1_11.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, _, arguments = line.partition(" ")
            overloads.setdefault(name.partition(".")[0], []).append(_arguments(arguments))
    return overloads


def _arguments(text: str) -> tuple[Argument, ...]:
    """Parse arguments such as `Tensor self, *, int n=`."""
    positional, _, keyword_only = text.partition("*, ")
    arguments = []
    for group, only in ((positional, False), (keyword_only, True)):
        for part in filter(None, group.split(", ")):
            kind, _, name = part.partition(" ")
            arguments.append(Argument(kind, name.rstrip("="), name.endswith("="), only))
    return tuple(arguments)
