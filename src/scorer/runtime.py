"""Check whether the challenge's PyTorch 1.11 can open a TorchScript file of a newer version.

`archive.format_version` reads the format version. This module checks for records of unknown layout,
offsets that 1.11's zip reader misreads, and operators that it lacks or that have other signatures. It
reads the source text in the archive: 1.11 parses that text, whose arguments omit defaults. The text is a
subset of Python: `aten` operators are `torch.name(...)`, all others `ops.namespace.name(...)`.
"""

from __future__ import annotations

import ast
import re
import struct
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from scorer.archive import ZIP_ERRORS
from scorer.errors import Violation, one_line

# Operators that read or write files, in any namespace.
FILE_ACCESS = {"from_file", "save", "load_tensor"}
OPERATORS = Path(__file__).with_name("operators_1_11.txt")
NAMED = 3  # operators in one message
_UNSET = 2**32 - 1  # in a 32-bit field: see the zip64 extra field
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_TYPES_OF_LITERALS = {bool: ("bool", "Scalar"), str: ("str", "Device")}


class Overload(NamedTuple):
    """The arguments of one overload of an operator: types by name, in order."""

    types: dict[str, str]
    positional: int  # number of arguments allowed by position
    required: frozenset[str]


def code_of(path: Path) -> dict[str, ast.Module]:
    """Parse the source text of a TorchScript archive, by record name, read by PyTorch's own reader.

    Another reader may find other text: PyTorch ignores the case of record names, and finds the list of
    records by the end of the file.

    Raises:
        Violation: it cannot be read.
    """
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        names = [name for name in reader.get_all_records() if name.lower().endswith(".py")]
        return {name: ast.parse(reader.get_record(name)) for name in names}
    except (RuntimeError, SyntaxError, ValueError, RecursionError) as error:
        raise Violation(f"its code cannot be read ({one_line(error)})") from error


def refuse_file_access(path: Path) -> None:
    """Reject a TorchScript archive whose code names an operator that reads or writes files.

    Any mention counts, because `f = torch.save` and `getattr(torch, "save")` can call it too.

    Raises:
        Violation: the operators, in one line.
    """
    nodes = [node for source in code_of(path).values() for node in ast.walk(source)]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named |= {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    if found := sorted(named & FILE_ACCESS):
        raise Violation(f"operators that read or write files: {', '.join(found)}")


def check_runtime(path: Path) -> None:
    """Reject a TorchScript archive that PyTorch 1.11 cannot open.

    Raises:
        Violation: what it cannot read, in one line.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_offsets(path, archive)
            debug = [name for name in archive.namelist() if name.endswith(".debug_pkl")]
    except ZIP_ERRORS as error:
        raise Violation(f"its records cannot be read ({one_line(error)})") from error
    if debug:
        raise Violation(f"{len(debug)} .debug_pkl records, whose layout PyTorch 1.11 does not know")
    nodes = [node for source in code_of(path).values() for node in ast.walk(source)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and not is_known(node)]
    if unknown := sorted({str(operator_of(call)) for call in calls}):
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        shown = ", ".join(unknown[:NAMED])
        raise Violation(
            f"operators that PyTorch 1.11 lacks or has with other arguments: {shown}{more}"
        )


def _refuse_offsets(path: Path, archive: zipfile.ZipFile) -> None:
    """Reject offsets that 1.11 misreads: its miniz takes 0xFFFFFFFF literally unless a size is zip64."""
    count = len(archive.infolist())
    with path.open("rb") as file:
        file.seek(archive.start_dir)
        directory = file.read()
    place = 0
    for _ in range(count):
        fields = _CENTRAL.unpack_from(directory, place)
        sizes, lengths, offset = fields[8:10], fields[10:13], fields[16]
        if offset == _UNSET and _UNSET not in sizes:
            raise Violation("a zip64 offset that the zip reader of PyTorch 1.11 misreads")
        place += _CENTRAL.size + sum(lengths)


def operator_of(call: ast.Call) -> str | None:
    """Return the called operator: `torch.relu` is aten::relu, `ops.prim.max` prim::max; else None."""
    words: list[str] = []
    function = call.func
    while isinstance(function, ast.Attribute):
        words.insert(0, function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or not words:
        return None
    if function.id == "torch":
        return "aten::" + ".".join(words)
    return f"{words[0]}::{'.'.join(words[1:])}" if function.id == "ops" else None


def is_known(call: ast.Call) -> bool:
    """Return whether 1.11 has the called operator with these arguments; true for other functions."""
    name = operator_of(call)
    return name is None or any(_takes(overload, call) for overload in overloads().get(name, ()))


def _takes(overload: Overload, call: ast.Call) -> bool:
    if "..." in overload.types.values():
        return True
    if len(call.args) > overload.positional:
        return False
    given = dict(zip(overload.types, call.args, strict=False))
    given.update({str(keyword.arg): keyword.value for keyword in call.keywords})
    if not overload.required <= given.keys() <= overload.types.keys():
        return False
    return all(_may_be(value, overload.types[name]) for name, value in given.items())


def _may_be(value: ast.expr, kind: str) -> bool:
    """Return whether a literal may have this type; other expressions may have any."""
    if isinstance(value, ast.UnaryOp):
        value = value.operand  # the number after a minus
    if kind.rstrip("?") in ("t", "t1", "t2", "Any"):
        return True
    if isinstance(value, ast.List):
        return "[" in kind
    if not isinstance(value, ast.Constant):
        return True
    if value.value is None:
        return kind.endswith("?")
    bare = re.sub(r"\[\d+\]$", "", kind.rstrip("?"))  # an int may stand for int[2]
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return bare in ("int", "float", "complex", "Scalar")
    if isinstance(value.value, float):
        return bare in ("float", "complex", "Scalar")
    return bare in _TYPES_OF_LITERALS.get(type(value.value), (bare,))


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
        required = frozenset(argument for _, argument in pairs if not argument.endswith("="))
        found.setdefault(name.partition(".")[0], []).append(Overload(types, positional, required))
    return found
