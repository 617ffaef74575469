"""Operator schemas as PyTorch prints them -> the compact list that exporter and scorer read.

    load --operators | python tests/torch111/compact.py > src/scorer/operators_1_11.txt

Kept: aten and prim operators, each overload with its arguments' types and names and whether they
have a default. Left out: what an exported encoder cannot call (out= and backward overloads, the
namespaces of quantization and of PyTorch's own tests).
"""

import re
import sys
from collections.abc import Iterable

HEADER = """\
# The operators of PyTorch 1.11.0: torch::jit::getAllOperators() of libtorch in the wheel
# torch-1.11.0-cp310-cp310-manylinux1_x86_64, compacted by tests/torch111/compact.py.
# One overload a line, `=` after an argument that has a default, `*` before those by keyword only.
"""


def compact(schemas: Iterable[str]) -> str:
    """`aten::f.o(Tensor(a!) x, int[2] n=1) -> Tensor` becomes `aten::f.o Tensor x, int[2] n=`."""
    lines = {_line(schema) for schema in schemas if schema.startswith(("aten::", "prim::"))}
    kept = (line for line in lines if not re.search(r"backward| out\d?(,|$)", line))
    return HEADER + "".join(f"{line}\n" for line in sorted(kept))


def _line(schema: str) -> str:
    name, arguments = schema.rpartition(" -> ")[0].removesuffix(")").split("(", 1)
    arguments = re.sub(r"\([^()]*\)", "", arguments)  # alias sets, and what a Dict holds
    arguments = re.sub(r"=(\[[^\]]*\]|[^,]+)", "=", arguments)
    return f"{name} {arguments}".strip()


if __name__ == "__main__":
    sys.stdout.write(compact(sys.stdin))
