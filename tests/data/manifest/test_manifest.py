"""The manifest: every check and every refusal of a row."""

from __future__ import annotations

import random

import pandas as pd
import pytest
from manifest_rows import GOOD, HEADER, SHARED, refusal

from guie.base.errors import UserError
from guie.data.manifest import Sidecar, checks, load_manifest, queries_without_positive
from guie.data.manifest.reading import sidecar_path
from guie.data.manifest.table import SHOWN


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
    with pytest.raises(UserError, match="'val'; it has: train; set val_fraction in the mix's"):
        manifest.split("val")
    val = load_manifest(written("t/0.jpg,toys/car,toys,val,both"))
    with pytest.raises(UserError, match="it has: val; use --split val, or set test_fraction"):
        val.split("test")
    with pytest.raises(UserError, match="it has: val$"):
        val.split("train")


def test_domains_are_left_out_of_every_split(written):
    rows = ["t/8.jpg,food/a,food,train,train", "t/9.jpg,food/b,food,test,both"]
    manifest = load_manifest(written("\n".join([GOOD, *rows])))
    assert manifest.without([]).table.equals(manifest.table)
    left = manifest.without(["food"])
    assert list(left.table["domain"].unique()) == ["toys"]
    assert len(left.table) == len(manifest.table) - 2
    assert list(left.table.index) == list(range(len(left.table)))


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (["tools", "food"], "has no domain food, tools to leave out; it has: toys"),
        (["toys"], "every domain is left out"),
    ],
)
def test_domains_that_cannot_be_left_out(written, domains, message):
    with pytest.raises(UserError, match=message):
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
        ("t/0.jpg,toys/car,toys,train,train", "'t/0.jpg' is already in line 2; delete one"),
        ("t/0.jpg,toys/x,toys,train,train", "conflicting labels: 'toys/car' there, 'toys/x' here"),
        ("t/0.jpg,toys/{x},toys,train,train", "'toys/{x}' here"),
        ("t/0.jpg,toys/x,toys,test,both", "a leak: split 'train' there, 'test' here"),
        ("t/0.jpg,toys/x,toys,test,both", "image 't/0.jpg' is already in line 2"),
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
    assert ":2: class 'cup' is in several domains" in message
    assert ":3: class 'cup' is in several domains" in message


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


@pytest.mark.parametrize("weight", ["1e9", "1e300", "1001", "1e-300", "5e-324"])
def test_weights_beyond_any_epoch_are_named_by_line(written, weight):
    rows = f"t/0.jpg,toys/x,toys,train,train,1\nt/1.jpg,toys/x,toys,train,train,{weight}"
    message = refusal(written(rows, header=f"{HEADER},weight"))
    said = f"m.csv:3: weight '{weight}': an epoch draws an image 1e-09 to 1,000 times"
    assert message.endswith(said)


def test_an_epoch_that_no_memory_holds_is_refused(written, monkeypatch):
    monkeypatch.setattr(checks, "EPOCH_MAX", 1_500)
    rows = [f"t/{n}.jpg,toys/x,toys,{role},1000" for n, role in enumerate(["train,train"] * 2)]
    held_out = "t/9.jpg,toys/y,toys,test,query,1000"
    header = f"{HEADER},weight"
    said = (
        "m.csv:2: weight: those of train make an epoch of 2,000 images; at most 1,500 are allowed"
    )
    assert said in refusal(written("\n".join(rows), header=header))
    load_manifest(written("\n".join([rows[0], held_out]), header=header))


def test_weights_load_as_numbers(written):
    rows = "t/0.jpg,toys/x,toys,train,train,0.5\nt/1.jpg,toys/x,toys,train,train,2"
    assert load_manifest(written(rows, header=f"{HEADER},weight")).table["weight"].sum() == 2.5


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


@pytest.mark.parametrize(
    ("sidecar", "fault"),
    [
        ("domains: {toys: {shared: true}}", "domains.toys.shared"),
        ("domains: {toys: {shared_classes: 1}}", "domains.toys.shared_classes"),
        ("- a list", "must be a mapping"),
        ("domains: [", r"yaml:1: not valid YAML"),
    ],
)
def test_bad_sidecar_is_refused(written, sidecar, fault):
    path = written(sidecar=sidecar)
    with pytest.raises(UserError, match=fault) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(str(sidecar_path(path)))


def test_empty_sidecar_declares_nothing(written):
    assert load_manifest(written(sidecar="")).sidecar == Sidecar()


MET = f"{GOOD}\nt/0.jpg,toys/car,toys,test,index\nt/9.jpg,toys/car,toys,test,query"


@pytest.mark.parametrize("rows", [SHARED, MET])
def test_overlaps_need_a_declaration(written, rows):
    assert "is in train and in test" in refusal(written(rows))


def test_shared_classes_are_declared_by_domain(written):
    load_manifest(written(SHARED, sidecar="domains: {toys: {shared_classes: true}}"))
    refusal(written(SHARED, sidecar="domains: {cars: {shared_classes: true}}"))


def test_index_is_train_lets_an_image_be_train_and_index(written):
    load_manifest(written(MET, sidecar="domains: {toys: {index_is_train: true}}"))
    assert "is already" in refusal(written(MET, sidecar="domains: {toys: {shared_classes: true}}"))


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


def test_a_domain_that_is_declared_twice_is_refused(written):
    """The last one would count without a word."""
    twice = "domains:\n  toys: {shared_classes: true}\n  toys: {}"
    assert 'yaml:3: not valid YAML: found duplicate key "toys"' in refusal(written(sidecar=twice))
