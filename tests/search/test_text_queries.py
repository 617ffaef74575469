"""Texts as queries, of an index that was made with a CLIP."""

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import search
from guie.base.errors import UserError
from guie.models.backbones.open_clip import import_open_clip
from guie.search import Searcher, open_index
from some_pictures import folder_of, indexed

WORDS = "a red cup"


def test_a_text_finds_the_images_nearest_to_its_encoding(tmp_path: Path) -> None:
    import_open_clip()  # which knows guie-tiny
    torch.manual_seed(0)
    model = open_clip.create_model("guie-tiny").eval()
    weights, index = tmp_path / "clip.safetensors", tmp_path / "index"
    save_file(model.state_dict(), weights)
    folder_of(tmp_path)
    indexed(Path(f"open_clip:guie-tiny:{weights}"), tmp_path / "m.csv", index)
    tokens = open_clip.get_tokenizer("guie-tiny", context_length=model.context_length)([WORDS])
    with torch.inference_mode():
        text_D = functional.normalize(model.encode_text(tokens), dim=-1)[0].numpy()

    searcher = open_index(index)
    cosine = searcher.engine.vectors_ND @ text_D
    hits = searcher.query_text(WORDS, 5)
    expected = searcher.engine.files["image_path"][np.argsort(-cosine, kind="stable")[:5]]
    assert [hit.image_path for hit in hits] == expected.tolist()
    assert hits[0].similarity == pytest.approx(float(cosine.max()), abs=1e-5)
    assert searcher.index.facts.confidence and {hit.sure for hit in hits} == {None}
    assert {hit.domain for hit in searcher.query_text(WORDS, 5, "left")} == {"left"}
    with pytest.raises(UserError, match="the text is empty; describe what the image shows"):
        searcher.query_text(" ")

    files = [f"--{kind}={tmp_path}/found.{kind}" for kind in ("json", "html")]
    words = ["query", "--index", str(index), "--k", "5"]
    search.main([*words, str(tmp_path / "pictures/left/1_0.png"), "--text", WORDS, *files])
    picture, text = json.loads((tmp_path / "found.json").read_text())
    assert text["query"] == WORDS and picture["hits"][0]["image_path"].endswith("left/1_0.png")
    assert [hit["image_path"] for hit in text["hits"]] == expected.tolist()
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/jpeg") == 11 and f"<h2>{WORDS}</h2>" in page


def test_a_model_without_texts_is_refused(searcher: Searcher) -> None:
    assert not searcher.model.takes_texts
    with pytest.raises(UserError, match="is not a CLIP with a pretrained text encoder"):
        searcher.query_text(WORDS)
