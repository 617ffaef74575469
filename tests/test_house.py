"""The shape of the house: imports go downward, scripts shadow nothing, scorer and toydomains stand alone."""

import ast
import re
import runpy
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
INPUT = SRC.parent / "input"
PACKAGE = sorted((SRC / "guie").rglob("*.py"))
TOYDOMAINS = sorted((INPUT / "toydomains").rglob("*.py"))
SCORER = sorted((SRC / "scorer").rglob("*.py"))
SCRIPTS = [*sorted(SRC.glob("*.py")), INPUT / "get_small.py"]
BENCHMARKS = sorted((SRC.parent / "tests/bench").glob("[!t]*.py"))

# The rooms of the package, bottom first: a room imports only rooms above it in this list.
ROOMS = [
    *("base", "config", "data", "losses", "models", "rows", "evaluation", "training"),
    *("ensembles", "report", "curation", "export", "studies", "search"),
]
HUGGING_FACE = {
    *("accelerate", "datasets", "diffusers", "evaluate", "huggingface_hub", "optimum", "peft"),
    *("safetensors", "tokenizers", "transformers", "trl"),
}
SCORER_MAY_IMPORT = {"scorer", "torch", "PIL", "numpy", "pandas", "tqdm", "fsspec"}
TOYDOMAINS_MAY_IMPORT = {"toydomains", "PIL", "numpy", "tqdm"}


@cache
def imported(file: Path) -> set[str]:
    """Dotted names of the modules that a file imports, wherever it does so."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    files = package.rglob("*.py")
    names = {".".join(f.relative_to(package.parent).with_suffix("").parts): f for f in files}
    return {name.removesuffix(".__init__"): file for name, file in names.items()}


def imports_between(files: dict[str, Path]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, for type checks alone too."""
    return {
        module: {
            name if name in files else name.rpartition(".")[0]
            for name in imported(file)
            if name in files or name.rpartition(".")[0] in files
        }
        for module, file in files.items()
    }


def test_the_package_is_its_rooms() -> None:
    """No module lies loose, and each room says what it is for."""
    inside = {path.name for path in (SRC / "guie").iterdir()} - {"__pycache__"}
    assert inside == {"__init__.py", "py.typed", *ROOMS}
    for folder in {file.parent for file in PACKAGE}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), folder


def test_imports_go_downward() -> None:
    scripts = {script.stem for script in SCRIPTS}
    for file in PACKAGE:
        own = file.relative_to(SRC / "guie").parts[0]
        for name in imported(file):
            top, _, rest = name.partition(".")
            assert top not in scripts, f"{file}: imports the script {top}"
            room = rest.split(".")[0]
            if top == "guie" and room in ROOMS and own in ROOMS:
                assert ROOMS.index(room) <= ROOMS.index(own), f"{file}: {name} is from below"


def test_no_script_shadows_a_module() -> None:
    names = {path.stem for path in SCRIPTS} | {p.name for p in SRC.iterdir() if p.is_dir()}
    assert not names & (set(sys.stdlib_module_names) | HUGGING_FACE)


@pytest.mark.parametrize(
    ("files", "allowed"),
    [([SRC / "score.py", *SCORER], SCORER_MAY_IMPORT), (TOYDOMAINS, TOYDOMAINS_MAY_IMPORT)],
    ids=["scorer", "toydomains"],
)
def test_it_stands_alone(files: list[Path], allowed: set[str]) -> None:
    for file in files:
        tops = {name.partition(".")[0] for name in imported(file)}
        assert tops <= allowed | set(sys.stdlib_module_names), file


def test_the_package_imports_nothing_of_input() -> None:
    for file in {*PACKAGE, *SCORER, *SRC.glob("*.py")}:
        assert not {"toydomains", "get_small"} & {n.partition(".")[0] for n in imported(file)}, file


def test_only_one_module_needs_mteb() -> None:
    """What runs by requirements.txt alone imports none of what other lists add.

    ONNX is imported by name, where it is asked for.
    """
    added = {"mteb", "torchmetrics", "datasets", "onnx", "onnxscript", "onnxruntime"}
    added |= {"qdrant_client", "psycopg"}
    others = {*PACKAGE, *TOYDOMAINS, *SCRIPTS, *SCORER} - {SRC / "guie/evaluation/mteb.py"}
    for file in others:
        tops = {name.partition(".")[0] for name in imported(file)}
        assert not tops & added, file


@pytest.mark.parametrize("package", [SRC / "guie", SRC / "scorer", INPUT / "toydomains"])
def test_no_circle_of_imports(package: Path) -> None:
    try:
        TopologicalSorter(imports_between(modules(package))).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_a_domain_imports_the_kit_alone() -> None:
    """The kit knows no domain, and a domain no other."""
    files = modules(INPUT / "toydomains")
    kit = {module for module, file in files.items() if file.parent.name == "kit"}
    shared = {f"toydomains.{name}" for name in ("__init__", "__main__", "dataset", "domains")}
    domains = files.keys() - kit - shared - {"toydomains"}
    assert len(domains) == 7
    for module, others in imports_between(files).items():
        if module in kit | domains:
            assert others <= kit, f"{module} imports {others - kit}"


def test_no_path_hacks() -> None:
    for file in [*PACKAGE, *TOYDOMAINS, *SCRIPTS, *SCORER]:
        text = file.read_text(encoding="utf-8")
        for hack in ("sys.path", "PYTHONPATH", "os.chdir"):
            assert hack not in text, f"{file}: {hack}"


def test_the_scorer_itself_never_loads_torch() -> None:
    """A crash of a submission then ends its own process only; `process` imports `child` in that one."""
    of_the_child = [SRC / "scorer/child.py", SRC / "scorer/runtime.py"]
    for file in {SRC / "score.py", *SCORER} - {*of_the_child}:
        names = {name for name in imported(file)}
        may = {"scorer.child"} if file.name == "process.py" else set()
        found = {n for n in names if n.startswith(("torch", "scorer.child", "scorer.runtime"))}
        assert found == may, file


def test_the_lowest_versions_are_the_bounds_of_the_ranges() -> None:
    """Else `make test-lowest` would prove other bounds than those that people read."""
    lists = [SRC.parent / f"requirements/{name}.txt" for name in ("base", "search", "dev")]
    required = "".join(path.read_text() for path in lists).lower().replace("_", "-")
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", required, re.MULTILINE))
    listed = (SRC.parent / "requirements/lowest.lock").read_text().splitlines()
    lowest = dict(line.split("==") for line in listed if not line.startswith("#"))
    assert len(bounds) > 20
    for name, bound in bounds.items():
        assert f"{lowest[name]}.".startswith(f"{bound}."), f"{name}: make lock-lowest"


@pytest.mark.parametrize(
    "extra, brings",
    [("judges", {"mteb", "torchmetrics"}), ("export", {"onnx"}), ("browser", {"playwright"})],
)
def test_an_extra_leaves_the_locked_versions_alone(extra: str, brings: set[str]) -> None:
    """One environment holds both, and each version stands in one place."""
    locked, added = (
        {
            line.split("==")[0].lower().replace("_", "-")
            for line in (SRC.parent / name).read_text().splitlines()
            if not line.startswith("#")
        }
        for name in ("requirements.lock", f"requirements/{extra}.lock")
    )
    assert brings <= added
    assert not locked & added


@pytest.mark.slow
@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_a_benchmark_finds_what_it_imports(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run by hand: a name that moved would be found when somebody needs the number."""
    monkeypatch.syspath_prepend(file.parent)
    runpy.run_path(str(file), run_name="benchmark")
