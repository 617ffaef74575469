"""Texts as queries, of an index that was made with a CLIP."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the random weights of a tiny CLIP, and an `index` by it of labelled pictures."""
    place = tmp_path_factory.mktemp("clip")
    import_open_clip()  # which knows guie-tiny
    torch.manual_seed(0)
    save_file(open_clip.create_model("guie-tiny").state_dict(), place / "clip.safetensors")
    folder_of(place)
    indexed(Path(f"open_clip:guie-tiny:{place}/clip.safetensors"), place / "m.csv", place / "index")
    return place


@torch.inference_mode()
def encoded(place: Path) -> np.ndarray:
    model = open_clip.create_model("guie-tiny", pretrained=f"{place}/clip.safetensors").eval()
    tokens = open_clip.get_tokenizer("guie-tiny", context_length=model.context_length)
    return functional.normalize(model.encode_text(tokens([WORDS])), dim=-1)[0].numpy()


def test_a_text_finds_the_images_nearest_to_its_encoding(clip: Path) -> None:
    searcher = open_index(clip / "index")
    cosine = searcher.engine.vectors_ND @ encoded(clip)
    hits = searcher.query_text(WORDS, 5)
    expected = searcher.engine.files["image_path"][np.argsort(-cosine, kind="stable")[:5]]
    assert [hit.image_path for hit in hits] == expected.tolist()
    assert hits[0].similarity == pytest.approx(float(cosine.max()), abs=1e-5)
    assert searcher.index.facts.confidence and {hit.sure for hit in hits} == {None}
    assert {hit.domain for hit in searcher.query_text(WORDS, 5, "left")} == {"left"}
    with pytest.raises(UserError, match="the text is empty; describe what the image shows"):
        searcher.query_text(" ")


def test_a_model_without_texts_is_refused(searcher: Searcher) -> None:
    assert not searcher.model.takes_texts
    with pytest.raises(UserError, match="is not a CLIP with a pretrained text encoder"):
        searcher.query_text(WORDS)


def test_the_command(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--{kind}={tmp_path}/found.{kind}" for kind in ("json", "html")]
    words = ["query", "--index", str(clip / "index"), "--k", "2"]
    search.main([*words, str(clip / "pictures/left/1_0.png"), "--text", WORDS, *files])
    picture, text = json.loads((tmp_path / "found.json").read_text())
    hits = open_index(clip / "index").query_text(WORDS, 2)
    assert text["query"] == WORDS and picture["hits"][0]["image_path"].endswith("left/1_0.png")
    assert [hit["image_path"] for hit in text["hits"]] == [hit.image_path for hit in hits]
    page = (tmp_path / "found.html").read_text()
    assert page.count("data:image/jpeg") == 5 and f"<h2>{WORDS}</h2>" in page
    for wrong, fault in (
        ([], "give an image, or --text"),
        (["--text", "a", "--box", "0,0,9,9"], "--box"),
    ):
        with pytest.raises(SystemExit):
            search.main([*words, *wrong])
        assert fault in capsys.readouterr().err
