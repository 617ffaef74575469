"""The rules for names in a data set: what is an image, what other programs left, what is a class.

Folders, tars and unpacked archives obey the same rules. A file that is not taken is counted, with a reason.
Labels that would be wrong are refused: folders of splits, and classes that differ only in form.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from guie.base.errors import UserError
from guie.base.files import CONTROL

# Of the formats that `guie.data.images` reads. Other files are taken if their first bytes are an image's.
IMAGE_SUFFIXES = frozenset(
    ".apng .avif .avifs .bmp .dib .gif .j2c .j2k .jfi .jfif .jif .jp2 .jpc .jpe .jpeg .jpf .jpg .jpx .mpo"
    " .pbm .pgm .pjp .pjpeg .pjpg .png .pnm .ppm .tif .tiff .webp".split()
)
# Of other versions of an image, whatever their content: backups, camera thumbnails, unfinished downloads
VERSIONS = frozenset(
    ".bak .crdownload .download .jpeg_original .jpg_original .old .orig .part .partial .png_original .thm"
    " .tmp".split()
)
# Folders and files of network disks, Windows, macOS and Python, apart from those that begin with a dot
SYSTEM = frozenset(
    "@eadir|@recently-snapshot|@recycle|@snapshot|@tmp|#recycle|#snapshot"
    "|$recycle.bin|found.000|recycled|recycler|system volume information"
    "|__macosx|network trash folder|temporary items|lost+found"
    "|__pycache__|_gsdata_|node_modules"
    "|desktop.ini|ehthumbs.db|ehthumbs_vista.db|thumbs.db|picasa.ini".split("|")
)
# Photo tools write these next to the images of a folder. Elsewhere they may be classes.
COPIES = {"originals", "previews", "thumb", "thumbnail", "thumbnails", "thumbs"}
COPIES |= {"_thumbs", "_thumbnails"}
HEAD_BYTES = 64
SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"\xffO\xffQ": "JPEG 2000",
    b"\xff\n": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
}
HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))
# A split's name, alone or as a word: train, Valid, test_images, seg_train, val2017, fold_3
SPLIT = re.compile(
    r"(?<![a-z])(?:train(?:ing|val)?|val(?:id(?:ation)?)?|test(?:ing)?|eval(?:uation)?|dev"
    r"|hold[ _-]?out|query|gallery|(?:fold|split)[ _-]?\d+)(?:set|data)?(?![a-z])"
)


def foreign(name: str) -> bool:
    """Return whether a file or folder is hidden or the system's (`._x`, Thumbs.db, @eaDir)."""
    return name.startswith(".") or name.casefold() in SYSTEM


def why_foreign(path: str) -> str | None:
    """Return which hidden or system file or folder a path is or leads through; None if there is none."""
    *folders, file = path.split("/")
    for name in filter(foreign, folders):
        return f"hidden or system folder ({name})"
    if not foreign(file):
        return None
    kind = " (._*)" if file.startswith("._") else f" ({file})" if file.casefold() in SYSTEM else ""
    return f"hidden or system file{kind}"


def why_no_image(path: str, read_head: Callable[[], bytes]) -> str | None:
    """Return why a file is no image by its path, relative to the data set; None if it is one.

    `read_head` returns its first HEAD_BYTES; it is called if the extension is not that of an image.
    """
    if reason := why_foreign(path):
        return reason
    # a tab does no harm; surrogates represent bytes that are not UTF-8, which a manifest cannot store
    if re.search(f"(?!\t){CONTROL}|[\ud800-\udfff]", path):
        return "name with a control character or not in UTF-8"
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return None
    if suffix in VERSIONS or path.endswith("~"):
        return f"backup, preview or partial file ({suffix})"
    head = read_head()
    if _format(head):
        return why_unread(head)
    return f"no image by its extension ({suffix or 'none'})"


def read_head(file: str | Path | BinaryIO) -> bytes:
    """Return the first HEAD_BYTES of a file, or none if it cannot be read."""
    try:
        if isinstance(file, str | Path):
            with open(file, "rb") as opened:
                return opened.read(HEAD_BYTES)
        file.seek(0)
        return file.read(HEAD_BYTES)
    except OSError:
        return b""


def why_unread(head: bytes) -> str | None:
    """Return the name of an image format that is not read, and the remedy; None for any other bytes."""
    found = _format(head)
    if found not in ("HEIC", "JPEG XL"):
        return None
    return f"{found} image, which is not read; convert it to JPEG or PNG"


def _format(head: bytes) -> str | None:
    """Return the format of an image by its first bytes. TIFF is left out: raw photographs begin like it."""
    if head[4:8] == b"ftyp":
        size = int.from_bytes(head[:4], "big")
        brands = {head[8:12], *(head[at : at + 4] for at in range(16, min(size, len(head)), 4))}
        return "AVIF" if brands & {b"avif", b"avis"} else "HEIC" if brands & HEIC else None
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    if head[:2] == b"BM" and head[6:10] == bytes(4):
        return "BMP"
    return next((name for start, name in SIGNATURES.items() if head.startswith(start)), None)


def fault_of_name(name: str) -> str | None:
    """Return why a member's name must not become a path below a folder, or None."""
    if "\\" in name or "\0" in name:
        return "a name with a backslash or a NUL"
    if name.startswith("/") or (name[:1].isalpha() and name[1:2] == ":"):
        return "an absolute path"
    return "leaves the folder" if ".." in name.split("/") else None


def copies(folders: set[str]) -> dict[str, str]:
    """Return those folders with images that a photo tool made, such as `cat/thumbs`, with the reason.

    They are inside a folder that has images of its own.
    """
    found = {}
    for folder in folders:
        parts = folder.split("/")
        for depth, name in enumerate(parts):
            if name.casefold() in COPIES and "/".join(parts[:depth]) in folders:
                found[folder] = f"copy made by a photo tool ({name})"
    return found


def why_no_class(name: str) -> str | None:
    """Return why the name of a folder, relative to the data set, is no class; None if it is one."""
    if not name:
        return "not in a class folder"
    if "|" in name:
        return "class name with |, which joins several labels"
    return None if all(map(str.strip, name.split("/"))) else "class name of spaces only"


def form(name: str) -> str:
    """Return a name without what nobody sees: Unicode normal form, case, outer and repeated space.

    The case of a single letter counts: `a` and `A` are classes of characters.
    """
    parts = []
    for part in unicodedata.normalize("NFC", re.sub("[\u200b\u2060\ufeff]", "", name)).split("/"):
        plain = " ".join(part.split())
        folded = unicodedata.normalize("NFC", plain.casefold())
        parts.append(plain if len(plain) == 1 else folded)
    return "/".join(parts)


def alike(labels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of labels that differ only in form (see `form`); of several, the first with each other."""
    known: dict[str, str] = {}
    for label in sorted(set(labels)):
        first = known.setdefault(form(label), label)
        if first != label:
            yield first, label


def difference(first: str, second: str) -> str:
    """Return how two labels differ only in form: `'a' and 'A' differ only in case or space`."""
    if unicodedata.normalize("NFC", first) != unicodedata.normalize("NFC", second):
        return f"{first!r} and {second!r} differ only in case or space"
    return f"'{first} ({first!a})' and '{second} ({second!a})' differ only in Unicode normal form"


def refuse_alike(source: str, labels: Iterable[str], remedy: str) -> None:
    """Raise UserError if two labels differ only in form (see `form`)."""
    if pairs := list(alike(labels)):
        more = f" ({len(pairs):,} such pairs)" if len(pairs) > 1 else ""
        raise UserError(f"{source}: the classes {difference(*pairs[0])}{more}; {remedy}")


def refuse_splits(source: str, classes: Iterable[str]) -> None:
    """Raise UserError if folders of splits would become classes: `train/cat` and `valid/cat`.

    One class may be called `test`. Folders are splits if the same class is below several of them, or if
    most folders in a folder differ only in a split's name.
    """
    below: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    same: dict[str, set[str]] = defaultdict(set)  # classes by their name without splits
    for name in set(classes):
        parts = name.split("/")
        framed = [SPLIT.sub("*", form(part)) for part in parts]
        same["/".join([*(p for p in framed[:-1] if p != "*"), form(parts[-1])])].add(name)
        for depth, part in enumerate(parts):
            below["/".join(parts[:depth])][framed[depth]].add(part)
    several = [names for names in same.values() if len(set(map(form, names))) > 1]
    found = {_split_of(name) for names in several for name in names}
    for folder, inside in below.items():  # of a folder, by their name without splits
        splits = [p for key, ps in inside.items() if "*" in key and len(ps) > 1 for p in ps]
        if 2 * len(splits) > sum(map(len, inside.values())):
            found |= {f"{folder}/{part}".lstrip("/") for part in splits}
    if found := found - {""}:
        train = min(found, key=lambda name: ("train" not in name.casefold(), name))
        shown = ", ".join(sorted(found)[:4]) + (", ..." if len(found) > 4 else "")
        raise UserError(
            f"{source}: {shown}: the names of splits would become classes; read each split by a source of"
            f" its own (path: {source}/{train}), and each split's tars from a folder of its own, or"
            " rename the folders if they are classes"
        )


def _split_of(name: str) -> str:
    """Return the path of the last split's folder above a class; "" if there is none."""
    parts = name.split("/")[:-1]
    while parts and not SPLIT.search(form(parts[-1])):
        parts.pop()
    return "/".join(parts)
