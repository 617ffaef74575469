"""The manifest: every check and every refusal, and that what is saved comes back."""

from __future__ import annotations

import importlib
import random

import pandas as pd
import pytest

from guie.base.errors import UserError
from guie.data.manifest import (
    SHOWN,
    DomainDeclaration,
    Sidecar,
    load_manifest,
    queries_without_positive,
    save_manifest,
    sidecar_path,
)

HEADER = "image_path,label,domain,split,role"
GOOD = """\
t/0.jpg,toys/car,toys,train,train
t/1.jpg,toys/car,toys,train,train
t/2.jpg,toys/bus,toys,val,both
t/3.jpg,toys/bus,toys,val,both
t/4.jpg,toys/cat,toys,test,query
t/5.jpg,toys/cat,toys,test,index"""


@pytest.fixture
def written(tmp_path):
    """Write a manifest (and a sidecar) and return its path."""

    def write(rows: str = GOOD, header: str = HEADER, sidecar: str | None = None):
        path = tmp_path / "m.csv"
        path.write_text(f"{header}\n{rows}\n", encoding="utf-8")
        if sidecar is not None:
            sidecar_path(path).write_text(sidecar, encoding="utf-8")
        return path

    return write


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        load_manifest(path)
    return str(caught.value)


def test_good_manifest_loads(written):
    manifest = load_manifest(written())
    assert len(manifest.table) == 6
    assert manifest.root == manifest.path.parent
    assert manifest.file("t/0.jpg") == manifest.path.parent / "t/0.jpg"
    assert manifest.split("val")["image_path"].tolist() == ["t/2.jpg", "t/3.jpg"]
    assert manifest.split("val").index.tolist() == [0, 1]


def test_root_is_taken_when_given(written, tmp_path):
    assert load_manifest(written(), tmp_path / "images").root == tmp_path / "images"


def test_absent_split_names_those_there_are(written):
    manifest = load_manifest(written("t/0.jpg,toys/car,toys,train,train"))
    with pytest.raises(UserError, match="no rows of split 'test'; it has: train"):
        manifest.split("test")


def test_domains_are_left_out_of_every_split(written):
    rows = ["t/8.jpg,food/a,food,train,train", "t/9.jpg,food/b,food,test,both"]
    manifest = load_manifest(written("\n".join([GOOD, *rows])))
    assert manifest.without([]).table.equals(manifest.table)
    left = manifest.without(["food"])
    assert list(left.table["domain"].unique()) == ["toys"]
    assert len(left.table) == len(manifest.table) - 2
    assert list(left.table.index) == list(range(len(left.table)))


@pytest.mark.parametrize(
    ("domains", "told"),
    [
        (["tools", "food"], "has no domain food, tools to leave out; it has: toys"),
        (["toys"], "every domain is left out"),
    ],
)
def test_domains_that_cannot_be_left_out(written, domains, told):
    with pytest.raises(UserError, match=told):
        load_manifest(written(GOOD)).without(domains)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (",toys/x,toys,train,train", "image_path is empty"),
        ("t/9.jpg,,toys,train,train", "label '' is empty"),
        ("t/9.jpg,  ,toys,train,train", "label '  ' is empty"),
        ("t/9.jpg,toys/x|,toys,train,train", "has an empty part"),
        ("t/9.jpg,|toys/x,toys,train,train", "has an empty part"),
        ("t/9.jpg,toys/x||toys/y,toys,train,train", "has an empty part"),
        ("t/9.jpg,toys/x,,train,train", "domain is empty"),
        ("t/9.jpg,toys/x,toys,dev,train", "split 'dev': allowed are train, val, test"),
        ("t/9.jpg,toys/x,toys,Train,train", "split 'Train'"),
        ("t/9.jpg,toys/x,toys,train,query", "role 'query' in train: allowed are train"),
        ("t/9.jpg,toys/x,toys,test,train", "role 'train' in test: allowed are query, index, both"),
        ("t/9.jpg,toys/x,toys,train", "4 columns where the header has 5"),
        ("t/9.jpg,toys/x,toys,train,", "role '' in train"),
        ("/etc/hostname,toys/x,toys,train,train", "leaves the root"),
        ("../t/9.jpg,toys/x,toys,train,train", "leaves the root"),
        ("t/../../9.jpg,toys/x,toys,train,train", "leaves the root"),
        (r"t\..\..\9.jpg,toys/x,toys,train,train", "leaves the root"),
        ("C:/9.jpg,toys/x,toys,train,train", "leaves the root"),
        ("./t/9.jpg,toys/x,toys,train,train", "without './' and '//'"),
        ("t//9.jpg,toys/x,toys,train,train", "without './' and '//'"),
        ("t/9.jpg/.,toys/x,toys,train,train", "without './' and '//'"),
        ("t/0.jpg,toys/car,toys,train,train", "'t/0.jpg' stands already in line 2; delete one"),
        ("t/0.jpg,toys/x,toys,train,train", "conflicting labels: 'toys/car' there, 'toys/x' here"),
        ("t/0.jpg,toys/{x},toys,train,train", "'toys/{x}' here"),
        ("t/0.jpg,toys/x,toys,test,both", "a leak: split 'train' there, 'test' here"),
        ("t/0.jpg,toys/x,toys,test,both", "image 't/0.jpg' stands already in line 2"),
        ("t/9.jpg,toys/car,toys,test,both", "class 'toys/car' is in train and in test"),
        ("t/9.jpg,toys/car,toys,val,both", "class 'toys/car' is in train and in val"),
        ("t/9.jpg,toys/z|toys/car,toys,test,both", "class 'toys/car' is in train and in test"),
        (",,,,", "split '': allowed are"),
    ],
)
def test_bad_row_is_named_by_line(written, row, fault):
    path = written(f"{GOOD}\n{row}")
    lines = refusal(path).splitlines()
    assert all(line.startswith(f"{path}:8: ") for line in lines)
    assert any(fault in line for line in lines)


@pytest.mark.parametrize("name", ["t/a..b.jpg", "t/...jpg", "t/.x.jpg", "t/a b, c.jpg", "t/é.jpg"])
def test_odd_but_honest_names_pass(written, name):
    row = f'"{name}",toys/x,toys,train,train'
    assert load_manifest(written(f"{GOOD}\n{row}")).table["image_path"].iloc[-1] == name


def test_label_in_two_domains_is_named_in_both_rows(written):
    rows = "a.jpg,cup,toys,train,train\nb.jpg,mug|cup,shop,train,train"
    message = refusal(written(rows))
    assert ":2: class 'cup' stands in several domains" in message
    assert ":3: class 'cup' stands in several domains" in message


def test_all_faults_at_once_and_a_count_of_the_rest(written):
    rows = "\n".join(f"t/{n}.jpg,toys/x,toys,dev,train" for n in range(SHOWN + 7))
    lines = refusal(written(rows)).splitlines()
    assert len(lines) == SHOWN + 1
    assert lines[0].split(": ")[0].endswith("m.csv:2")
    assert lines[-1].endswith("and 7 more faults")


@pytest.mark.parametrize("weight", ["", "0", "-1", "nan", "inf", "heavy"])
def test_bad_weights_are_named_all_at_once(written, weight):
    rows = "\n".join(f"t/{n}.jpg,toys/x,toys,train,train,{weight}" for n in range(2))
    lines = refusal(written(rows, header=f"{HEADER},weight")).splitlines()
    assert [line.split(": ")[0][-2:] for line in lines] == [":2", ":3"]
    assert all(f"weight {weight!r} is not a positive number" in line for line in lines)


def test_weights_load_as_numbers(written):
    rows = "t/0.jpg,toys/x,toys,train,train,0.5\nt/1.jpg,toys/x,toys,train,train,2"
    assert load_manifest(written(rows, header=f"{HEADER},weight")).table["weight"].sum() == 2.5


def test_unreadable_tables_are_refused_by_name(tmp_path):
    """What other programs save as CSV is in test_dirty.py."""
    cases = {
        "absent.csv": (None, "no such manifest"),
        "blank.csv": (b"\n \n", "is empty"),
        "text.parquet": (b"PAR?", "cannot be read as a table"),
        "folder.csv": ("folder", "cannot be read as a table"),
    }
    for name, (content, fault) in cases.items():
        path = tmp_path / name
        if content == "folder":
            path.mkdir()
        elif content is not None:
            path.write_bytes(content)
        message = refusal(path)
        assert message.startswith(str(path)) and fault in message


def test_bom_crlf_column_order_and_words_like_null_are_harmless(tmp_path):
    path = tmp_path / "m.csv"
    rows = "train,toys/null,NA,train,toys\r\nval,toys/nan,1.jpg,both,toys\r\n"
    path.write_bytes(b"\xef\xbb\xbfsplit,label,image_path,role,domain\r\n" + rows.encode())
    table = load_manifest(path).table
    assert table["label"].tolist() == ["toys/null", "toys/nan"]
    assert table["image_path"].tolist() == ["NA", "1.jpg"]


def test_null_in_parquet_is_empty_not_a_class_called_none(tmp_path):
    path = tmp_path / "m.parquet"
    table = pd.DataFrame(
        [["a.jpg", None, "toys", "train", "train"], ["b.jpg", "toys/x", "toys", "train", "train"]],
        columns=HEADER.split(","),
        index=[7, 7],
    )
    table.astype({"split": "category"}).to_parquet(path)
    assert refusal(path) == f"{path}: row 0: label '' is empty or has an empty part"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_saved_manifest_comes_back(written, tmp_path, suffix):
    table = load_manifest(written()).table
    table = table.assign(caption=["a, b", 'say "c"', "", "é", "line\nbreak", "x"], weight=0.5)
    sidecar = Sidecar(domains={"toys": DomainDeclaration(shared_classes=True)})
    path = tmp_path / "new" / f"mix.{suffix}"
    save_manifest(table, path, sidecar)
    back = load_manifest(path)
    pd.testing.assert_frame_equal(back.table, table, check_dtype=False)
    assert back.sidecar == sidecar
    assert sorted(p.name for p in path.parent.iterdir()) == [f"mix.{suffix}", "mix.sidecar.yaml"]


def test_saving_removes_a_stale_sidecar(written, tmp_path):
    """One left behind would excuse overlaps of the new manifest."""
    path = written(sidecar="domains: {toys: {shared_classes: true}}")
    save_manifest(load_manifest(path).table, path)
    assert not sidecar_path(path).exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_manifest_that_is_written_meanwhile_is_refused(written, tmp_path, monkeypatch, suffix):
    """Cut at a line's end it would be a good, shorter one."""
    path = tmp_path / f"m.{suffix}"
    whole = load_manifest(written()).table
    save_manifest(whole.head(4), path)
    module = importlib.import_module("guie.data.manifest.table")
    checked = module.check

    def slowly(*arguments):
        save_manifest(whole, path)
        return checked(*arguments)

    monkeypatch.setattr(module, "check", slowly)
    assert "was changed while it was read" in refusal(path)


def test_a_config_of_the_manifests_name_is_left_alone(written):
    path = written()
    config = path.with_suffix(".yaml")
    for text in ("name: somebody's config\n", "- a list\n", "domains: [\n", "x\n"):
        config.write_text(text)
        save_manifest(load_manifest(path).table, path)
        assert config.read_text() == text and load_manifest(path).sidecar == Sidecar()


def test_a_sidecar_of_the_old_name_is_read_and_replaced(written):
    path = written(SHARED)
    old = path.with_suffix(".yaml")
    old.write_text("domains: {toys: {shared_classes: true}}")
    manifest = load_manifest(path)
    save_manifest(manifest.table, path, manifest.sidecar)
    assert not old.exists() and load_manifest(path).sidecar == manifest.sidecar
    old.write_text("domains: {toys: {shared: true}}")
    load_manifest(path)  # the new one counts
    sidecar_path(path).unlink()
    with pytest.raises(UserError, match="domains.toys.shared"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("sidecar", "fault"),
    [
        ("domains: {toys: {shared: true}}", "domains.toys.shared"),
        ("domains: {toys: {shared_classes: 1}}", "domains.toys.shared_classes"),
        ("- a list", "the file"),
        ("domains: [", "line 1|line 2"),
    ],
)
def test_bad_sidecar_is_refused(written, sidecar, fault):
    path = written(sidecar=sidecar)
    with pytest.raises(UserError, match=fault) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(str(sidecar_path(path)))


def test_empty_sidecar_declares_nothing(written):
    assert load_manifest(written(sidecar="")).sidecar == Sidecar()


SHARED = f"{GOOD}\nt/9.jpg,toys/car,toys,test,index"
MET = f"{GOOD}\nt/0.jpg,toys/car,toys,test,index\nt/9.jpg,toys/car,toys,test,query"


@pytest.mark.parametrize("rows", [SHARED, MET])
def test_overlaps_need_a_declaration(written, rows):
    assert "is in train and in test" in refusal(written(rows))


def test_shared_classes_are_declared_by_domain(written):
    load_manifest(written(SHARED, sidecar="domains: {toys: {shared_classes: true}}"))
    refusal(written(SHARED, sidecar="domains: {cars: {shared_classes: true}}"))


def test_index_is_train_lets_an_image_be_train_and_index(written):
    load_manifest(written(MET, sidecar="domains: {toys: {index_is_train: true}}"))
    assert "stands already" in refusal(
        written(MET, sidecar="domains: {toys: {shared_classes: true}}")
    )


@pytest.mark.parametrize(
    "row",
    [
        "t/0.jpg,toys/car,toys,test,query",  # a training image as query
        "t/0.jpg,toys/car,toys,test,both",
        "t/0.jpg,toys/bike,toys,test,index",  # under another label
        "t/0.jpg,toys/car,toys,train,train",  # twice in train
        "t/5.jpg,toys/cat,toys,test,index",  # twice in the index
        "t/4.jpg,toys/cat,toys,val,index",  # query of one split, index of another
        "t/5.jpg,toys/cat,toys,val,index",  # index of two splits, but never trained on
    ],
)
def test_index_is_train_excuses_nothing_else(written, row):
    path = written(f"{GOOD}\n{row}", sidecar="domains: {toys: {index_is_train: true}}")
    assert ":8: image" in refusal(path)


def _alone_slowly(rows: pd.DataFrame) -> list[bool]:
    """Queries that share no label with another image of the index: the definition, spelt out."""
    alone = []
    for query in rows.itertuples():
        if query.role == "index":
            continue
        found = False
        for other in rows.itertuples():
            shares = set(query.label.split("|")) & set(other.label.split("|"))
            if other.role != "query" and other.image_path != query.image_path and shares:
                found = True
        alone.append(not found)
    return alone


@pytest.mark.parametrize("seed", range(5))
def test_queries_without_positive_agrees_with_its_definition(seed):
    draw = random.Random(seed)
    labels = ["a", "b", "c", "d", "a|b", "c|e", "e"]
    rows = pd.DataFrame(
        [
            (f"{n}.jpg", draw.choice(labels), draw.choice(["query", "index", "both"]))
            for n in range(12)
        ],
        columns=["image_path", "label", "role"],
    )
    alone = queries_without_positive(rows)
    assert alone.tolist() == _alone_slowly(rows)
    assert alone.index.tolist() == rows.index[rows["role"] != "index"].tolist()
