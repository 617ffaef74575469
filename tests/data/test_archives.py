"""Archives: harmless ones are unpacked whole, once, by one process; of others nothing stays."""

import fcntl
import io
import os
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from guie.base.errors import UserError
from guie.config.data import FolderSource
from guie.data import archives
from guie.data.archives import unpack, unpacked

FILES = {"cat/1.jpg": b"one" * 50, "cat/2.jpg": os.urandom(3000), "dog/deep/3.jpg": b""}
FORMATS = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")
WINDOWS, UNIX = 0, 3


class Raw(zipfile.ZipInfo):
    """A member with the bytes of a name, and without the UTF-8 flag."""

    raw: bytes

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.raw, self.flag_bits & ~0x800


def raw(name: bytes, system: int = WINDOWS, extra: bytes = b"") -> Raw:
    info = Raw(name.hex())
    info.raw, info.create_system, info.extra = name, system, extra
    return info


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> dict:
    return {"type": kind, "linkname": target}


def make_zip(path: Path, *members: tuple) -> Path:
    """Members as (name or ZipInfo, content), or (name, b"", attributes of a TarInfo)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content, *more in members:
            info = name if isinstance(name, zipfile.ZipInfo) else zipfile.ZipInfo("x")
            if isinstance(name, str):
                info.filename, info.compress_type = name, zipfile.ZIP_DEFLATED
            for attributes in more:
                symbolic = attributes["type"] == tarfile.SYMTYPE
                kind = stat.S_IFLNK if symbolic else stat.S_IFIFO
                info.external_attr = (kind | 0o777) << 16
                content = attributes.get("linkname", "").encode()
            file.writestr(info, content)
    return path


def make_tar(path: Path, *members: tuple) -> Path:
    """Members as (name, content) or (name, content, attributes of the TarInfo)."""
    with tarfile.open(path, "w:" + path.suffix.lstrip(".").replace("tar", "")) as file:
        for name, content, *more in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in more[0].items() if more else ():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(content))
    return path


def made(path: Path, *members: tuple) -> Path:
    return (make_zip if path.suffix == ".zip" else make_tar)(path, *members)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if p.name[0] != "."}


def refusal(archive: Path) -> str:
    """Return the message of `unpack`, which must leave nothing."""
    before = sorted(archive.parent.iterdir())
    with pytest.raises(UserError) as caught:
        unpack(archive, archive.parent / "out")
    assert sorted(archive.parent.iterdir()) == before
    message = str(caught.value)
    assert message.startswith(f"{archive}: ") and "\n" not in message
    return message


# ---------------------------------------------------------------- members that are refused

GOOD = ("cat/1.jpg", b"1")
HARD = tarfile.LNKTYPE
LEAVES, TWICE, NO_FILE = (
    "a link that leaves the folder",
    "occurs twice in the archive, or is inside a file",
    "which is no earlier file",
)
REFUSED = [
    ([GOOD, ("/etc/passwd", b"x")], "an absolute path"),
    ([GOOD, ("C:/Windows/x", b"x")], "an absolute path"),
    ([GOOD, ("../x", b"x")], "leaves the folder"),
    ([GOOD, ("a/../../x", b"x")], "leaves the folder"),
    ([GOOD, ("a/..", b"x")], "leaves the folder"),
    ([GOOD, ("..\\x", b"x")], "a backslash"),
    ([GOOD, ("a\\b.jpg", b"x")], "a backslash"),
    ([("a", b"", link("/etc/passwd"))], LEAVES),
    ([("a", b"", link(""))], LEAVES),
    ([("d/a", b"", link("../../x"))], LEAVES),
    # a link into the folder above the link's own target: `..` of a link leads elsewhere
    ([("deep/down/f", b"1"), ("l", b"", link("deep/down")), ("m", b"", link("l/../../../x"))], LEAVES),
    ([("d/e/up", b"", link("../..")), ("n", b"", link("d/e/up/../x"))], LEAVES),
    ([("d/f", b"1"), ("l", b"", link("d")), ("l/x", b"2")], "'l/x': is inside a link"),
    ([("l/x", b"2"), ("d/f", b"1"), ("l", b"", link("d"))], "'l': occurs twice"),
    ([GOOD, ("cat/2.jpg", b"", {"type": tarfile.FIFOTYPE})], "'cat/2.jpg': a special file"),
    *[([GOOD, (second, b"2")], TWICE) for second in ("cat/1.jpg", "./cat/1.jpg", "cat", "cat/1.jpg/x")],
]  # fmt: skip
REFUSED_OF_TARS = [
    ([GOOD, ("cat/2.jpg", b"", {"type": tarfile.CHRTYPE})], "'cat/2.jpg': a special file"),
    *[([("f", b"1"), ("s", b"", link("f")), ("a", b"", link(target, HARD))], NO_FILE)
      for target in ("absent", "s")],
    ([("f", b"1"), ("a", b"", link("../x", HARD))], LEAVES),
    # a hard link to a link, and through one
    ([("d/l", b"", link("../f")), ("a", b"", link("d/l", HARD))], NO_FILE),
    ([("d/f", b"1"), ("m", b"", link("d")), ("a", b"", link("m/f", HARD))], NO_FILE),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "members", "says"),
    [
        *[("a.zip", *case) for case in REFUSED],
        *[("a.tar", *case) for case in REFUSED + REFUSED_OF_TARS],
    ],
)
def test_a_harmful_member_is_refused(name: str, members: list, says: str, tmp_path: Path) -> None:
    assert says in refusal(made(tmp_path / name, *members))


def test_what_only_a_zip_can_hold_is_refused(tmp_path: Path) -> None:
    r"""A NUL, at which zipfile would cut `1.jpg\0.exe`, and an encrypted member."""
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg_.exe", b"x"))
    data = bytearray(path.read_bytes())
    path.write_bytes(data.replace(b"1.jpg_", b"1.jpg\0"))
    assert "a NUL" in refusal(path)
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + flags] |= 1
    path.write_bytes(data)
    assert "'cat/1.jpg_.exe': encrypted" in refusal(path)


def test_a_member_above_the_limit_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", ("c/0", os.urandom(1000)))
    for limit, says in ((999, "'c/0': 1,000 bytes, more than 999"), (1000, None)):
        monkeypatch.setattr(archives.fault_of_member, "__defaults__", (limit,))
        assert says in refusal(path) if says else unpack(path, tmp_path / "fits")


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_bomb_is_refused(suffix: str, tmp_path: Path) -> None:
    path = made(tmp_path / f"a{suffix}", ("cat/1.jpg", bytes(5_000_000)))
    assert f"{path.stat().st_size:,} bytes unpack to 5,000,000, a ratio above 100" in refusal(path)
    if suffix == ".zip":  # a size that is declared too small gains nothing
        size = (5_000_000).to_bytes(4, "little")
        path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
        assert "damaged" in refusal(path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_archives_are_refused(suffix: str, tmp_path: Path) -> None:
    draw = random.Random(0)
    path = made(tmp_path / f"a{suffix}", *((f"c/{n}", draw.randbytes(3000)) for n in range(4)))
    whole = path.read_bytes()
    boundary = 2 * (512 + 3072)  # in the tar: right between two members
    for cut in (0, 1, 100, len(whole) // 2, len(whole) - len(whole) // 3, boundary):
        path.write_bytes(whole[:cut])
        assert "damaged" in refusal(path), cut
    path.write_bytes(whole[:boundary] + b"junk" * 200 + whole[boundary + 800 :])
    assert "damaged" in refusal(path)
    path.write_bytes(b"no archive at all" * 99)
    assert "damaged" in refusal(path)


# ---------------------------------------------------------------- harmless archives


@pytest.mark.parametrize("suffix", [*FORMATS, ".tgz"])
def test_an_archive_is_unpacked_next_to_itself_and_only_once(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"products{suffix}"
    if suffix == ".tgz":
        make_tar(tmp_path / "products.tar.gz", *FILES.items()).rename(path)
    else:
        made(path, *FILES.items())
    folder = unpacked(path)
    assert folder == tmp_path / "products" and contents(folder) == FILES
    inode = (folder / "cat/1.jpg").stat().st_ino
    assert unpacked(path) == folder
    assert (folder / "cat/1.jpg").stat().st_ino == inode, "unpacked again"
    path.unlink()  # to save the space
    assert unpacked(path) == folder
    assert unpacked(folder.rename(path)) == path, "a folder may be named like an archive"
    with pytest.raises(UserError, match="no such archive"):
        unpacked(path.with_name(f"absent{suffix}"))


def test_names_are_made_plain_and_permissions_left_out(tmp_path: Path) -> None:
    members = [("./", b"", {"type": tarfile.DIRTYPE}), ("./cat", b"", {"type": tarfile.DIRTYPE})]
    script = ("cat//2.sh", b"2", {"mode": 0o6777, "uid": 12345})
    folder = unpacked(make_tar(tmp_path / "a.tar", *members, ("./cat/1.jpg", b"1"), script))
    assert contents(folder) == {"cat/1.jpg": b"1", "cat/2.sh": b"2"}
    state = (folder / "cat/2.sh").stat()
    assert not state.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)
    assert state.st_uid == os.getuid()


def test_links_that_stay_are_unpacked(tmp_path: Path) -> None:
    soft = [("all/1.jpg", b"1"), ("cat/soft.jpg", b"", link("../all/1.jpg"))]
    more = [("cat/hard.jpg", b"", link("all/1.jpg", HARD)), ("cat/a.jpg", b"", link("./soft.jpg"))]
    for path in (make_tar(tmp_path / "a.tar", *soft, *more), make_zip(tmp_path / "b.zip", *soft)):
        folder = unpacked(path)
        assert (folder / "cat/soft.jpg").is_symlink()
        assert set(contents(folder).values()) == {b"1"}
        assert len(contents(folder)) == (4 if path.suffix == ".tar" else 2)


@pytest.mark.parametrize(
    ("name", "encoding"), [("茶杯/1.jpg", "gbk"), ("чай/1.jpg", "cp1251"), ("é/1.jpg", "cp437")]
)
def test_an_unknown_encoding_is_refused_and_a_given_one_obeyed(name, encoding, tmp_path):
    members = [(raw(name.encode(encoding)), b"1"), (raw(b"plain/1.jpg"), b"1")]
    archive = make_zip(tmp_path / "goods.zip", *members)
    with pytest.raises(UserError, match="1 names are in an unknown encoding.*set encoding of the"):
        unpacked(archive)
    wrong = make_zip(tmp_path / "wrong.zip", (raw(b"\x81\xff/1"), b"1"))
    with pytest.raises(UserError, match="1 names are not in gbk, such as"):
        unpacked(wrong, "gbk")
    assert set(contents(unpacked(archive, encoding))) == {name, "plain/1.jpg"}
    with pytest.raises(ValidationError, match="unknown to Python; gbk, shift_jis"):
        FolderSource(kind="folder", path="a.zip", domain="d", encoding="gbq")


GBK, UTF8 = "茶/1".encode("gbk"), "茶/1".encode()
FIELD = struct.pack("<HHBL", 0x7075, 5 + len(UTF8), 1, zlib.crc32(GBK)) + UTF8


def test_names_that_are_certain_need_no_encoding(tmp_path: Path) -> None:
    """As ditto on macOS writes; letters of three bytes; with a field of Info-ZIP."""
    members = {
        "thé/1": [raw("thé/1".encode(), UNIX)],
        "茶/1": [raw(UTF8)],
        "茶/1 ": [raw(GBK, extra=FIELD)],
    }
    for number, (name, infos) in enumerate(members.items()):
        archive = make_zip(tmp_path / f"{number}.zip", *((info, b"1") for info in infos))
        assert name.strip() in contents(unpacked(archive))


# ---------------------------------------------------------------- disk, other processes


def test_too_little_space_is_found_before(tmp_path: Path, monkeypatch) -> None:
    path = make_zip(tmp_path / "a.zip", ("cat/1.jpg", os.urandom(9000)))
    free = type("Usage", (), {"free": 9000 + 4095})
    monkeypatch.setattr("guie.data.archives.shutil.disk_usage", lambda folder: free)
    assert "unpacking needs at least 13,096 bytes" in refusal(path)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="did not unpack it from a.zip.*set path: .*/a to read it"):
        unpacked(path)
    (tmp_path / "a").rmdir()
    unpacked(path)
    make_zip(path, ("cat/new.jpg", b"new"))
    with pytest.raises(UserError, match="unpacked from another a.zip.*remove it to unpack again"):
        unpacked(path)
    assert contents(tmp_path / "a") == FILES


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", *FILES.items())
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process is unpacking it" in refusal(path)
    unpacked(path)


def test_a_killed_unpacking_is_done_again(tmp_path: Path) -> None:
    path, half = make_zip(tmp_path / "a.zip", *FILES.items()), tmp_path / ".a.guie-unpacking"
    (half / "cat").mkdir(parents=True)
    (half / "cat/stray").write_text("of the killed one")
    assert contents(unpacked(path)) == FILES
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.zip"]
