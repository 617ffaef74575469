"""Datasets whose queries have an index of their own: consumer-to-shop, Met, GLDv2, revisited Oxford."""

from __future__ import annotations

import numpy as np
import pytest
from miniatures.files import write
from readings import rows, splits

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, read_dataset
from guie.data.manifest import check, queries_without_positive
from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import run_protocol


def test_consumer_to_shop_lists_an_image_once_and_parts_roles(mini):
    reading = mini("deepfashion_c2s")
    found = rows(reading, "image_path", "label", "split", "role")
    assert len(found) == 9 and reading.table["image_path"].is_unique
    item = "CLOTHING/Blouse/id_00000003"
    assert [row for row in found if row[2] == "test"] == [
        (f"img/{item}/comsumer_01.jpg", item, "test", "query"),
        (f"img/{item}/comsumer_02.jpg", item, "test", "query"),
        (f"img/{item}/shop_01.jpg", item, "test", "index"),
    ]


def test_met_index_is_train_and_distractors_are_left_out(mini):
    reading = mini("met")
    table = reading.table
    assert not table["image_path"].str.contains("other|noart").any()
    by_part = table.groupby(["split", "role"])["image_path"].agg(list).to_dict()
    catalogue = [f"MET/{n // 2}/{n % 2}.jpg" for n in range(8)]
    assert by_part == {
        ("train", "train"): catalogue,
        ("val", "query"): ["test_met/0.jpg"],
        ("val", "index"): catalogue[:4],
        ("test", "query"): ["test_met/1.jpg", "test_met/2.jpg"],
        ("test", "index"): catalogue,
    }
    assert reading.sidecar.domains["artworks"].index_is_train
    test = table[table["split"] == "test"].reset_index(drop=True)
    assert not queries_without_positive(test).any()


def test_met_distractors_are_kept_as_queries_without_a_positive_and_ranked(mini, tmp_path):
    reading = mini("met", distractors="keep")
    table = reading.table
    assert check(table, reading.sidecar) == []
    test = table[table["split"] == "test"].reset_index(drop=True)
    queries = test[test["role"] == "query"]
    assert queries["image_path"].tolist() == [
        *("test_other/9.jpg", "test_noart/9.jpg", "test_met/1.jpg", "test_met/2.jpg")
    ]
    assert queries["label"].iloc[:2].unique().tolist() == ["artworks/met/no-exhibit"]
    assert queries_without_positive(test).tolist() == [True, True, False, False]
    # All certain of the second exhibit: of four answers in the order of the rows the third is right.
    embeddings_TD = np.eye(2, dtype=np.float32)[(test["image_path"] == "MET/1/0.jpg").astype(int)]
    embeddings_TD[test["role"] == "query"] = [0, 1]
    report, _ = run_protocol(protocol_of("met"), embeddings_TD, test, draws=0)
    assert report["headline"] == {"GAP": 1 / 3 / 2, "GAP-": 1 / 2, "ACC": 1 / 2}
    fault = (
        "Met: 2,165 val query images expected, 3 found\nMet: 19,319 test query images expected, 4"
    )
    with pytest.raises(UserError, match=fault):
        read_dataset(DATASETS["met"], tmp_path / "met", distractors="keep", splits=["val", "test"])


def test_met_without_the_small_list_validates_on_the_whole_catalogue(mini, tmp_path):
    mini("met")
    (tmp_path / "met/ground_truth/mini_MET_database.json").unlink()
    reading = mini("met", build=False)
    assert reading.warnings == (
        "Met: no mini_MET_database.json, so the index of val is the whole catalogue",
    )
    val_index = reading.table.query("split == 'val' and role == 'index'")
    assert len(val_index) == 8


def test_gldv2_keeps_its_two_id_spaces_apart(mini):
    reading = mini("gldv2")
    labels = dict(rows(reading, "image_path", "label"))
    assert labels["train/0/0/0/0000000000000002.jpg"] == "train-7"
    assert labels["index/a/0/0/a000000000000000.jpg"] == "index-7"
    assert reading.sidecar.domains["landmarks"].shared_classes


def test_gldv2_queries_have_the_landmarks_of_their_index_images(mini):
    reading = mini("gldv2")
    queries = [row[:2] for row in rows(reading, "image_path", "label", "role") if row[2] == "query"]
    assert queries == [
        ("test/b/0/0/b000000000000000.jpg", "index-7|index-8"),
        ("test/b/0/0/b000000000000001.jpg", "index-9"),
    ]
    assert not reading.warnings


def test_gldv2_tells_where_landmarks_say_more_than_the_solution(mini, tmp_path):
    mini("gldv2")
    path = tmp_path / "gldv2/metadata/retrieval_solution_v2.1.csv"
    path.write_text(path.read_text().replace("a000000000000000 ", ""))
    assert mini("gldv2", build=False).warnings == (
        "retrieval_solution_v2.1.csv: 1 queries list fewer images than their landmarks have in the"
        " index",
    )


def test_gldv2_full_train_list(mini, tmp_path):
    mini("gldv2")
    lines = ["0000000000000000,http://a.jpg,1", "0000000000000003,http://b.jpg,7"]
    write(tmp_path / "gldv2/metadata/train.csv", "id,url,landmark_id", *lines)
    train = mini("gldv2", build=False, train_list="full", splits=["train"])
    assert rows(train, "image_path", "label")[1] == ("train/0/0/0/0000000000000003.jpg", "train-7")
    assert len(train.table) == 2


def test_gldv2_without_its_index_trains(mini, tmp_path):
    mini("gldv2")
    (tmp_path / "gldv2/metadata/index_image_to_landmark.csv").unlink()
    reading = mini("gldv2", build=False)
    assert splits(reading) == {"train": ["train-1", "train-7"]}
    assert reading.warnings and not reading.sidecar.domains


OBJECTS = ["bold_bimp_000", "zippy_zootlenibble_999"]


def test_ilias_classes_are_objects(mini):
    reading = mini("ilias")
    found = rows(reading, "image_path", "label", "role")
    assert found[0] == ("ilias_core/bold_bimp_000/query/Q000_00.jpg", OBJECTS[0], "query")
    assert [label for _, label, role in found if role == "query"] == [OBJECTS[i] for i in (0, 1, 1)]
    assert [label for _, label, role in found if role == "index"] == [OBJECTS[i] for i in (0, 0, 1)]
    texts = reading.companions["texts"]
    assert texts["image_path"].tolist()[0] == "ilias_core/bold_bimp_000/query/T000.txt"
    assert texts["text"].tolist()[0] == "the bold_bimp, in green"
    assert texts["label"].tolist() == [f"instances/ilias/{name}" for name in OBJECTS]


@pytest.mark.parametrize(("distractors", "kept"), [("mini", ["77"]), ("keep", ["77", "88"])])
def test_ilias_distractors_are_images_of_no_object(distractors, kept, mini):
    found = rows(mini("ilias", distractors=distractors), "image_path", "label", "role")
    assert found[6:] == [
        (f"yfcc100m/yfcc100m_0000{shard}/{key}.jpg", "no-object", "index")
        for shard, key in enumerate(kept)
    ]


def test_ilias_tells_of_texts_that_are_not_there(mini, tmp_path):
    mini("ilias")
    (tmp_path / "ilias/ilias_core/bold_bimp_000/query/T000.txt").unlink()
    reading = mini("ilias", build=False)
    assert reading.warnings == ("ILIAS: 1 of 2 text queries found",)
    assert len(reading.companions["texts"]) == 1


PROTOCOLS = {
    "medium": ["all_souls_000013", "all_souls_000013|all_souls_000026", "all_souls_000013"],
    "easy": ["all_souls_000013", "no-query", "no-query"],
    "hard": ["no-query", "all_souls_000013|all_souls_000026", "all_souls_000013"],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_revisited_index_images_answer_the_queries_of_a_protocol(protocol, mini):
    reading = mini("roxford5k", protocol=protocol)
    found = rows(reading, "image_path", "label", "role")
    assert found[0] == ("jpg/all_souls_000013.jpg", "all_souls_000013", "query")
    index = [label for _, label, role in found if role == "index"]
    assert index == [*PROTOCOLS[protocol], "no-query"]
    assert "junk counts as wrong" in reading.warnings[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_revisited_grades_and_boxes_are_beside_whatever_the_protocol(protocol, mini):
    reading = mini("roxford5k", protocol=protocol)
    grades = reading.companions["relevance"]
    query, image = "jpg/all_souls_000026.jpg", "jpg/all_souls_000003.jpg"
    assert grades["grade"].value_counts().to_dict() == {"hard": 3, "junk": 2, "easy": 1}
    assert grades.iloc[-1].to_dict() == {
        "query": query, "image": image, "grade": "junk"
    }  # fmt: skip
    queries = reading.table[reading.table["role"] == "query"]
    assert reading.companions["boxes"]["image_path"].tolist() == queries["image_path"].tolist()
    boxes = reading.companions["boxes"].drop(columns="image_path")
    assert boxes.to_numpy().tolist() == [[136.5, 34.1, 648.5, 955.7], [1, 2, 3, 4]]
    assert not mini("roxford5k", build=False, as_train=True).companions


def test_revisited_grades_of_absent_images_are_left_out(mini, tmp_path):
    mini("roxford5k")
    (tmp_path / "roxford5k/jpg/all_souls_000026.jpg").unlink()
    (tmp_path / "roxford5k/jpg/all_souls_000002.jpg").unlink()
    companions = mini("roxford5k", build=False, partial=True).companions
    assert companions["relevance"]["grade"].tolist() == ["easy", "hard"]
    assert len(companions["boxes"]) == 1
