"""A person's word on copies, placeholders, and what cleaning must not take without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw, ImageEnhance
from stand_ins import evidence
from test_comparing import picture
from test_copies import no_features, rows

import curate
from guie.base.errors import UserError
from guie.config.data import CleaningConfig
from guie.curation import cleaning
from guie.curation.cleaning import clean
from guie.curation.duplicates.findings import Verdicts
from guie.curation.duplicates.rules import disjoint


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Class folders: sixteen images in four classes; of one picture another class has a copy."""
    for n in range(16):
        path = tmp_path / "birds" / f"class{n % 4}" / f"{n:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(n).save(path)
    ImageEnhance.Brightness(picture(0)).enhance(0.9).save(tmp_path / "birds/class1/copy.png")
    return tmp_path


def mixed(root: Path, *settings: str) -> pd.DataFrame:
    """The mix of the folders, kept whole but for cleaning."""
    config = root / "mix.yaml"
    config.write_text(
        f"{{name: mix, out: {root}/mix.csv, val_fraction: 0, clean: {{}},"
        f" sources: [{{kind: folder, path: {root}/birds, domain: birds}}]}}"
    )
    words = [word for value in settings for word in ("--set", value)]
    curate.main(["--config", str(config), "--workers", "1", *words])
    return pd.read_csv(root / "mix.csv")


@pytest.mark.slow
def test_a_word_against_a_copy_keeps_both_at_the_next_run_and_every_later_one(folders):
    """Columns of a person stay as they are, and rows with a remark and no verdict."""
    assert len(mixed(folders, "clean.share_max=0.5")) == 15, "both of a conflict go"
    path = folders / "mix.verdicts.csv"
    pair, other = "birds/class1/copy.png,birds/class0/00.png", "x.png,y.png"
    head = "who,image_path,other_path,verdict,remark"
    path.write_text(f'{head}\n007,{pair},Not a copy ,"a, ""b"" NA"\n,{other},, later\n')
    for _ in range(2):
        assert len(mixed(folders)) == 17
        lines = path.read_text().splitlines()
        assert lines[0].startswith(f"{head},kind,") and len(lines) == 3
        assert lines[1].startswith(f'007,{pair},not a copy,"a, ""b"" NA",')
        assert lines[2].startswith(f",{other},, later,")
    path.write_text(path.read_text().replace("not a copy", ""))
    assert len(mixed(folders, "clean.share_max=0.5")) == 15


@pytest.mark.slow
def test_a_word_for_a_copy_drops_what_no_pixel_told(folders, capsys):
    """A word on what is not in the mix is kept, and named."""
    elsewhere = "elsewhere/a.png,elsewhere/b.png,copy"
    (folders / "mix.verdicts.csv").write_text(
        "image_path,other_path,verdict\n"
        f"birds/class2/02.png,birds/class3/03.png,copy\n{elsewhere}\n"
    )
    left = mixed(folders, "clean.share_max=0.5")
    assert len(left) == 13 and not left["image_path"].str.contains("02|03").any()
    found = pd.read_csv(folders / "mix.findings.csv")
    assert found.loc[found["confirmed"], "image_path"].str[-6:].tolist() == ["02.png", "03.png"]
    lines = (folders / "mix.verdicts.csv").read_text().splitlines()
    assert any(line.startswith(elsewhere) for line in lines) and len(lines) == 4
    said = (
        "note: mix.verdicts.csv has verdicts on 2 images that are not in the mix:"
        " elsewhere/a.png, elsewhere/b.png"
    )
    assert said in capsys.readouterr().out.splitlines()


def test_a_word_holds_where_equal_pixels_alone_are_looked_for(folders):
    with (folders / "mix.verdicts.csv").open("w") as file:
        file.write("image_path,other_path,verdict\n")
        file.write("birds/class2/02.png,birds/class3/03.png,copy\n")
    left = mixed(folders, "clean.share_max=0.5", "clean.near=null")
    assert len(left) == 15 and not left["image_path"].str.contains("02|03").any()


def test_a_word_written_while_cleaning_runs_is_kept(folders, monkeypatch):
    line = "birds/class2/02.png,birds/class3/03.png,copy"

    def slowly(*given):
        (folders / "mix.verdicts.csv").write_text(f"image_path,other_path,verdict\n{line}\n")
        return clean(*given)

    monkeypatch.setattr(cleaning, "clean", slowly)
    mixed(folders, "clean.near=null")
    assert line in (folders / "mix.verdicts.csv").read_text()


@pytest.mark.slow
def test_what_may_be_a_copy_is_kept_and_counted(folders, capsys):
    nearly = picture(0)
    ImageDraw.Draw(nearly).rectangle((60, 50, 61, 51), fill=(90, 90, 90))
    nearly.save(folders / "birds/class1/copy.png")
    assert len(mixed(folders)) == 17
    assert "note: 2 images may be copies of others and were kept: " in capsys.readouterr().out


@pytest.mark.slow
def test_the_last_word_on_a_pair_counts_whichever_image_comes_first(folders):
    path = folders / "mix.verdicts.csv"
    one, other = "birds/class2/02.png", "birds/class3/03.png"
    path.write_text(
        f"image_path,other_path,verdict\n{one},{other},copy\n{other},{one},not a copy\n"
    )
    for _ in range(2):  # the second time it is the file that the first has written
        assert len(mixed(folders, "clean.near=null")) == 17


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "image_path,other_path,verdict\na,b,copy\na,c,maybe\n",
            "line 3: invalid verdict 'maybe'; write",
        ),
        ("image_path,verdict\na,copy\n", "no column other_path"),
        ("", "cannot be read"),
        ('image_path,other_path,verdict\n"a,b,copy\n', "csv:2: a quote is opened"),
        ("image_path,other_path,verdict\na,b,copy,,\n", "csv:2: 5 columns where the header has 3"),
        ("image_path,other_path,verdict\n\na,b,copy,\n", "csv:3: 4 columns where the header"),
        ("image_path,other_path,verdict\na,b,copy\na,b\n", "csv:3: 2 columns where the header"),
        ("image_path,other_path,verdict\n\na,b,maybe\n", "line 3: invalid verdict 'maybe'; write"),
        ("image_path,other_path,verdict,verdict\na,b,copy,\n", "column 'verdict' occurs twice"),
    ],
)
def test_a_damaged_table_is_refused_by_line(tmp_path, text, match):
    path = tmp_path / "mix.verdicts.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        Verdicts.read(path)


def test_a_damaged_table_stops_the_mix_and_stays(folders):
    path = folders / "mix.verdicts.csv"
    text = "image_path,other_path,verdict\na,b,copy\na,c,maybe\n"
    path.write_text(text)
    with pytest.raises(UserError, match="line 3: invalid verdict 'maybe'"):
        mixed(folders)
    assert path.read_text() == text, "nothing of it is lost"


def test_equal_pictures_cannot_be_told_apart(tmp_path):
    pictures = pd.Series([0, 0], ["a", "b"])
    table = pd.DataFrame(
        [["a", "b", "not a copy"]], columns=["image_path", "other_path", "verdict"]
    )
    verdicts = Verdicts(tmp_path / "v.csv", table)
    with pytest.raises(UserError, match="a and b have equal pixels"):
        verdicts.applied(pd.DataFrame({"first": [], "second": [], "grade": []}), pictures)


def test_a_rule_that_takes_too_much_stops_with_the_page(folders):
    with pytest.raises(UserError) as caught:
        mixed(folders)
    text = str(caught.value)
    assert "would drop more than clean.share_max (5%)" in text
    assert "conflicts: 2 of 17 training images of birds (11.8%)" in text
    assert "mix.verdicts.csv" in text and "mix.html" in text
    assert not (folders / "mix.csv").exists()
    assert (folders / "mix.html").exists() and (folders / "mix.findings.csv").exists()


@pytest.mark.slow
def test_a_class_is_not_emptied_without_a_word(folders, capsys):
    for name in ("class0/00", "class0/04", "class0/08", "class0/12"):
        Image.open(folders / f"birds/{name}.png").save(folders / f"birds/class3/{name[-2:]}x.png")
    mixed(folders, "clean.share_max=0.9", "clean.near=null")
    message = "note: conflicts left no training image of 1 classes: birds/class0"
    assert message in capsys.readouterr().out
    assert message.removeprefix("note: ") in (folders / "mix.html").read_text()


def placeholder_table() -> pd.DataFrame:
    """One picture under five labels, train and test; another under three."""
    under = [f"p{n} c{n} {'test' if n == 4 else 'train'} 1" for n in range(5)]
    return rows(*under, "q0 c0 train 2", "q1 c1 train 2", "q2 c2|c1 train 2", "r c0 train 3")


def test_a_placeholder_is_named_and_dropped_from_all_its_labels():
    cleaned = clean(placeholder_table(), CleaningConfig(leaks="drop_train"), evidence(no_features))
    found = cleaned.findings[cleaned.findings["kind"] == "placeholder"]
    assert found["image_path"].tolist() == [f"p{n}" for n in range(5)]
    assert (found["labels"] == 5).all() and (found["label"] != found["other_label"]).all()
    assert found["action"].tolist() == ["dropped"] * 4 + ["reported"]
    assert not (cleaned.findings["kind"] == "leak").any(), "it is no leak besides"
    assert set(cleaned.table["image_path"]) == {"p4", "r"}, "three labels are a conflict"


def test_a_placeholder_that_was_saved_anew_is_the_same_picture():
    table = rows(*(f"p{n} c{n} train {n // 2}" for n in range(6)))
    table["whole"] = ["0" * 15 + str(n // 2) for n in range(6)]
    embed = lambda paths, view: np.ones((len(paths), 1))  # noqa: E731
    cleaned = clean(table, CleaningConfig(labels_max=5, leaks="stop"), evidence(embed))
    assert set(cleaned.findings["kind"]) == {"placeholder"} and cleaned.table.empty
    assert (cleaned.findings["labels"] == 6).all()


def test_labels_that_share_a_class_count_once():
    assert disjoint(["a", "b", "a|b", "b|c", "d|e"]) == 3
    assert disjoint([]) == 0


@pytest.mark.slow
def test_placeholders_are_told_with_their_count(folders, capsys):
    for n in range(4):
        for k in range(3):
            picture(99).save(folders / f"birds/class{n}/none{k}.png")
    mixed(folders, "clean.share_max=0.9", "clean.conflicts=report", "clean.near=null")
    message = "none0.png is a placeholder: 12 images under 4 labels; dropped from train"
    assert message in capsys.readouterr().out
