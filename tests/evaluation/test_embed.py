"""embed.py beyond whole images: boxes that queries are cropped to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import embed
from guie.base.errors import UserError
from guie.evaluation.features import computing
from tiny_runs import tiny_run

BOX = (3, 2, 17, 13)


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    """Two images and a manifest, a run, and the words of the command."""
    rng = np.random.default_rng(0)
    for name in ("q.png", "i.png"):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(tmp_path / name)
    table = pd.DataFrame({"image_path": ["q.png", "i.png"], "label": "d/1", "domain": "d"})
    table = table.assign(split="test", role=["query", "index"])
    table.to_csv(tmp_path / "mix.csv", index=False)
    run = tiny_run(tmp_path / "tiny")
    words = ["--model", str(run), "--manifest", str(tmp_path / "mix.csv"), "--workers", "0"]
    return [*words, "--out", str(tmp_path / "E.npz")]


def embedded(job: list[str], *more: str) -> dict[str, np.ndarray]:
    with np.load(embed.main([*job, *more])) as file:
        return dict(zip(file["image_path"].tolist(), file["embedding"], strict=True))


def boxes(folder: Path, box: tuple) -> list[str]:
    header = "image_path,x1_px,y1_px,x2_px,y2_px\n"
    (folder / "boxes.csv").write_text(f"{header}q.png,{','.join(map(str, box))}\n")
    return ["--boxes", str(folder / "boxes.csv")]


def test_an_image_with_a_box_is_embedded_as_its_part(job, tmp_path, monkeypatch) -> None:
    whole = embedded(job)
    cropped = embedded(job, *boxes(tmp_path, (3.4, 1.6, 16.8, 13.0)))
    with Image.open(tmp_path / "q.png") as image:
        part = image.crop(BOX)
    part.save(tmp_path / "q.png")
    expected = embedded(job)
    assert np.array_equal(cropped["q.png"], expected["q.png"])
    assert np.array_equal(cropped["i.png"], whole["i.png"])
    assert not np.allclose(cropped["q.png"], whole["q.png"], atol=1e-3)


def test_what_was_kept_of_another_box_is_computed_again(job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(embed.shutil, "rmtree", lambda *_, **__: None)  # as after a kill
    add, computed = computing.FeatureCache.add, []
    monkeypatch.setattr(
        computing.FeatureCache,
        "add",
        lambda cache, states, rows: computed.append(len(rows)) or add(cache, states, rows),
    )
    whole = embedded(job)
    one = embedded(job, *boxes(tmp_path, BOX))
    other = embedded(job, *boxes(tmp_path, (0, 0, 5, 5)))
    again = embedded(job, *boxes(tmp_path, BOX))
    assert computed == [2, 1, 1], "the image without a box is not, nor the first box"
    assert np.array_equal(one["q.png"], again["q.png"])
    assert not np.allclose(one["q.png"], other["q.png"], atol=1e-3)
    assert np.array_equal(embedded(job)["q.png"], whole["q.png"])


def test_a_bad_box_ends_it_before_anything_is_embedded(job, tmp_path) -> None:
    with pytest.raises(UserError, match="boxes.csv:2: q.png: its box 0, 0, 99, 9 lies outside"):
        embedded(job, *boxes(tmp_path, (0, 0, 99, 9)))
    with pytest.raises(UserError, match="gone.csv: cannot be read .No such file"):
        embedded(job, "--boxes", str(tmp_path / "gone.csv"))
    assert not (tmp_path / "E.npz").exists() and not (tmp_path / "E.npz.parts").exists()
