"""Downloads: a digest decides, what is whole is not fetched again, and it lands where it is found."""

from __future__ import annotations

import hashlib
import re
import tarfile

import pytest
from miniatures.files import touch

from guie.base.errors import UserError
from guie.data.datasets import DATASETS, download
from guie.data.datasets.download import DOWNLOADS, Download, fetch, main
from guie.data.datasets.finding import located


@pytest.fixture
def served(tmp_path):
    """A file that a URL serves, with its digest."""

    def serve(name: str, content: bytes, digest: str | None = None) -> Download:
        path = tmp_path / "web" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return Download(path.as_uri(), digest or f"md5:{hashlib.md5(content).hexdigest()}")

    return serve


def test_a_file_is_fetched_once(served, tmp_path, monkeypatch):
    wanted = served("a.mat", b"labels" * 1000)
    path = fetch(wanted, tmp_path / "input/a.mat")
    assert path.read_bytes() == b"labels" * 1000
    monkeypatch.setattr(download, "stream", lambda *_: pytest.fail("fetched again"))
    assert fetch(wanted, path) == path


def test_a_file_that_was_cut_off_is_fetched_again(served, tmp_path):
    wanted = served("a.mat", b"whole")
    (tmp_path / "a.mat").write_bytes(b"who")
    assert fetch(wanted, tmp_path / "a.mat").read_bytes() == b"whole"


def test_another_file_than_expected_is_not_kept(served, tmp_path):
    wanted = served("a.mat", b"an error page", digest="sha256:" + "0" * 64)
    with pytest.raises(UserError, match="expected sha256:0000.*; .* is not kept"):
        fetch(wanted, tmp_path / "input/a.mat")
    assert list((tmp_path / "input").iterdir()) == []


def test_a_source_that_does_not_answer_is_told(tmp_path):
    gone = Download((tmp_path / "gone.zip").as_uri(), "md5:0")
    with pytest.raises(UserError, match="gone.zip: download failed: .*; try again later"):
        fetch(gone, tmp_path / "input/gone.zip")


def test_archive_and_list_land_where_the_dataset_is_found(served, tmp_path, monkeypatch, capsys):
    touch(tmp_path / "made", ["jpg/image_00001.jpg"])
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
        archive.add(tmp_path / "made/jpg", "jpg")
    files = (
        served("102flowers.tgz", (tmp_path / "made.tgz").read_bytes()),
        served("imagelabels.mat", b"labels"),
    )
    monkeypatch.setitem(DOWNLOADS, "flowers", files)
    root = tmp_path / "input"
    for _ in range(2):  # the second time nothing is left to do
        main(["flowers", "--to", str(root)])
    assert located("flowers", [root]) == root / "flowers"
    assert (root / "flowers/jpg/image_00001.jpg").is_file()
    assert capsys.readouterr().out.splitlines() == [f"flowers: {root / 'flowers'}"] * 2


def test_every_download_is_of_a_dataset_and_has_a_whole_digest():
    lengths = {"md5": 32, "sha256": 64}
    for name, files in DOWNLOADS.items():
        assert name in DATASETS
        for file in files:
            algorithm, _, digits = file.digest.partition(":")
            assert re.fullmatch(rf"[0-9a-f]{{{lengths[algorithm]}}}", digits)
