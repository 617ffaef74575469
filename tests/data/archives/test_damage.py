"""Archives that are damaged, or of a kind that cannot be read, are refused."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest
from archive_files import make_tar, make_zip, refusal


def test_a_declared_size_that_is_too_small_gains_nothing(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", bytes(5_000_000)))
    size = (5_000_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("seed", range(12))  # where damage falls decides what could tell
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_damaged_archives_are_refused(suffix: str, seed: int, tmp_path: Path) -> None:
    make = make_zip if suffix == ".zip" else make_tar
    draw = random.Random(seed)
    path = make(tmp_path / f"a{suffix}", *((f"c/{n}", draw.randbytes(3000)) for n in range(4)))
    whole = path.read_bytes()
    cuts = [0, 1, 100, len(whole) // 2, len(whole) - len(whole) // 3]
    boundary = 2 * (512 + 3072)  # in the tar: right between two members
    for cut in [*cuts, boundary]:
        path.write_bytes(whole[:cut])
        assert "damaged" in refusal(path), cut
    path.write_bytes(whole[:boundary] + b"junk" * 200 + whole[boundary + 800 :])
    assert "damaged" in refusal(path)
    path.write_bytes(b"no archive at all" * 99)
    assert "damaged" in refusal(path)


def test_zstd_is_read_or_a_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99))
    said = refusal(tmp_path / "a.tar.zst")
    assert "damaged" in said if "zst" in tarfile.TarFile.OPEN_METH else "tar --zstd -xf" in said
