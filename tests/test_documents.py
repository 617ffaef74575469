"""The documents are true: links lead somewhere, paths exist, commands parse, and their inputs are there.

Every Markdown file is read, and the examples in the scripts' docstrings.
"""

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import mean

import pytest

from guie.config.loading import parsed

ROOT = Path(__file__).parents[1]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "src").glob("*.py"))}
SCRIPTS["get_small"] = ROOT / "input/get_small.py"
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not {"runs", "node_modules"} & set(path.relative_to(ROOT).parts)
    and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    and path.relative_to(ROOT).parts[0] not in ("exported", "submissions", "input")
] + [ROOT / "submissions/README.md", ROOT / "input/README.md"]
MADE_IN = ("runs", "input", "submissions", "exported")  # by commands; git ignores what they hold
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text(document)), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text(document))):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if target.is_dir():
            target /= "README.md" if anchor else ""
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_named_paths_exist(document):
    """Paths from the root, or from the document's folder, or from `src/guie`."""
    missing = []
    for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", FENCE.sub("", text(document))):
        top = path.split("/")[0]
        if top in ("src", "configs", "tests", "notebooks") and not (ROOT / path).exists():
            missing.append(path)
    assert not missing


def commands_of(block: str) -> Iterator[list[str]]:
    """Yield each command of a code block as words, without options in brackets and comments."""
    for line in block.replace("\\\n", " ").splitlines():
        line = re.sub(r"\[-.*?\]", "", line).split("  #")[0].strip()
        if re.match(r"(python|accelerate launch|make|pytest) ", line):
            yield shlex.split(line)


def examples() -> Iterator[tuple[str, list[list[str]], str]]:
    """Yield (place, commands, everything shown before and in it) for each code block and docstring."""
    for document in DOCUMENTS:
        for found in FENCE.finditer(text(document)):
            line = text(document)[: found.start()].count("\n") + 1
            if commands := list(commands_of(found[2])):
                yield f"{name(document)}:{line}", commands, text(document)[: found.end()]
        inline = re.findall(r"`((?:python|make|pytest|accelerate launch) [^`]+)`", text(document))
        commands = [words for line in inline for words in commands_of(line)]
        if commands:
            yield f"{name(document)}: inline", commands, text(document)
    for path in SCRIPTS.values():
        if commands := list(commands_of(text(path).split('"""')[1])):
            yield name(path), commands, text(path)


EXAMPLES = list(examples())


def of_script(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the script that a command starts, and its arguments."""
    for place, word in enumerate(words):
        path = Path(word)
        if path.suffix == ".py" and path.parent in (Path("src"), Path("input")):
            return path.stem, words[place + 1 :]
    return None


@pytest.mark.parametrize(("place", "commands", "_"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_commands_parse(place, commands, _, capsys):
    for words in commands:
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            known = re.findall(
                r"^([a-z0-9-]+)(?=[a-z0-9 -]*:)", text(ROOT / "Makefile"), re.MULTILINE
            )
            assert set(targets) <= set(known), words
        elif words[0] == "pytest":
            check_pytest(words)
        elif found := of_script(words):
            script, argv = found
            assert script in SCRIPTS, words
            if place.endswith("inline"):  # may leave out what is required
                check_other(words)
                continue
            try:
                importlib.import_module(script).parse_args(argv)
            except SystemExit:
                pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")
        elif words[0] == "python":
            check_other(words)


def check_pytest(words: list[str]) -> None:
    paths = list(takewhile(lambda word: not word.startswith("-"), words[1:]))
    assert all((ROOT / path).exists() for path in paths), words
    if "-k" in words:
        files = [ROOT / path for path in paths]
        files = [f for path in files for f in ([path] if path.is_file() else path.rglob("*.py"))]
        tests = "\n".join(map(text, files)).lower()
        for word in re.findall(r"\w+", words[words.index("-k") + 1]):
            assert word in ("or", "and", "not") or word.lower() in tests, f"no test for {word}"


def check_other(words: list[str]) -> None:
    """A benchmark or tool: its file exists and its options are named in it."""
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    if script is None:
        return
    assert (ROOT / script).exists(), words
    source = text(ROOT / script)
    for option in re.findall(r"--([\w-]+)", shlex.join(words)):
        assert option.replace("-", "_") in source or f"--{option}" in source, (
            f"no {option}: {words}"
        )


def outputs(words: list[str]) -> Iterator[str]:
    """Yield what a command writes: `--out`, and for configs what they name."""
    found = of_script(words)
    script, argv = found or (Path(words[1]).stem, words[2:])
    for option in ("--out", "--html", "--json", *(["--shards"] if script == "curate" else [])):
        if option in argv:
            yield argv[argv.index(option) + 1]
    yield from (word.removeprefix("out=") for word in argv if word.startswith("out="))
    yield from (f"runs/{word.removeprefix('name=')}" for word in argv if word.startswith("name="))
    if script == "get_small":
        yield "input/small"
    if script in ("train", "compose", "curate") and "--config" in argv:
        yield from made_by(ROOT / argv[argv.index("--config") + 1])


def made_by(config: Path) -> Iterator[str]:
    """Yield what a config's command writes; a config of the reader's own is not there."""
    if config.exists():
        keys = parsed(text(config)).plain
        if not isinstance(keys, dict):
            return
        if "base" in keys:
            yield from made_by(config.parent / keys["base"])
        out = str(keys.get("out", f"runs/{keys.get('name')}"))
        yield from (out, f"runs/{keys.get('name')}")


@cache
def made_by_configs() -> frozenset[str]:
    """What the notebooks and the ready configs make."""
    folders = ("demo", "compose", "mixes")
    configs = [path for folder in folders for path in (ROOT / "configs" / folder).glob("*.yaml")]
    made = {path for config in configs for path in made_by(config)}
    made |= {str(Path(path).with_suffix(".boxes.csv")) for path in made}
    return frozenset(made | {"submissions/demo", "exported/demo", "runs/pictures", "exported/hub"})


@pytest.mark.parametrize(("place", "commands", "shown"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_inputs_of_commands_are_there(place, commands, shown):
    """A path with a folder exists, is shown before, or is made by an earlier command or a ready config.

    `runs/a` and the like, of one letter, are the reader's own.
    """
    made = set(made_by_configs())
    before = [words for words in commands_of(shown) if words[0] in ("python", "accelerate")]
    for words in [*before, *commands]:
        if of_script(words) or words[0] == "python":
            made |= set(outputs(words))
    missing = []
    for words in commands:
        for word in re.split(r"[\s=]+", " ".join(words[1:])):
            word = word.strip("'\"[],")
            top, *rest = word.split("/")
            known = top in (*MADE_IN, "configs", "tests", "src", "notebooks") and rest
            if not known or "*" in word or re.fullmatch(r"[A-Z_]+|[a-z](\.\w+)?", rest[-1]):
                continue
            inside = any(word == path or word.startswith(f"{path}/") for path in made)
            configs = "".join(block for kind, block in FENCE.findall(shown) if kind == "yaml")
            if not inside and not (ROOT / word).exists() and word not in configs:
                missing.append(word)
    assert not missing


def test_the_first_page_is_short():
    readme = text(ROOT / "README.md")
    assert len(readme.splitlines()) <= 220 and len(readme.split()) <= 2200


def sentences(document: Path) -> Iterator[str]:
    """Yield sentences of the paragraphs and list items, without code, tables and addresses."""
    plain = re.sub(r"^(\||#|!).*$", "", FENCE.sub("", text(document)), flags=re.MULTILINE)
    plain = re.sub(r"<[^>]+>|\]\([^)]*\)", " ", plain)
    plain = re.sub(r"`[^`]*`", "code", plain)  # a command counts as a word
    for block in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", plain):
        yield from re.split(r"(?<=[.?!:;])\s+", " ".join(block.split()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_sentences_are_short(document):
    long = [sentence for sentence in sentences(document) if len(sentence.split()) > 25]
    assert not long


MODELS = {"trained": ["trained"], "unseen": ["unseen_a", "unseen_b"]}


def measured(benchmark: str, model: str, **wanted: object) -> str:
    """Return R@1 / mMP@5 of a benchmark's row, the mean over both folds of unseen domains."""
    files = [ROOT / f"tests/bench/results/{benchmark}_{name}.json" for name in MODELS[model]]
    rows = [
        row for file in files for row in json.loads(text(file)) if wanted.items() <= row.items()
    ]
    assert len(rows) == len(files)
    return " / ".join(f"{mean(row[key] for row in rows):.3f}" for key in ("R@1", "mMP@5"))


def rows_of_search(heading: str) -> list[list[str]]:
    section = text(ROOT / "src/guie/search/README.md").partition(f"\n## {heading}\n")[2]
    table = re.findall(r"^\| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in table]


def test_the_table_of_re_ranking_is_the_benchmarks() -> None:
    rows = rows_of_search("Re-ranking")[1:]
    assert len(rows) == 6
    for name, *cells, _ in rows:
        key = {"re-ranking": name.strip("`")}
        assert cells == [measured("reranking", model, **key) for model in MODELS]


def test_the_table_of_regions_is_the_benchmarks() -> None:
    rows = rows_of_search("Regions")[1:]
    assert len(rows) == 3
    for count, *cells in rows:
        found = [
            measured("regions", model, regions=int(count), **{"index images": title})
            for model in ("trained", "unseen")
            for title in ("as they are", "with clutter")
        ]
        assert cells == found
