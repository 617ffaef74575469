"""YAML as configs have it: one value a key, decimal numbers, and no more of it than a person writes."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

from guie.base.errors import UserError
from guie.base.files import refuse_special

MAX_BYTES = 1_000_000
# Beyond any config: an alias counts as all that it stands for, and ten lines may stand for 10 ** 10.
MAX_VALUES = 100_000
MAX_DEPTH = 50
MAX_INT = 2**63 - 1

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
MERGE = "tag:yaml.org,2002:merge"
AS_TEXT = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")  # 2026-01-02 and =


class _Refused(yaml.MarkedYAMLError):
    """YAML that is valid, and that no config needs."""

    def __init__(self, problem: str, mark: Any):
        super().__init__(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader with decimal numbers, and without what would surprise.

    YAML 1.1 reads 010 as 8, 1:30 as 90 and 1e-4 as a string; here the first two are strings, which no
    key takes for a number. PyYAML takes the last of two values of one key.
    """

    yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in (INT, FLOAT, *AS_TEXT)]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str):
        super().__init__(text)
        self.sizes: dict[yaml.Node, tuple[int, int]] = {}  # values and levels in each, with itself

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) not in (None, "!"):
            problem = f"a tag, {event.tag}; write the value without, a string in quotes"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        if "\0" in (getattr(event, "value", None) or ""):
            raise _Refused("a NUL in a string", event.start_mark)
        node = super().compose_node(parent, index)
        assert node is not None  # there is an event
        if node in self.sizes:  # an alias
            return node
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"*{event.anchor} stands within what it names", event.start_mark)
        below: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            below = node.value
        elif isinstance(node, yaml.MappingNode):
            below = [one for pair in node.value for one in pair]
            self._refuse_repeated([key for key, _ in node.value])
        sizes = [self.sizes[one] for one in below]
        values = 1 + sum(values for values, _ in sizes)
        levels = 1 + max((levels for _, levels in sizes), default=0)
        if max(values, len(self.sizes)) > MAX_VALUES:
            raise _Refused(f"more than {MAX_VALUES:,} values, each alias counted", node.start_mark)
        if levels > MAX_DEPTH:
            raise _Refused(f"more than {MAX_DEPTH} levels", node.start_mark)
        self.sizes[node] = values, levels
        return node

    def _refuse_repeated(self, keys: list[yaml.Node]) -> None:
        lines: dict[Any, int] = {}
        for key in keys:
            if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
                name, line = self.construct_object(key), key.start_mark.line + 1
                if name in lines:
                    problem = f"key {name!r} stands in line {lines[name]} already; drop one"
                    raise _Refused(problem, key.start_mark)
                lines[name] = line

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "")
        if len(text) > 30 or abs(number := int(text, 0)) > MAX_INT:
            raise _Refused("a whole number beyond 64 bits", node.start_mark)
        return number


_Loader.add_constructor(INT, _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    INT, re.compile(r"^(?:[-+]?(?:0|[1-9][\d_]*)|0x[\da-fA-F]+)$", re.ASCII), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"^(?:[-+]?\d[\d_]*\.[\d_]*|\.\d[\d_]*|[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        re.ASCII,
    ),
    list("-+.0123456789"),
)


def read_yaml(path: str | Path) -> Any:
    """Parse a YAML file safely. Raises UserError naming the file and the line."""
    path = Path(path)
    refuse_special(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes; no config is")
        return parsed(text.decode("utf-8"), str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def parsed(text: str, source: str) -> Any:
    """What YAML has in a text. Raises UserError naming the source and the line."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        said = textwrap.shorten(str(getattr(error, "problem", error)), 200, placeholder="...")
        fault = said if isinstance(error, _Refused) else f"not valid YAML: {said}"
        raise UserError(f"{source}: {line}{fault}") from None
    except RecursionError:
        raise UserError(f"{source}: more than {MAX_DEPTH} levels") from None
