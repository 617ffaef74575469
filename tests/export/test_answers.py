"""What the card shows of the neighbours found, from a scoring written by hand."""

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import export
from guie.base.errors import UserError
from guie.data.manifest import load_manifest
from guie.export.answers import read_answers
from guie.export.card import file_facts

# query, its neighbours nearest first with their distances; `toys/b|x` is a class with a bar in its name
CLASSES = {"a": "cars/a", "b": "toys/b|x", "c": "toys/$c$"}
FOUND = {
    "a0": [("a1", 0.1), ("b0", 0.5)],
    "a1": [("a0", 0.1), ("a2", 0.4)],
    "a2": [("b0", 0.2), ("a0", 0.3)],
    "b0": [("a2", 0.2), ("b1", 0.6)],
    "b1": [("b0", 0.6), ("a0", 0.9)],
    "c0": [("a0", 0.05), ("a1", 0.07)],  # the one of its class: nothing counts
}
FACTS: dict[str, Any] = {
    "folder": "s", "source": "run", "parameters": 1e6, "dimension": 64, "models": [], "record": None,
    "validation": None, "composition": None,
    "torchscript": {"runtime": "1.11", "written_by": "2", "format": 9, "parity": [], "tolerance": 1e-5},
}  # fmt: skip
SCORE: dict[str, Any] = {
    "verdict": "keeps_the_contract", "device": "cpu", "seconds_per_image": {"total": 0.004},
    "images_with_exif_rotation": 2, "mean": {"mmp_at_5": 0.4, "r_at_1": 0.5}, "pooled": {"mmp_at_5": 0.45},
    "domains": {"cars": {"mmp_at_5": 0.6}, "toys": {"mmp_at_5": 0.2}, "none": {"mmp_at_5": None}},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a scored submission, next to a manifest `m.csv` and its images."""
    lines = ["image_path,label,domain,split,role"]
    for name in FOUND:
        label = CLASSES[name[0]]
        lines.append(f"{name}.png,{label},{label.partition('/')[0]},test,both")
        Image.new("RGB", (8, 8), "teal").save(tmp_path / f"{name}.png")
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    submission = tmp_path / "s"
    submission.mkdir()
    with zipfile.ZipFile(submission / "submission.zip", "w") as archive:
        archive.writestr("saved_model.pt", "a model")
    made = file_facts(submission / "submission.zip")
    (submission / "score.json").write_text(json.dumps({**SCORE, "submission": made}))
    (submission / "export.json").write_text(json.dumps({**FACTS, "file": made}))
    lines = ["query,rank,image_path,distance,relevant,counted,submission"]
    for query, neighbours in FOUND.items():
        for rank, (name, distance) in enumerate(neighbours, 1):
            marks = f"{int(name[0] == query[0])},{int(query[0] != 'c')},{made['sha256']}"
            lines.append(f"{query}.png,{rank},{name}.png,{distance},{marks}")
    (submission / "score.neighbours.csv").write_text("\n".join(lines) + "\n")
    return submission


def test_answers_are_summarised(folder: Path) -> None:
    found = read_answers(folder, load_manifest(folder.with_name("m.csv")), "test")
    assert found.first["query"].tolist() == ["a0.png", "a1.png", "a2.png", "b0.png", "b1.png"]
    (worst,) = found.worst_classes().itertuples()
    assert (worst.label, worst.queries, worst.taken_for) == ("cars/a", 3, "toys/b")
    assert worst.right == pytest.approx(2 / 3)
    pairs = found.strays()[["domain", "found_domain"]].to_numpy().tolist()
    assert pairs == [["toys", "cars"], ["cars", "toys"]]
    assert found.strays()["share"].tolist() == pytest.approx([1 / 2, 1 / 3])
    trust = found.trust()
    assert trust["right"].tolist() == [1, 1, 0, 0, 1] and trust["queries"].sum() == 5
    assert trust["nearest"].is_monotonic_increasing
    assert found.mistakes()["query"].unique().tolist() == ["a2.png", "b0.png"]
    examples = found.examples()["query"].unique()
    assert len(examples) == 2 and "c0.png" not in examples
    perfect = replace(found, neighbours=found.neighbours.assign(relevant=1))
    assert perfect.worst_classes().empty and perfect.mistakes().empty


def test_the_card_has_pictures_and_what_it_cannot_do(folder: Path) -> None:
    words = ["--kaggle", str(folder), "--manifest", str(folder.with_name("m.csv"))]
    export.main([*words, "--user", "me"])  # one command: card and upload folder
    assert (folder / "kernel-metadata.json").is_file()
    names = {"domains.png", "answers.png", "mistakes.png"}
    assert {path.name for path in folder.glob("card/*.png")} == names
    text = (folder / "card.md").read_text()
    assert all(f"](card/{name})" in text for name in names)
    assert not [path for path in folder.glob("*") if path.suffix == ".png"]
    assert "mMP@5 **0.450**" in text and "| cars/a | 67% | 3 | toys/b |" in text
    assert "2 images have an EXIF rotation" in text and text.index("cannot do") < text.index(
        "The file"
    )

    export.main([*words, "--no-images"])
    assert {path.name for path in folder.glob("card/*.png")} == {"domains.png"}
    assert "answers.png" not in (folder / "card.md").read_text()


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "says"),
    [
        (
            *("score.neighbours.csv", ",[0-9a-f]{64}", ",bb"),
            "neighbours.csv: belongs to another submission.zip; score it again",
        ),
        ("score.neighbours.csv", "b1.png", "z.png", "csv: line 9: z.png is not in the test split"),
        ("score.json", "[0-9a-f]{64}", "bb", "belongs to another submission.zip; score it again"),
        ("score.json", "keeps_the_contract", "crash", "crash: there are no answers"),
        ("score.json", None, "", "score.json: no such file; score.py writes it"),
        ("../a0.png", None, "", r"a0\.png"),
    ],
)
def test_a_folder_without_such_answers_is_refused(
    file: str, pattern: str | None, replacement: str, says: str, folder: Path
) -> None:
    if pattern is None:
        (folder / file).unlink()
    else:
        changed = re.sub(pattern, replacement, (folder / file).read_text())
        (folder / file).write_text(changed)
    with pytest.raises(UserError, match=says):
        export.main(["--kaggle", str(folder), "--manifest", str(folder.with_name("m.csv"))])
