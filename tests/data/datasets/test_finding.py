"""Where data sets are found and what curate.py --list prints; downloads, which a digest decides."""

import hashlib
import tarfile
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from guie.base.errors import UserError
from guie.config.data import DatasetSource
from guie.data.datasets import DATASETS, download
from guie.data.datasets.download import DOWNLOADS, fetch, main
from guie.data.datasets.finding import find, listing, located, with_path
from miniatures import MINIATURES
from miniatures.files import touch


def found_in(root: Path) -> list[Path | None]:
    return [find(dataset, [root]) for dataset in DATASETS.values()]


def test_every_dataset_is_found_among_all_others(tmp_path):
    assert set(found_in(tmp_path / "absent")) == {None}
    touch(tmp_path, ["a/sop/photo.jpg", "a/cub/images/1.jpg", "a/other/Ebay_train.txt"])
    assert set(found_in(tmp_path / "a")) == {None}, "a name without the marker, or the reverse"
    for make in MINIATURES.values():
        make(tmp_path / "b")
    found = found_in(tmp_path / "b")
    assert None not in found and len(set(found)) == len(found)


def test_case_and_outer_folders_do_not_matter_and_the_first_root_wins(tmp_path):
    nested = "stanford-online-products/a/Stanford_Online_Products"
    touch(tmp_path, [f"input/{nested}/Ebay_train.txt", "kaggle/SOP/Ebay_train.txt"])
    roots = [tmp_path / "input", tmp_path / "kaggle"]
    assert located("sop", roots) == tmp_path / "input" / nested
    assert located("sop", roots[1:]) == tmp_path / "kaggle/SOP"
    above = tmp_path / "input/stanford-online-products"  # a given path may be above the data set
    for kind, folder in (("sop", tmp_path / "input" / nested), ("met", above)):
        given = TypeAdapter(DatasetSource).validate_python({"kind": kind, "path": str(above)})
        assert with_path(given).path == str(folder)
    with pytest.raises(UserError) as caught:
        located("sop", [tmp_path])
    for word in (str(tmp_path), "Ebay_train.txt", "cvgl.stanford.edu", "path:", "input/README.md"):
        assert word in str(caught.value)
    head, *lines = listing([tmp_path / "kaggle", tmp_path / "absent"]).splitlines()
    assert head.startswith(f"1 of {len(DATASETS)} datasets found in {tmp_path / 'kaggle'}, ")
    by_name = {line.split()[0]: line for line in lines}
    assert list(by_name) == list(DATASETS)
    assert by_name["sop"].endswith(str(tmp_path / "kaggle/SOP"))
    assert by_name["met"].endswith("-  http://cmp.felk.cvut.cz/met/")


def test_the_readme_names_every_dataset_with_its_page():
    text = (Path(__file__).parents[3] / "input" / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = {line.split("`")[1]: line for line in lines if "](http" in line}
    for name, dataset in DATASETS.items():
        assert f"({dataset.homepage})" in rows[name]
        assert dataset.domain in rows[name] or dataset.domain == "several"
        for count in dataset.expected:
            if count.certain and not count.where and count.domain is None:
                assert f"{count.least:,}" in rows[name] or count.unit == "classes" or name == "met"
        for option in dataset.options:
            assert any(f"`{name}`" in line and f"`{option}`" in line for line in lines), option


def served(folder: Path, content: bytes, name: str = "a.mat", digest: str = "") -> dict[str, str]:
    """A file that a URL serves, with its digest."""
    path = folder / "web" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    digest = digest or f"md5:{hashlib.md5(content).hexdigest()}"
    return {"url": path.as_uri(), "digest": digest}


def test_a_file_is_fetched_once_and_whole(tmp_path, monkeypatch):
    path = tmp_path / "input/a.mat"
    with pytest.raises(UserError, match="expected sha256:0000.*; .* is not kept"):
        fetch(**served(tmp_path, b"an error page", digest="sha256:" + "0" * 64), path=path)
    with pytest.raises(UserError, match="gone.zip: download failed: .*; try again later"):
        fetch((tmp_path / "gone.zip").as_uri(), "md5:0", path)
    assert list((tmp_path / "input").iterdir()) == []
    path.write_bytes(b"cut off")
    wanted = served(tmp_path, b"labels" * 1000)
    assert fetch(**wanted, path=path).read_bytes() == b"labels" * 1000
    monkeypatch.setattr(download, "stream", lambda *_: pytest.fail("fetched again"))
    assert fetch(**wanted, path=path) == path


def test_archive_and_list_land_where_the_dataset_is_found(tmp_path, monkeypatch, capsys):
    touch(tmp_path / "made", ["jpg/image_00001.jpg"])
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
        archive.add(tmp_path / "made/jpg", "jpg")
    files = (
        served(tmp_path, (tmp_path / "made.tgz").read_bytes(), "102flowers.tgz"),
        served(tmp_path, b"labels", "imagelabels.mat"),
    )
    monkeypatch.setitem(DOWNLOADS, "flowers", files)
    root = tmp_path / "input"
    for _ in range(2):  # the second time nothing is left to do
        main(["flowers", "--to", str(root)])
    assert located("flowers", [root]) == root / "flowers"
    assert (root / "flowers/jpg/image_00001.jpg").is_file()
    assert capsys.readouterr().out.splitlines() == [f"flowers: {root / 'flowers'}"] * 2
