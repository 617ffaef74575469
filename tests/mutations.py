"""Plant random faults in the source, one at a time, and see which of them the tests notice.

python tests/mutations.py [--rooms losses sampling] [--faults 12] [--seed 0]

A fault is a swapped comparison, + for -, another constant, a negated condition, a dropped `not`, or
an early return. The tests of the room run on a copy of the repository with one fault in it, and stop
at the first failure; a run that takes four times as long as without a fault has noticed it, too. Prints
a line for each fault, then the share that was noticed by room. The same seed plants the same faults as
long as the source is the same.
"""

import argparse
import ast
import copy
import os
import random
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from guard import REPOSITORY, copy_tree
from on_gpu import run_within

# By part: its source, and the tests that have to notice what is wrong there.
ROOMS = {
    "losses": ("src/guie/losses", ["tests/losses"]),
    "sampling": ("src/guie/data/sampling", ["tests/data/sampling"]),
    "adapters": ("src/guie/models/adapters", ["tests/models"]),
    "scorer": ("src/scorer", ["tests/scorer"]),
    "curation": ("src/guie/curation", ["tests/curation"]),
    "metrics": ("src/guie/evaluation/metrics.py", ["tests/evaluation"]),
    "protocols": ("src/guie/evaluation/protocols", ["tests/evaluation"]),
    "training": ("src/guie/training", ["tests/training"]),
}
COMPARED = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
CALCULATED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
# Nothing in them is computed: types, texts of messages, what a caller passes by name is a value.
LEFT_ALONE = (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Fault:
    """One node of a file, and the source that replaces it."""

    kind: str
    file: Path  # relative to the repository
    node: ast.expr | ast.stmt
    planted: str

    def __str__(self) -> str:
        both = ast.unparse(self.node), self.planted
        before, after = (textwrap.shorten(text, 60, placeholder="...") for text in both)
        return f"{self.file}:{self.node.lineno}  {self.kind}: {before} -> {after}"

    def applied(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)  # columns of ast count bytes
        begin = sum(map(len, lines[: self.node.lineno - 1])) + self.node.col_offset
        end = sum(map(len, lines[: self.node.end_lineno - 1])) + self.node.end_col_offset
        whole = b"".join(lines)
        return (whole[:begin] + self.planted.encode() + whole[end:]).decode()


def faults_of(file: Path) -> list[Fault]:
    """Every fault that can be planted in a file of the repository."""
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return [
        Fault(kind, file, place, planted)
        for node in computed(tree)
        for kind, place, planted in mutants(node)
    ]


def computed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below this one that compute something; annotations and messages do not."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, LEFT_ALONE):
                yield child
                yield from computed(child)


def mutants(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """What could be wrong at a node: the kind of fault, what is replaced, and by what source."""
    match node:
        case ast.Compare(ops=[operator]):
            yield "comparison", node, with_operator(node, "ops", [COMPARED[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in CALCULATED and not is_text(node):
            yield "arithmetic", node, with_operator(node, "op", CALCULATED[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, str(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, str(2 * value or 1.0)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, f"({ast.unparse(node.operand)})"
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition", node.test, f"(not ({ast.unparse(node.test)}))"
        case ast.BoolOp(op=operator):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "condition", node, with_operator(node, "op", other)
        case ast.FunctionDef(body=[_, *rest]):
            yield from (
                ("early return", statement, "return None")
                for statement in rest
                if not isinstance(statement, ast.FunctionDef)
            )


def with_operator(node: ast.expr, field: str, operator: ast.AST | list[ast.AST]) -> str:
    changed = copy.copy(node)
    setattr(changed, field, operator)
    return f"({ast.unparse(changed)})"


def is_text(node: ast.BinOp) -> bool:
    """Whether it joins texts or a path: the other operator fails at once."""
    parts = ast.walk(node)
    return any(
        isinstance(p, ast.JoinedStr) or isinstance(getattr(p, "value", None), str) for p in parts
    )


def noticed_by(tests: list[str], folder: Path, timeout_s: float) -> str:
    """The first test that fails in the folder; empty where all pass."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    output, code = run_within(command, folder, environment, timeout_s)
    if code is None:
        return f"more than {timeout_s:.0f} s"
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if code and not failed:
        return f"exit code {code}"
    return failed[0].split()[1].split("::")[-1] if failed else ""


def drawn(possible: list[Fault], count: int, seed: int) -> list[Fault]:
    """So many different faults, of all kinds alike: most places are constants."""
    generator, by_kind = random.Random(seed), {}
    for fault in possible:
        by_kind.setdefault(fault.kind, []).append(fault)
    chosen: list[Fault] = []
    while by_kind and len(chosen) < count:
        kind = generator.choice(sorted(by_kind))
        chosen.append(by_kind[kind].pop(generator.randrange(len(by_kind[kind]))))
        if not by_kind[kind]:
            del by_kind[kind]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS), metavar="ROOM")
    parser.add_argument("--faults", type=int, default=8, help="in each room")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_tree(folder)
        for room in args.rooms:
            source, tests = ROOMS[room]
            files = sorted((REPOSITORY / source).rglob("*.py")) or [REPOSITORY / source]
            possible = [f for file in files for f in faults_of(file.relative_to(REPOSITORY))]
            began = time.monotonic()
            if failed := noticed_by(tests, folder, timeout_s=1800):
                sys.exit(f"{room}: the tests fail without any fault: {failed}")
            seconds = time.monotonic() - began
            print(f"{room}: {len(possible)} faults possible, {seconds:.0f} s", flush=True)
            for fault in drawn(possible, args.faults, args.seed):
                before = (folder / fault.file).read_text(encoding="utf-8")
                (folder / fault.file).write_text(fault.applied(before), encoding="utf-8")
                by = noticed_by(tests, folder, timeout_s=30 + 4 * seconds)
                (folder / fault.file).write_text(before, encoding="utf-8")
                counts[room, bool(by)] += 1
                print(f"  {'noticed' if by else 'ESCAPED'}  {fault}  {by}", flush=True)
    for room in args.rooms:
        total = counts[room, True] + counts[room, False]
        print(f"{room:12} {counts[room, True]:3} of {total}")
    noticed = sum(count for (_, by), count in counts.items() if by)
    print(f"noticed: {noticed} of {counts.total()}, {noticed / max(counts.total(), 1):.0%}")


if __name__ == "__main__":
    main()
