"""embed.py beyond whole images: boxes that queries are cropped to, queries of words, submissions."""

import io
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import open_clip
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

import embed
from guie.base.errors import UserError
from guie.models import open_model
from guie.models.backbones.open_clip import import_open_clip
from tiny_runs import tiny_run

BOX = (3, 2, 17, 13)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images, a manifest and a run."""
    folder, rng = tmp_path_factory.mktemp("drawn"), np.random.default_rng(0)
    for name in ("q.png", "i.png"):
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(folder / name)
    table = pd.DataFrame({"image_path": ["q.png", "i.png"], "label": "d/1", "domain": "d"})
    table = table.assign(split="test", role=["query", "index"])
    table.to_csv(folder / "mix.csv", index=False)
    tiny_run(folder / "tiny")
    return folder


@pytest.fixture
def job(drawn: Path, tmp_path: Path) -> list[str]:
    """The words of the command, for a copy of what was drawn."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    words = ["--model", str(tmp_path / "tiny"), "--manifest", str(tmp_path / "mix.csv")]
    return [*words, "--workers", "0", "--out", str(tmp_path / "E.npz")]


def embedded(job: list[str], *more: str) -> dict[str, np.ndarray]:
    with np.load(embed.main([*job, *more])) as file:
        return dict(zip(file["image_path"].tolist(), file["embedding"], strict=True))


def new_images(capsys, job: list[str], *more: str) -> tuple[int, dict[str, np.ndarray]]:
    capsys.readouterr()
    found = embedded(job, *more)
    return int(re.search(r"\((\d+) new\)", capsys.readouterr().out)[1]), found


def boxes(folder: Path, box: tuple) -> list[str]:
    header = "image_path,x1_px,y1_px,x2_px,y2_px\n"
    (folder / "boxes.csv").write_text(f"{header}q.png,{','.join(map(str, box))}\n")
    return ["--boxes", str(folder / "boxes.csv")]


def test_an_image_with_a_box_is_embedded_as_its_part(job, tmp_path, capsys) -> None:
    whole = embedded(job)
    count, cropped = new_images(capsys, job, *boxes(tmp_path, (3.4, 1.6, 16.8, 13.0)))
    assert count == 1 and np.array_equal(cropped["i.png"], whole["i.png"])
    count, other = new_images(capsys, job, *boxes(tmp_path, (0, 0, 5, 5)))
    assert count == 1 and not np.allclose(other["q.png"], cropped["q.png"], atol=1e-3)
    count, again = new_images(capsys, job, *boxes(tmp_path, BOX))
    assert count == 0 and np.array_equal(again["q.png"], cropped["q.png"])
    with Image.open(tmp_path / "q.png") as image:
        part = image.crop(BOX)
    part.save(tmp_path / "q.png")
    assert np.array_equal(cropped["q.png"], embedded(job)["q.png"])


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> str:
    """The weights of a tiny CLIP, random."""
    import_open_clip()  # which knows guie-tiny
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    save_file(open_clip.create_model("guie-tiny").state_dict(), path)
    return str(path)


WORDS = {"t/1.txt": "a red cup", "t/2.txt": "the tower of a bridge"}


def texts(folder: Path) -> list[str]:
    rows = {"image_path": list(WORDS), "text": list(WORDS.values()), "label": "d/1", "domain": "d"}
    pd.DataFrame(rows).to_csv(folder / "texts.csv", index=False)
    return ["--texts", str(folder / "texts.csv")]


@torch.inference_mode()
def encoded(clip: str) -> torch.Tensor:
    model = open_clip.create_model("guie-tiny", pretrained=clip).eval()
    tokens = open_clip.get_tokenizer("guie-tiny", context_length=model.context_length)
    return model.encode_text(tokens(list(WORDS.values())))


def test_texts_of_a_clip_follow_its_images(job, clip, tmp_path) -> None:
    job[1] = f"open_clip:guie-tiny:{clip}"
    alone, both = embedded(job), embedded(job, *texts(tmp_path))
    assert list(both) == ["q.png", "i.png", *WORDS]
    assert np.array_equal(both["q.png"], alone["q.png"])
    expected = functional.normalize(encoded(clip), dim=-1).numpy()
    np.testing.assert_allclose(np.stack([both[name] for name in WORDS]), expected, atol=1e-6)
    out = embed.main([*job, *texts(tmp_path), "--out", str(tmp_path / "E.parquet")])
    table = pd.read_parquet(out)
    assert table["image_path"].tolist() == list(both)
    assert np.array_equal(np.stack(table["embedding"]), np.stack(list(both.values())))
    assert table[["label", "domain"]].drop_duplicates().to_numpy().tolist() == [["d/1", "d"]]


def test_a_trained_head_is_applied_to_texts_too(job, clip, tmp_path) -> None:
    backbone = {"library": "open_clip", "name": "guie-tiny", "pretrained": clip}
    job[1] = str(tiny_run(tmp_path / "headed", backbone=backbone))
    both = embedded(job, *texts(tmp_path))
    with torch.inference_mode():
        expected = open_model(job[1]).embedder.embed(encoded(clip)).numpy()
    assert expected.shape == (2, 16)
    np.testing.assert_allclose(np.stack([both[name] for name in WORDS]), expected, atol=1e-6)
    # Of a run that trained its text tower, that one.
    other = {k: v + 0.1 * torch.randn_like(v) if v.is_floating_point() else v
             for k, v in open_clip.create_model("guie-tiny").state_dict().items()}  # fmt: skip
    save_file(other, tmp_path / "headed/model_clip.safetensors")
    again = embedded(job, *texts(tmp_path))
    assert not np.allclose(again["t/1.txt"], both["t/1.txt"], atol=1e-3)


NO_TEXTS = "is not a CLIP with a pretrained text encoder"
SHAPED = {"dim": 16, "image_shape": True, "norm": "bn"}
REFUSED = {
    "timm": ({"library": "timm", "name": "test_vit", "pretrained": None}, {}, NO_TEXTS),
    "pooled": ({"features": "pooled"}, {}, "outside its text space of 128; its config must have"),
    "shaped": ({}, {"head": SHAPED}, "the head of .* needs image shapes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_without_texts_is_refused(name, job, clip, tmp_path) -> None:
    backbone, more, fault = REFUSED[name]
    backbone = {"library": "open_clip", "name": "guie-tiny", "pretrained": clip, **backbone}
    job[1] = str(tiny_run(tmp_path / name, backbone=backbone, **more))
    with pytest.raises(UserError, match=fault):
        embedded(job, *texts(tmp_path))
    assert not (tmp_path / "E.npz").exists()


class MeanColour(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([2, 3])


class Varies(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean([1, 2])


class Overwrites(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        torch.save(images, "mix.csv")
        return images.float().mean([2, 3])


def submission(module: torch.nn.Module, folder: Path) -> list[str]:
    content = io.BytesIO()
    torch.jit.save(torch.jit.script(module), content)
    with zipfile.ZipFile(folder / "foreign.zip", "w") as archive:
        archive.writestr("saved_model.pt", content.getvalue())
    return ["--model", str(folder / "foreign.zip")]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Overwrites(), "operators that read or write files: save"),
        (Varies(), "dimensions for one image, and 8 for another"),
    ],
)
def test_a_submission_that_fails_or_names_files_is_refused(
    job, tmp_path, monkeypatch, module, message
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (tmp_path / "mix.csv").read_bytes()
    with pytest.raises(UserError, match=f"foreign.zip: .*{message}"):
        embed.main([*job, *submission(module, tmp_path)])
    assert (tmp_path / "mix.csv").read_bytes() == before


def test_a_submission_embeds_raw_images(job, tmp_path) -> None:
    found = embedded(job, *submission(MeanColour(), tmp_path))
    with Image.open(tmp_path / "q.png") as image:
        expected = np.asarray(image, np.float32).mean((0, 1))
    assert np.allclose(found["q.png"], expected, atol=1e-4)
    assert not list(tmp_path.glob(".embed-*")), "what was unpacked"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--batch-size 0", "--batch-size: 0: must be 1 to"),
        ("--workers -1", "--workers -1: must be 0 or more"),
        ("--split dev", "--split: invalid choice"),
        ("--pool max", "--pool: needs --layers"),
        ("--size-px 64", "--size-px and --fit: need a model LIBRARY:NAME:TAG"),
        ("--shard 2/2", "must be N/M, with N from 0 to M - 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused(words, fault, job, capsys) -> None:
    with pytest.raises(SystemExit) as refused:
        embed.main([*job, *words.split()])
    assert refused.value.code == 2 and fault in capsys.readouterr().err


def test_weights_that_were_cut_are_named(job, tmp_path) -> None:
    os.truncate(tmp_path / "tiny/model.safetensors", 1000)
    with pytest.raises(UserError, match=r"model.safetensors: incomplete .*; copy it again"):
        embed.main(job)


@pytest.fixture
def many(job: list[str], tmp_path: Path) -> list[str]:
    """Eleven images in batches of two."""
    rng = np.random.default_rng(1)
    names = [f"{number}.png" for number in range(11)]
    for name in names:
        Image.fromarray(rng.integers(0, 256, (20, 24, 3), np.uint8)).save(tmp_path / name)
    table = pd.DataFrame({"image_path": names, "label": "d/1", "domain": "d", "split": "test"})
    table.assign(role=["query", "index"] * 5 + ["both"]).to_csv(tmp_path / "mix.csv", index=False)
    return [*job, "--batch-size", "2"]


def test_what_a_killed_job_left_out_is_printed_and_computed_when_they_are_joined(
    many, tmp_path, capsys
) -> None:
    whole = Path(embed.main([*many, "--out", str(tmp_path / "W.parquet")])).read_bytes()
    words, printed = [*many, "--out", str(tmp_path / "E.parquet")], []
    for options in (["--shard", "0/3"], ["--shard", "2/3"], []):
        capsys.readouterr()
        embed.main([*words, "--missing", "3"])
        printed.append(capsys.readouterr().out.strip())
        embed.main([*words, *options])
    assert printed == ["0,1,2", "1,2", "1"]
    assert (tmp_path / "E.parquet").read_bytes() == whole
    with pytest.raises(UserError, match=r"11 images are computed in 3 parts; use .*N/3"):
        embed.main([*words, "--shard", "0/2"])


def test_all_images_are_decoded_only_if_one_is_bad_and_each_part_lists_the_bad_ones(
    many, tmp_path, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("guie.rows.checks.find_unreadable", None)
        whole = embedded(many)
    (tmp_path / "1.png").write_bytes(b"no image")
    (tmp_path / "9.png").unlink()
    many += ["--out", str(tmp_path / "B.npz")]
    with pytest.raises(UserError, match=r"(?s)2 rows have an image.*1\.png .*9\.png "):
        embed.main([*many, "--shard", "0/2"])
    many += ["--drop-bad"]
    embed.main([*many, "--shard", "0/2"])
    listed = pd.read_csv(tmp_path / "B.npz.0-of-2.dropped.csv")
    assert listed["image_path"].tolist() == ["1.png", "9.png"]
    usable = embedded(many)
    assert usable.keys() == whole.keys() - {"1.png", "9.png"}
    for name, row in usable.items():
        np.testing.assert_allclose(row, whole[name], atol=1e-6)


def test_rows_stay_and_a_grown_or_moved_manifest_embeds_its_new_images(many, tmp_path, capsys):
    many += ["--store", str(tmp_path / "rows")]
    lines = (tmp_path / "mix.csv").read_text().splitlines(keepends=True)
    (tmp_path / "mix.csv").write_text("".join(lines[:8]))
    count, few = new_images(capsys, many)
    assert count == 7 and new_images(capsys, many)[0] == 0
    (tmp_path / "mix.csv").write_text("".join([lines[0], *reversed(lines[1:])]))
    (tmp_path / "moved").mkdir()
    for file in [*tmp_path.glob("*.png"), tmp_path / "mix.csv"]:
        file.rename(tmp_path / "moved" / file.name)
    moved = [word.replace("mix.csv", "moved/mix.csv") for word in many]
    count, all_of_them = new_images(capsys, moved, "--out", str(tmp_path / "F.npz"))
    assert count == 4 and len(all_of_them) == 11
    assert all(np.array_equal(all_of_them[name], row_D) for name, row_D in few.items())
    assert not (tmp_path / "E.npz.rows").exists()


def test_the_sidecar_decides_how_images_are_decoded(job, tmp_path, capsys) -> None:
    """Grey images of 8 bits, then of 16."""
    for name in ("q.png", "i.png"):
        Image.open(tmp_path / name).convert("L").save(tmp_path / name)
    eight = embedded(job)
    for name in ("q.png", "i.png"):
        deep = np.asarray(Image.open(tmp_path / name)).astype(np.uint16) * 257
        Image.fromarray(deep).save(tmp_path / name)
    capsys.readouterr()
    seen = embedded(job)
    printed = capsys.readouterr().err
    assert "2 of 2 images differently (16 bits 2)" in printed
    (tmp_path / "mix.sidecar.yaml").write_text("decode: host\n")
    host = embedded(job)  # not the rows of the other decoder
    for name, row_D in eight.items():
        assert np.array_equal(seen[name], row_D)
        assert not np.allclose(host[name], row_D, atol=1e-3)
    assert np.allclose(host["q.png"], host["i.png"], atol=0.05), "nearly white, both"
