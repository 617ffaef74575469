"""A person's verdicts on copies, and findings that a person must see before rows are dropped."""

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image, ImageDraw, ImageEnhance
from test_differences import picture

import curate
from guie.base.errors import UserError
from guie.curation import cleaning
from guie.curation.cleaning import clean
from guie.curation.duplicates.limits import Grade
from guie.curation.findings import Verdicts

HEAD = "image_path,other_path,verdict\n"
ONE, OTHER = "birds/class2/02.png", "birds/class3/03.png"
PAIR = f"{ONE},{OTHER},copy\n"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Class folders: sixteen images in four classes, and a copy of one picture in another class."""
    for n in range(16):
        path = tmp_path / "birds" / f"class{n % 4}" / f"{n:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(n).save(path)
    ImageEnhance.Brightness(picture(0)).enhance(0.9).save(tmp_path / "birds/class1/copy.png")
    return tmp_path


def mixed(root: Path, *settings: str) -> pd.DataFrame:
    """The mix of the folders, whose only rule is cleaning."""
    config = root / "mix.yaml"
    config.write_text(
        f"{{name: mix, out: {root}/mix.csv, val_fraction: 0, clean: {{}},"
        f" sources: [{{kind: folder, path: {root}/birds, domain: birds}}]}}"
    )
    words = [word for value in settings for word in ("--set", value)]
    curate.main(["--config", str(config), "--workers", "1", *words])
    return pd.read_csv(root / "mix.csv")


@pytest.mark.slow
def test_verdicts_keep_and_drop_images_at_every_later_run(folders, capsys):
    """Columns of a person stay as they are, and rows with a remark and no verdict."""
    with pytest.raises(UserError) as caught:
        mixed(folders)
    text = str(caught.value)
    assert "would drop more than clean.share_max (5%)" in text
    assert "conflicts: 2 of 17 training images of birds (11.8%)" in text
    assert "mix.verdicts.csv" in text and "mix.html" in text
    assert not (folders / "mix.csv").exists()
    assert (folders / "mix.html").exists() and (folders / "mix.findings.csv").exists()
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
    elsewhere = "elsewhere/a.png,elsewhere/b.png,copy"
    path.write_text(f"{HEAD}{PAIR}{elsewhere}\n")
    left = mixed(folders, "clean.share_max=0.5")
    assert len(left) == 13 and not left["image_path"].str.contains("02|03").any()
    found = pd.read_csv(folders / "mix.findings.csv")
    assert found.loc[found["confirmed"], "image_path"].str[-6:].tolist() == ["02.png", "03.png"]
    lines = path.read_text().splitlines()
    assert any(line.startswith(elsewhere) for line in lines) and len(lines) == 4
    note = "verdicts on 2 images that are not in the mix: elsewhere/a.png, elsewhere/b.png"
    assert note in capsys.readouterr().out


def test_a_verdict_written_while_cleaning_runs_is_kept(folders, monkeypatch):
    """It counts at the next run, also where only equal pixels are searched for."""

    def slowly(*given):
        (folders / "mix.verdicts.csv").write_text(HEAD + PAIR)
        return clean(*given)

    with monkeypatch.context() as patched:
        patched.setattr(cleaning, "clean", slowly)
        assert len(mixed(folders, "clean.near=null")) == 17
    assert PAIR.strip() in (folders / "mix.verdicts.csv").read_text()
    left = mixed(folders, "clean.share_max=0.5", "clean.near=null")
    assert len(left) == 15 and not left["image_path"].isin([ONE, OTHER]).any()


@pytest.mark.slow
def test_doubtful_copies_emptied_classes_and_placeholders_are_named(folders, capsys):
    nearly = picture(0)
    ImageDraw.Draw(nearly).rectangle((60, 50, 61, 51), fill=(90, 90, 90))
    nearly.save(folders / "birds/class1/copy.png")
    assert len(mixed(folders)) == 17
    assert "note: 2 images may be copies of others and were kept: " in capsys.readouterr().out
    for name in ("class0/00", "class0/04", "class0/08", "class0/12"):
        Image.open(folders / f"birds/{name}.png").save(folders / f"birds/class3/{name[-2:]}x.png")
    for n in range(4):
        for k in range(3):
            picture(99).save(folders / f"birds/class{n}/none{k}.png")
    mixed(folders, "clean.share_max=0.9", "clean.near=null")
    out = capsys.readouterr().out
    message = "conflicts left no training image of 1 classes: birds/class0"
    assert f"note: {message}" in out and message in (folders / "mix.html").read_text()
    assert "none0.png is a placeholder: 12 images under 4 labels; dropped from train" in out


def verdicts_on(*rows: str) -> Verdicts:
    table = pd.DataFrame([row.split(" ", 2) for row in rows], columns=HEAD.strip().split(","))
    return Verdicts(Path("v.csv"), table)


def test_verdicts_change_pairs_of_pictures():
    """The last one on a pair counts, whichever image comes first."""
    pictures = pd.Series([0, 1, 2, 3, 0], list("abcde"))
    pairs = pd.DataFrame({"first": [0, 1, 2], "second": [1, 2, 3], "grade": Grade.NEAR})
    pairs = pairs.assign(confirmed=False, difference=0.2, distance=1, similarity=0.9)
    doubted = ["d c not a copy", "a d not a copy", "a c not a copy"]
    given = ["b c copy", "c d copy", *doubted, "e d copy", "a e copy", "a b ", "x a copy"]
    found = verdicts_on(*given).applied(pairs, pictures)
    columns = ["first", "second", "grade", "confirmed", "distance", "similarity"]
    assert found[columns].to_numpy().tolist() == [
        [0, 1, Grade.NEAR, False, 1, 0.9],
        [0, 3, Grade.SURE, True, 64, 0],
        [1, 2, Grade.SURE, True, 1, 0.9],
    ]
    assert found["difference"].isna().tolist() == [False, True, False]
    assert verdicts_on(*given).unknown(pictures.index) == ["x"]
    with pytest.raises(UserError, match="v.csv: e and a have equal pixels"):
        verdicts_on("e a not a copy").applied(pairs, pictures)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (HEAD + "a,b,copy\na,c,maybe\n", "line 3: invalid verdict 'maybe'; write"),
        (HEAD + "\na,b,maybe\n", "line 3: invalid verdict 'maybe'; write"),
        ("image_path,verdict\na,copy\n", "no column other_path"),
        (HEAD + '"a,b,copy\n', "csv:2: a quote is opened"),
    ],
)
def test_a_damaged_table_is_refused_by_line(tmp_path, text, match):
    path = tmp_path / "mix.verdicts.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=match):
        Verdicts.read(path)
    assert path.read_text() == text
