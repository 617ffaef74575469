"""An index in a bucket: of an S3 server on the loopback."""

from pathlib import Path

import pytest

import search
from guie.base.errors import UserError
from guie.search.searcher import open_index
from object_storage import s3, set_environment, upload
from some_pictures import folder_of

pytest.importorskip("moto")


@pytest.mark.parametrize("ann", [[], ["--ann"]])
def test_an_index_in_a_bucket_is_made_updated_and_queried(
    ann: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    photos = folder_of(tmp_path, classes=2, each=2)
    files = sorted(photos.rglob("*.png"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/note.txt").write_text("mine")
    with s3() as endpoint:
        set_environment(monkeypatch, endpoint)
        monkeypatch.setenv("GUIE_CACHE", str(tmp_path / "cache"))
        bucket = upload(endpoint, tmp_path / "own", "photos").removesuffix("/set")
        words = ["index", "--model", str(run), "--images", str(photos), "--out"]
        with pytest.raises(UserError, match="s3://photos: is a whole bucket; name a folder"):
            search.main([*words, bucket])
        with pytest.raises(UserError, match="s3://photos/set: not an index, but has 1 .* note.txt"):
            search.main([*words, f"{bucket}/set"])
        with pytest.raises(UserError, match="s3://photos/index: no index; create one"):
            open_index(f"{bucket}/index")
        search.main([*words, f"{bucket}/index", *ann])
        files[0].write_bytes(b"broken")
        search.main([*words, f"{bucket}/index"])
        lines = capsys.readouterr().out
        assert "s3://photos/index: 4 images" in lines and ": 4 new" not in lines.splitlines()[-1]
        assert "1 removed, 3 unchanged" in lines and "s3://photos/index.dropped.csv" in lines
        search.main(["query", "--index", f"{bucket}/index", str(files[1]), "--k", "1"])
        assert f"0.000  {files[1].relative_to(photos)}" in capsys.readouterr().out
        search.main([*words, str(tmp_path / "index")])
        here, there = open_index(tmp_path / "index"), open_index(f"{bucket}/index")
        assert here.query(files[2], k=3) == there.query(files[2], k=3)
