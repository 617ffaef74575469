"""The numbered notebooks are sound as committed, and their runner runs, cleans and stops."""

import ast
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from matplotlib.figure import Figure
from nbformat import NotebookNode

from guie.base.errors import UserError
from guie.report import notebook as helpers

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
STEPS = [
    *("domains", "curation", "training", "evaluation", "export", "scoring"),
    *("selection", "adapters", "distillation", "ensembles", "look_and_find"),
]
ABSOLUTE = re.compile(r"(?<![\w.:/<~*\\-])/(?!/)[A-Za-z_][\w.-]*/|\b[A-Z]:\\")


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def committed(request: pytest.FixtureRequest) -> NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown_text(output: NotebookNode) -> str:
    """What an output says in words, pictures left out."""
    data = {kind: text for kind, text in output.get("data", {}).items() if "image" not in kind}
    return json.dumps([output.get("text", ""), data], ensure_ascii=False)


def test_the_runner_takes_them_in_order(runner: ModuleType) -> None:
    names = [path.stem for path in runner.numbered(FOLDER)]
    assert names == [f"{number:02d}_{step}" for number, step in enumerate(STEPS, 1)]
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 4.5e6


def test_a_notebook_states_its_needs_defines_nothing_and_imports_what_exists(
    committed: NotebookNode,
) -> None:
    nbformat.validate(committed)
    title = committed.cells[0].source
    assert title.startswith("# ")
    assert all(f"**{word}**" in title for word in ("Inputs", "Outputs", "Minutes"))
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    nodes = [node for cell in code_cells(committed) for node in ast.walk(ast.parse(cell.source))]
    assert not any(isinstance(node, defining) for node in nodes)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("guie"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name):
                    importlib.import_module(f"{node.module}.{name}")


def test_outputs_are_clean_and_of_this_code(committed: NotebookNode, runner: ModuleType) -> None:
    made_by, cells = committed.metadata.get("guie"), code_cells(committed)
    if made_by is None:  # kaggle_train, which runs on Kaggle only
        assert not any(cell.outputs or cell.execution_count for cell in cells)
        return
    assert made_by["sources"] == runner.fingerprint(committed), "stale: run.py --save"
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        kinds = {kind for output in cell.outputs for kind in output.get("data", {})}
        if re.search(r"^show\(", cell.source, re.MULTILINE):
            assert kinds & {"image/png", "image/jpeg"}, f"no picture of {cell.source}"
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr"
            assert not ABSOLUTE.search(shown_text(output)), shown_text(output)


def test_outputs_are_of_one_commit(runner: ModuleType) -> None:
    read = [nbformat.read(path, as_version=4) for path in runner.numbered(FOLDER)]
    assert len({notebook.metadata["guie"]["commit"] for notebook in read}) == 1


def test_only_a_commit_is_saved(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "git_state", lambda: {"commit": "0" * 40, "dirty": True})
    monkeypatch.setattr(runner, "execute", lambda *args: pytest.fail("nothing may run"))
    with pytest.raises(UserError, match="--save"):
        runner.main(["--save"])


def test_stated_minutes_agree_with_the_stored_outputs(committed: NotebookNode) -> None:
    """Within a factor of two; a notebook may state the minutes of the stored run too."""
    stated = re.findall(r"\*\*Minutes\*\* \| (.*)", committed.cells[0].source)
    texts = [shown_text(output) for cell in code_cells(committed) for output in cell.outputs]
    found = re.findall(r"(?:, | in )([0-9.]+) s\b(?! an)", "\n".join(texts))
    if stated and found:
        minutes = [float(number) for number in re.findall(r"\b[0-9.]*[0-9]\b", stated[0])]
        assert sum(map(float, found)) / 60 <= 2 * max(minutes), (stated, found)


def write_notebook(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_failing_cell_stops_the_run(
    runner: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = "import os; print(os.environ['GUIE_SIZE'], os.path.basename(os.getcwd()))"
    write_notebook(tmp_path / "01_good.ipynb", place)
    write_notebook(tmp_path / "02_bad.ipynb", "raise KeyError('colour')")
    write_notebook(tmp_path / "03_later.ipynb", "1")
    for name in ("NOTEBOOKS", "ROOT"):
        monkeypatch.setattr(runner, name, tmp_path)
    with pytest.raises(SystemExit) as stop:
        runner.main(["--smoke"])
    printed = capsys.readouterr().out
    assert stop.value.code == 1 and "03_later" not in printed
    assert "02_bad" in printed and "colour" in printed
    good, bad = sorted((tmp_path / "runs" / "smoke" / "notebooks").iterdir())
    [cell] = nbformat.read(good, as_version=4).cells
    assert cell.outputs[0].text == f"smoke {tmp_path.name}\n"


@pytest.mark.parametrize(("words", "count"), [([], 6), (["--all"], 8)])
def test_the_demo_ends_with_the_score_and_the_tour_runs_all(
    words: list[str],
    count: int,
    runner: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number in range(1, 9):
        write_notebook(tmp_path / f"{number:02}_a.ipynb", "1")
    title = nbformat.v4.new_markdown_cell("| **Minutes** | 2.5 on 2 cores |")
    nbformat.write(nbformat.v4.new_notebook(cells=[title]), tmp_path / "02_a.ipynb")
    ran: list[str] = []
    for name in ("NOTEBOOKS", "ROOT"):
        monkeypatch.setattr(runner, name, tmp_path)
    monkeypatch.setattr(runner, "execute", lambda path, copy, size: ran.append(path.name))
    score = {name: {"mmp_at_5": value} for name, value in (("pooled", 0.5), ("public", 0.25))}
    score["private"] = {"mmp_at_5": None}  # a tiny split may hold no such query
    (tmp_path / "submissions" / "demo").mkdir(parents=True)
    (tmp_path / "submissions" / "demo" / "score.json").write_text(json.dumps(score))
    runner.main(words)
    assert ran == [f"{number:02}_a.ipynb" for number in range(1, count + 1)]
    printed = capsys.readouterr().out
    assert "about 2.5 min" in printed and "all 0.5000, public 0.2500, private -" in printed
    source = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    for name in runner.PICTURES:  # which the end lists, and the notebooks draw
        assert f"runs/demo/figures/{name}.png" in printed and f'\\"{name}\\"' in source


def test_run_streams_or_is_quiet_and_fails_with_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    helpers.run("""python -c "import nbclient, os, sys; print(os.getcwd(), sys.prefix)" """)
    assert capfd.readouterr().out == f"{helpers.ROOT} {sys.prefix}\n"  # this environment's python
    bar = "import sys; print('table'); print('100 %', file=sys.stderr)"
    helpers.run(f"""python -c "{bar}" """, quiet=True)
    assert capfd.readouterr() == ("", "100 %\n")
    failing = "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"
    with pytest.raises(RuntimeError, match=r"exit code 3\n.*no such thing"):
        helpers.run(f"""python -c "{failing}" """)


def test_show_saves_and_embeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "FIGURES", tmp_path / "figures")
    image = helpers.show(Figure(figsize=(2, 1)), "empty")
    assert (tmp_path / "figures" / "empty.png").read_bytes() == image.data
