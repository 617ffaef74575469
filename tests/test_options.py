"""options.txt has every option of every script and every config key, so that none is lost unseen.

python tests/test_options.py    # writes it anew; each deleted line in the diff is a lost feature
"""

import argparse
import importlib
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).parents[1]
LIST = Path(__file__).with_name("options.txt")
SCRIPTS = sorted(REPOSITORY.glob("src/*.py"))
MODULES = [path.stem for path in SCRIPTS] + ["get_small", "toydomains.__main__"]
MODULES += ["guie.data.datasets.download"]


class Parsed(Exception):
    """Holds the parser of a script, in place of what the script would do."""


def options(module: str) -> Iterator[str]:
    """Yield a line for each option of a script."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Parsed(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            importlib.import_module(module).main([])
        except Parsed as parsed:
            yield from options_of(parsed.args[0], module.removesuffix(".__main__"))


def options_of(parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    """Yield the lines of a parser and its subcommands: names, then the allowed values."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from options_of(inner, f"{command} {name}")
        elif not isinstance(action, argparse._HelpAction):
            names = " ".join(action.option_strings or [action.dest.upper()])
            yield f"{command} {names} {' | '.join(map(str, action.choices or ()))}".strip()


def keys() -> Iterator[str]:
    """Yield a line for each config key: the script whose config has it, block, key and type."""
    reference = runpy.run_path(str(REPOSITORY / "configs/keys.py"))
    for title, root in reference["ROOTS"].items():
        script = title.partition("`")[2].partition(".py")[0]
        for section in reference["sections"](root, set()):
            for model in section.models:
                names = reference["names_of"](model)
                chosen = " | ".join(names) if len(names) < 5 else names[0] + " ..."
                place = " ".join(word for word in (script, "config:", section.path, chosen) if word)
                for key, kind, *_ in reference["rows_of"](model):
                    kind = re.sub(r"\[[A-Z]\w+\]", "mapping", re.sub(r"\(#.*?\)", "", kind))
                    yield f"{place} > {key}: {kind}".replace("`", "")


def written() -> str:
    """Return the list."""
    lines = {line for module in MODULES for line in options(module)} | set(keys())
    return "\n".join(sorted(lines)) + "\n"


def test_no_option_or_key_is_lost_unseen() -> None:
    assert LIST.read_text(encoding="utf-8") == written(), "run: python tests/test_options.py"


if __name__ == "__main__":
    sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "input")]
    LIST.write_text(written(), encoding="utf-8")
