"""Check whether the challenge's PyTorch 1.11 can open a TorchScript file of a newer version.

`archive.format_version` reads the format version. This module checks for records of unknown layout,
offsets that 1.11's zip reader misreads, and operators that it lacks or that have other signatures. It
reads the source text in the archive: 1.11 parses that text, whose arguments omit defaults. The text is a
subset of Python: `aten` operators are `torch.name(...)`, all others `ops.namespace.name(...)`.
"""

import ast
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from scorer.archive import ZIP_ERRORS
from scorer.errors import Violation, one_line

# Operators that read or write files, in any namespace.
FILE_ACCESS = {"from_file", "save", "load_tensor"}
OPERATORS = Path(__file__).with_name("operators_1_11.txt")
NAMED = 3  # operators in one message
# The head of a zip64 extra field (id 1) that holds one number of 8 bytes, which is the offset.
OFFSET_ALONE = b"\1\0\x08\0"
# Types of arguments that accept a literal: an int may also stand for int[2].
ACCEPTING = {
    bool: {"bool", "Scalar"},
    int: {"int", "float", "complex", "Scalar"},
    float: {"float", "complex", "Scalar"},
    str: {"str", "Device"},
}


# Of one overload of an operator: types of its arguments by name, in order; how many are allowed by
# position; those that are required
Overload = tuple[dict[str, str], int, set[str]]


def code_of(path: Path) -> dict[str, ast.Module]:
    """Parse the source text of a TorchScript archive, by record name, read by PyTorch's own reader.

    Another reader may find other text: PyTorch ignores the case of record names, and finds the list of
    records by the end of the file. Raises Violation if it cannot be read.
    """
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        names = [name for name in reader.get_all_records() if name.lower().endswith(".py")]
        return {name: ast.parse(reader.get_record(name)) for name in names}
    except (RuntimeError, SyntaxError, ValueError, RecursionError) as error:
        raise Violation(f"its code cannot be read ({one_line(error)})") from error


def refuse_file_access(path: Path) -> None:
    """Raise Violation if the code of a TorchScript archive names an operator that reads or writes files.

    Any mention counts, because `f = torch.save` and `getattr(torch, "save")` can call it too.
    """
    nodes = [node for source in code_of(path).values() for node in ast.walk(source)]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    if found := sorted(named & FILE_ACCESS):
        raise Violation(f"operators that read or write files: {', '.join(found)}")


def check_runtime(path: Path) -> None:
    """Raise Violation if PyTorch 1.11 cannot open a TorchScript archive; it says in one line why."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except ZIP_ERRORS as error:
        raise Violation(f"its records cannot be read ({one_line(error)})") from error
    # Its miniz takes the placeholder 0xFFFFFFFF for the offset, unless a size is in zip64 too.
    if any(record.extra.startswith(OFFSET_ALONE) for record in records):
        raise Violation("a zip64 offset that the zip reader of PyTorch 1.11 misreads")
    debug = sum(record.filename.endswith(".debug_pkl") for record in records)
    if debug:
        raise Violation(f"{debug} .debug_pkl records, whose layout PyTorch 1.11 does not know")
    names = {name for _, name, call in operator_calls(path) if not is_known(name, call)}
    if unknown := sorted(names):
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        title = "operators that PyTorch 1.11 lacks or has with other arguments"
        raise Violation(f"{title}: {', '.join(unknown[:NAMED])}{more}")


def operator_calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Yield the module, the operator and the call of each operator that a TorchScript archive calls.

    `torch.relu(x)` calls aten::relu, `ops.prim.max(x)` prim::max.
    """
    for record, source in code_of(path).items():
        prefix = record.removeprefix("code/__torch__/").removesuffix(".py").replace("/", ".")
        for scope in source.body:
            for call in ast.walk(scope):
                if not isinstance(call, ast.Call):
                    continue
                found = re.fullmatch(r"(torch|ops\.\w+)\.([\w.]+)", ast.unparse(call.func))
                if found:
                    space = "aten" if found[1] == "torch" else found[1].removeprefix("ops.")
                    yield f"{prefix}.{getattr(scope, 'name', '')}", f"{space}::{found[2]}", call


def is_known(operator: str, call: ast.Call) -> bool:
    """Return whether 1.11 has an operator with the arguments of this call."""
    for types, positional, required in overloads().get(operator, ()):
        given = dict(zip(types, call.args, strict=False))
        given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
        named = len(call.args) <= positional and required <= given.keys() <= types.keys()
        fits = named and all(_may_be(value, types[name]) for name, value in given.items())
        if fits or "..." in types.values():
            return True
    return False


def _may_be(value: ast.expr, kind: str) -> bool:
    """Return whether a literal may have this type; other expressions may have any."""
    if isinstance(value, ast.UnaryOp):
        value = value.operand  # the number after a minus
    bare = re.sub(r"\[\d+\]$", "", kind.rstrip("?"))
    if bare in ("t", "t1", "t2", "Any"):
        return True
    if isinstance(value, ast.List):
        return "[" in kind
    if not isinstance(value, ast.Constant):
        return True
    if value.value is None:
        return kind.endswith("?")
    return bare in ACCEPTING.get(type(value.value), {bare})


@cache
def overloads() -> dict[str, list[Overload]]:
    """Return the overloads of every PyTorch 1.11 operator, from operators_1_11.txt."""
    found: dict[str, list[Overload]] = {}
    for line in OPERATORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        words = [word for word in rest.split(", ") if word]
        positional = words.index("*") if "*" in words else len(words)
        pairs = [word.rpartition(" ")[::2] for word in words if word != "*"]
        types = {argument.rstrip("="): kind or argument for kind, argument in pairs}
        required = {argument for _, argument in pairs if not argument.endswith("=")}
        found.setdefault(name.partition(".")[0], []).append((types, positional, required))
    return found
