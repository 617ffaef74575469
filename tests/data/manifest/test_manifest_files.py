"""Manifests as files: what cannot be read, and that what is saved comes back."""

from __future__ import annotations

import importlib
import os

import pandas as pd
import pytest
from manifest_rows import HEADER, refusal

from guie.data.manifest import DomainDeclaration, Sidecar, load_manifest, save_manifest
from guie.data.manifest.reading import sidecar_path


def test_unreadable_tables_are_refused_by_name(tmp_path):
    """What other programs save as CSV is in test_dirty.py."""
    cases = {
        "absent.csv": (None, "no such manifest"),
        "blank.csv": (b"\n \n", "is empty"),
        "text.parquet": (b"PAR?", "cannot be read as a table"),
        "folder.csv": ("folder", "is a folder, not a file"),
        "pipe.csv": ("pipe", "not a regular file"),
        "zero.csv": ("zero", "not a regular file"),
    }
    for name, (content, fault) in cases.items():
        path = tmp_path / name
        if content == "folder":
            path.mkdir()
        elif content == "pipe":
            os.mkfifo(path)
        elif content == "zero":
            path.symlink_to("/dev/zero")
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
    toys = {"toys": DomainDeclaration(shared_classes=True)}
    sidecar = Sidecar(domains=toys, decode="host")
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
    assert "changed while it was read" in refusal(path)


def test_a_config_of_the_manifests_name_is_left_alone(written):
    path = written()
    config = path.with_suffix(".yaml")
    for text in ("name: somebody's config\n", "- a list\n", "domains: [\n", "x\n"):
        config.write_text(text)
        save_manifest(load_manifest(path).table, path)
        assert config.read_text() == text and load_manifest(path).sidecar == Sidecar()
