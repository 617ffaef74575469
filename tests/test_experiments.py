"""EXPERIMENTS.md and the documents of the studies: lengths, and scores that equal the records."""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from guie.config.loading import load_config
from guie.config.study import ClaimsConfig
from guie.studies import claims
from guie.studies.grid import Plan
from guie.studies.results import StudyStatus, as_committed
from guie.studies.table import END, decimal, scores, summary

REPOSITORY = Path(__file__).parents[1]
EXPERIMENTS = REPOSITORY / "EXPERIMENTS.md"
README = REPOSITORY / "README.md"
STUDIES = REPOSITORY / "configs/studies"
CLAIMS = STUDIES / "claims.yaml"  # no study, but a list of comparisons
NAMES = [path.stem for path in sorted(STUDIES.glob("*.yaml")) if path != CLAIMS]

LINES = 364
ROWS = 12  # of a table
WORDS = 12  # of a cell
CHECKED = {
    "val R@1": "val r_at_1",
    "test R@1": "test r_at_1",
    "test mMP@5": "test mmp_at_5",
    "unseen R@1": "unseen r_at_1",
    "unseen R@1 (one seed)": "unseen r_at_1",
}
COMPARED_WITH_RECORDS = {
    *("adapters", "best", "compositions", "default_rates", "distillation", "dreml", "few_shot"),
    *("losses", "nested", "rates", "specialists", "specialists_112", "students"),
}


class Table(NamedTuple):
    section: str
    heads: list[str]
    rows: list[list[str]]


def sections(text: str) -> dict[str, str]:
    _, *parts = re.split(r"(?m)^## ", text)
    return {title: body for title, _, body in (part.partition("\n") for part in parts)}


def tables(text: str) -> Iterator[Table]:
    for title, body in sections(text).items():
        for found in re.findall(r"(?m)(?:^\|.*\n)+", body):
            heads, _, *rows = (
                [cell.strip() for cell in line.strip().strip("|").split("|")]
                for line in found.splitlines()
            )
            yield Table(title, heads, rows)


@pytest.fixture(scope="module")
def records() -> Iterator[None]:
    """Read studies as where no images are: a reader's own copy of the manifest may differ."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("GUIE_REAL", raising=False)
        patched.setattr(claims, "as_committed", lambda path: committed(path.stem))  # read once
        yield
    committed.cache_clear()
    means.cache_clear()


@cache
def committed(name: str) -> tuple[Plan, StudyStatus]:
    return as_committed(STUDIES / f"{name}.yaml")


@cache
def means(name: str) -> pd.DataFrame:
    plan, now = committed(name)
    return summary(scores(plan, now), plan.study.baseline)


def expected(line: pd.Series, column: str) -> str:
    deviation = line[f"deviation of {column}"]
    return decimal(line[column]) + ("" if math.isnan(deviation) else f" ± {decimal(deviation)}")


def row_of(name: str, head: str) -> str | None:
    """The study's row whose score is in a column, None if the column is no score.

    N in the name stands for the numbers of the column's embeddings.
    """
    if head in CHECKED:
        return name
    if numbers := re.fullmatch(r"(\d+) numbers", head):
        return name.replace("N", numbers[1])
    if mix := re.fullmatch(r"(products|twenty|uned|drawn), (?:val|test)", head):
        return f"{mix[1]}, {name}"
    return f"{name}, {head}" if re.fullmatch(r"\d+ images?", head) else None


def test_results_are_short() -> None:
    text = EXPERIMENTS.read_text(encoding="utf-8")
    prose = re.sub(r"(?s)<!-- study: claims -->.*?<!-- /study -->", "", text)  # a generated table
    assert len(prose.splitlines()) <= LINES
    found = list(tables(text))
    assert len(found) >= 10
    for table in found:
        assert len(table.rows) <= ROWS or table.heads[-1] == "verdict", table.section
        cells = [cell for row in [table.heads, *table.rows] for cell in row]
        assert not [cell for cell in cells if len(cell.split()) > WORDS], table.section
        assert {len(row) for row in table.rows} == {len(table.heads)}, table.section


def test_each_question_has_one_table_and_its_command() -> None:
    questions = sections(EXPERIMENTS.read_text(encoding="utf-8"))
    questions = {title: body for title, body in questions.items() if title.endswith("?")}
    assert len(questions) >= 10
    for title, body in questions.items():
        assert body.startswith("\n**"), f"{title}: no answer comes first"
        assert len(re.findall(r"(?m)^\|---", body)) == 1, title
        assert re.search(r"(?m)^(?:- )?Run: .*`", body), f"{title}: no command"


def test_scores_equal_the_records(records: None) -> None:
    """A row that names a study's row in `code` has its scores; the study is named in the row or section."""
    seen: set[str] = set()
    compared = 0
    text = EXPERIMENTS.read_text(encoding="utf-8")
    for table in tables(text):
        body = sections(text)[table.section]
        named = re.search(r"src/study\.py configs/studies/(\w+)\.yaml", body)
        for row in table.rows:
            cells = dict(zip(table.heads, row, strict=True))
            name = re.search(r"`([^`]+)`", row[0])
            if name is None:
                continue
            study = cells.get("study", "").strip("`") or (named[1] if named else "")
            for head, cell in cells.items():
                if (whole := row_of(name[1], head)) and (cell or whole in means(study).index):
                    line = means(study).loc[whole]
                    of_val = head.endswith(", val")
                    column = CHECKED.get(head, "val r_at_1" if of_val else "test r_at_1")
                    score = cell.removesuffix(" (one seed)")
                    assert score == (
                        "" if math.isnan(line[column]) and not cell else expected(line, column)
                    ), (table.section, whole, head)
                    compared += bool(score)
                    one = cell.endswith("(one seed)") or head.endswith("(one seed)")
                    if head.startswith("unseen") and score and line["seeds unseen"] < line["seeds"]:
                        assert one, (table.section, whole, "more seeds than were run")
                elif head == "seeds":
                    assert cell == f"{means(study).loc[name[1]]['seeds']:.0f}", (study, name[1])
                elif head == "parameters that train":
                    trains = means(study).loc[name[1]]["trainable_parameters"]
                    assert cell == f"{trains:,.0f}", (study, name[1])
            seen.add(study)
    assert seen == COMPARED_WITH_RECORDS
    assert compared > 150


@pytest.mark.parametrize(("path", "headlines"), [(EXPERIMENTS, False), (README, True)])
def test_the_claims_are_current(records: None, path: Path, headlines: bool) -> None:
    """No verdict is written by hand."""
    begin = f"<!-- study: claims{'_headlines' * headlines} -->\n"
    written = path.read_text(encoding="utf-8").partition(begin)[2].partition(END)[0]
    words = "--claims --headlines" if headlines else "--claims"
    command = f"python src/study.py {words} --write {path.name}"
    assert written == claims.claims_table(CLAIMS, headlines), f"run: {command}"


def test_each_claim_says_where_and_each_paper_has_one_headline() -> None:
    listed = load_config(CLAIMS, ClaimsConfig).claims
    place = r"table|figure|section|equation|abstract|\bA\.\d|\bB\.\d|\.(?:py|ipynb)\b"
    assert [claim.claim for claim in listed if not re.search(place, claim.says)] == []
    headlines = [claim.paper for claim in listed if claim.headline]
    assert headlines == ["UnED", "PUMA", "SND", "DREML", "layers", "winners"]


def test_every_study_is_described() -> None:
    text = (STUDIES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}]({name}.yaml)" not in text] == []


def test_configs_name_sections_that_exist() -> None:
    """`EXPERIMENTS.md, "A"` in configs and code begins a heading there."""
    files = [*(REPOSITORY / "configs").rglob("*.yaml"), *(REPOSITORY / "src").rglob("*.py")]
    titles = sections(EXPERIMENTS.read_text(encoding="utf-8"))
    found = 0
    for path in files:
        text = re.sub(r"\n# *", " ", path.read_text(encoding="utf-8"))
        for quoted in re.findall(r'EXPERIMENTS\.md, "([^"]+)"', text):
            assert any(title.startswith(quoted) for title in titles), f"{path}: {quoted}"
            found += 1
    assert found >= len(NAMES)
