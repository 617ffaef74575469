"""Archives of any members, and what unpacking says and leaves of them."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from guie.base.errors import UserError
from guie.data.archives import unpack

FILES = {"cat/1.jpg": b"one" * 50, "cat/2.jpg": os.urandom(3000), "dog/deep/3.jpg": b""}


def make_zip(path: Path, *members: tuple) -> Path:
    """Members as (name or ZipInfo, content)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
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


def zipped(name: str, mode: int = 0, **attributes) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("placeholder" if "\0" in name else name)
    info.filename = name
    info.external_attr = mode << 16
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> dict:
    return {"type": kind, "linkname": target}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files if p.name[0] != "."}


def refusal(archive: Path) -> str:
    """What `unpack` says; it must leave nothing."""
    before = sorted(archive.parent.iterdir())
    with pytest.raises(UserError) as caught:
        unpack(archive, archive.parent / "out")
    assert sorted(archive.parent.iterdir()) == before
    said = str(caught.value)
    assert said.startswith(f"{archive}: ") and "\n" not in said
    return said
