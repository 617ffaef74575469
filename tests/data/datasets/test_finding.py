"""Where data sets are found and what curate.py --list prints; downloads, which a digest decides."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from guie.base.errors import UserError
from guie.config.data import DatasetSource
from guie.curation.thinning import read_source
from guie.data.datasets import DATASETS, download, finding
from guie.data.datasets.download import DOWNLOADS, Download, fetch, main
from guie.data.datasets.finding import find, listing, located, with_path
from guie.data.manifest import check
from miniatures import MINIATURES
from miniatures.files import touch


def found_in(root: Path) -> list[Path | None]:
    return [find(dataset, [root]) for dataset in DATASETS.values()]


def test_every_dataset_is_found_among_all_others(tmp_path):
    for make in MINIATURES.values():
        make(tmp_path)
    found = found_in(tmp_path)
    assert None not in found and len(set(found)) == len(found)


@pytest.mark.parametrize(
    "above",
    [
        "SOP/",
        "sop/Stanford_Online_Products/",
        "stanford-online-products/a/Stanford_Online_Products/",
    ],
)
def test_case_and_outer_folders_do_not_matter(above, tmp_path):
    touch(tmp_path, [f"{above}Ebay_train.txt"])
    assert located("sop", [tmp_path]) == tmp_path / above.rstrip("/")


def test_a_folder_of_the_name_without_the_marker_is_not_the_dataset(tmp_path):
    assert set(found_in(tmp_path / "absent")) == {None}
    touch(tmp_path, ["sop/photo.jpg", "cub/images/1.jpg", "other/Ebay_train.txt"])
    assert set(found_in(tmp_path)) == {None}


def test_the_first_root_that_holds_it_wins(tmp_path):
    touch(tmp_path, ["kaggle/sop/Ebay_train.txt", "input/sop/Ebay_train.txt"])
    roots = [tmp_path / "input", tmp_path / "kaggle"]
    assert located("sop", roots) == tmp_path / "input/sop"
    assert located("sop", roots[1:]) == tmp_path / "kaggle/sop"


def test_what_is_not_found_says_where_to_get_it(tmp_path):
    with pytest.raises(UserError) as caught:
        located("sop", [tmp_path])
    for word in (str(tmp_path), "Ebay_train.txt", "cvgl.stanford.edu", "path:", "input/README.md"):
        assert word in str(caught.value)


def test_a_given_path_may_be_above_the_dataset(tmp_path):
    touch(tmp_path, ["x/y/Ebay_train.txt"])
    for kind, folder in (("sop", tmp_path / "x/y"), ("met", tmp_path)):
        assert with_path(source(kind=kind, path=str(tmp_path))).path == str(folder)


def test_listing_has_a_line_a_dataset(tmp_path):
    touch(tmp_path, ["input/sop/Ebay_train.txt"])
    head, *lines = listing([tmp_path / "input", tmp_path / "absent"]).splitlines()
    assert head.startswith(f"1 of {len(DATASETS)} datasets found in {tmp_path / 'input'}, ")
    assert [re.split(r"\s+", line)[0] for line in lines] == list(DATASETS)
    by_name = {line.split()[0]: line for line in lines}
    assert by_name["sop"].endswith(str(tmp_path / "input/sop"))
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


def source(**keys) -> DatasetSource:
    return TypeAdapter(DatasetSource).validate_python(keys)


def test_a_source_with_a_path_is_read_there(tmp_path):
    MINIATURES["met"](tmp_path)
    config = source(kind="met", path=str(tmp_path), domain="art", partial=True)
    manifest, skipped = read_source(config)
    assert manifest.root == tmp_path / "met"
    assert manifest.sidecar.domains["art"].index_is_train
    assert check(manifest.table, manifest.sidecar) == []
    assert not skipped
    assert any("Met: 397,121 train images expected, 8 found" in line for line in manifest.warnings)


def test_a_source_without_a_path_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "ROOTS", [tmp_path])
    with pytest.raises(UserError, match="Stanford Online Products is not in"):
        read_source(source(kind="sop"))
    MINIATURES["sop"](tmp_path)
    with pytest.raises(UserError, match="59,551 train images expected, 6 found"):
        read_source(source(kind="sop"))
    manifest, _ = read_source(source(kind="sop", partial=True, splits=["train"]))
    assert len(manifest.table) == 6


def test_a_thinned_test_set_is_accounted_for(tmp_path):
    MINIATURES["food2k"](tmp_path)
    options = {"test_classes": 2}
    config = source(kind="food2k", path=str(tmp_path), partial=True, options=options)
    whole, _ = read_source(config)
    thinned, skipped = read_source(config.model_copy(update={"test_max_images": 2}))
    assert len(whole.table) == 12 and len(thinned.table) == 10
    assert skipped == {"test image beyond the class's limit, or a near-duplicate": 2}


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "imaginary"},
        {"kind": "sop", "size": 1},
        {"kind": "sop", "splits": []},
        {"kind": "sop", "splits": ["dev"]},
        {"kind": "sop", "test_max_images": 0},
        {"kind": "sop", "test_near_duplicate_bits": 65},
        {"kind": "sop", "partial": "yes"},
    ],
)
def test_a_faulty_source_is_refused(keys):
    with pytest.raises(ValidationError):
        source(**keys)


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
