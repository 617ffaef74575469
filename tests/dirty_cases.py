"""A folder of bad and odd images and a manifest of them: what each line is and what becomes of it.

`draw` makes the very cases, in the order of lines, of the folder `data/dirty` that real runs use.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.Image import Transpose

HEADER = "image_path,label,domain,split,role"
SIZE = (200, 95)
# The transpose that each EXIF orientation undoes.
TRANSPOSED = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}  # fmt: skip
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
         (0, 1, 1, 2)]  # fmt: skip

REJECTED = [
    "truncated_50.jpg", "truncated_95.jpg", "truncated_header.jpg", "truncated.png", "bad_crc.png",
    "zero_byte.jpg", "text.jpg", "html.png",
]  # fmt: skip
ODD = [
    "cmyk.jpg", "gray16.png", "rgb16.png", "palette_transparent.png", "gray_alpha.png",
    "fully_transparent.png", "one_bit.png", "gray.jpg", "progressive.jpg", "interlaced.png",
    "float.tiff", "trailing_garbage.jpg", "jpeg_named.png", "png_named.jpg", "webp_named.jpg",
    "UPPER.JPG", "animated.gif", *(f"exif_{n}.jpg" for n in range(1, 9)), "exif_corrupt.jpg",
    "1x1.png", "1x2000.png", "2000x1.jpg", "8000x6000.png", "bomb_30000x30000.png",
]  # fmt: skip
NAMES = [
    "été über.jpg", "e\u0301te\u0301.jpg", "图像_テスト.jpg", "🍎 apple.jpg", "a b  c.jpg",
    "comma, name.jpg", 'quote"name.jpg', "apos'name.jpg", "-rf.jpg", "100%#?&;$(x).jpg",
    "tab\tname.jpg", "x" * 200 + ".jpg",
]  # fmt: skip
# Decisions where either would do: float pixels and a bomb are refused, a cut file is not forgiven;
# tiny, narrow and 48 megapixel pictures, corrupt EXIF and full transparency are accepted.
REFUSED_ODD = {
    "float.tiff": "float pixels",
    "bomb_30000x30000.png": "set GUIE_MAX_MEGAPIXELS",
}

# Lines of the manifest alone, with what becomes of them. Decisions where either would do: a split
# in capitals or spaces is refused, a prefix that is another domain's is noted, a blank line ignored.
OF_THE_MANIFEST = [
    ("images/ok/cars_train_0.jpg,cars/a,cars,train,train", "reject", "is already in line 2"),
    ("images/ok/cars_train_1.jpg,cars/other,cars,train,train", "reject", "conflicting labels"),
    ("images/ok/cars_train_2.jpg,cars/a,cars,test,both", "reject", "a leak: split 'train'"),
    ("images/ok/extra_00.jpg,cars/a,cars,test,both", "reject", "is in train and in test"),
    ("images/ok/does_not_exist.jpg,cars/x,cars,train,train", "reject", "no such image"),
    (",cars/x,cars,train,train", "reject", "image_path is empty"),
    ("images/ok/extra_01.jpg,,packages,train,train", "reject", "label '' is empty"),
    ("images/ok/extra_02.jpg,   ,packages,train,train", "reject", "label '   ' is empty"),
    ("images/ok/extra_03.jpg,packages/m,,train,train", "reject", "domain is empty"),
    ("images/ok/extra_04.jpg,packages/m,packages,dev,train", "reject", "split 'dev'"),
    ("images/ok/extra_05.jpg,packages/n,packages,Train,train", "reject", "split 'Train'"),
    ("images/ok/extra_06.jpg,packages/n,packages, train ,train", "reject", "split ' train '"),
    ("images/ok/extra_07.jpg,packages/n,packages,train,probe", "reject", "role 'probe' in train"),
    ("images/ok/extra_08.jpg,packages/n,packages,train,query", "reject", "role 'query' in train"),
    ("images/ok/extra_09.jpg,cars/milk,packages,train,train", "note", "by convention"),
    ("/etc/hostname,cars/x,cars,train,train", "reject", "leaves the root"),
    ("../outside/picture.jpg,cars/x,cars,train,train", "reject", "leaves the root"),
    ("images/ok/extra_10.jpg,packages/lonely,packages,test,query", "note", "without a positive"),
    ("images/ok/extra_11.jpg,packages/single,packages,test,both", "note", "without a positive"),
    ("images/ok/extra_12.jpg,packages/p,packages", "reject", "3 columns where the header has 5"),
    ("images/ok/extra_13.jpg,packages/q,packages,train,train,extra", "reject", "6 columns where"),
    ("", "ignored", ""),
]  # fmt: skip


def lines() -> list[tuple[str, str, str]]:
    """(line of the manifest, outcome, a part of the reason), from line 2 on."""
    good = [
        f"images/ok/{domain}_{split}_{n}.jpg,{domain}/{name},{domain},{split},{role}"
        for name, split, role, domains in (
            ("a", "train", "train", ("cars", "produce", "characters")),
            ("b", "test", "both", ("cars", "produce", "logos")),
        )
        for domain in domains
        for n in range(3)
    ]
    found = [(line, "ok", "") for line in good]
    found += [(_odd(name), "reject", "not a readable image") for name in REJECTED]
    for name in ODD:
        reason = REFUSED_ODD.get(name, "")
        found.append((_odd(name), "reject" if reason else "ok", reason))
    found += [(_odd(name), "ok", "") for name in NAMES]
    found.append((_odd("directory.jpg"), "reject", "not a regular file"))
    return found + OF_THE_MANIFEST


def draw(folder: Path) -> Path:
    """Write the images and `manifest_dirty.csv` into a folder; returns the manifest's path."""
    good, bad = folder / "images/ok", folder / "images/bad"
    good.mkdir(parents=True)
    (bad / "directory.jpg").mkdir(parents=True)
    picture = encoded(_picture(), "JPEG", quality=90)
    for line, *_ in lines():
        path = line.split(",")[0]
        if path.startswith("images/ok/") and "not_exist" not in path:
            (folder / path).write_bytes(picture)
    for name in NAMES:
        (bad / name).write_bytes(picture)
    for name, content in {**_damaged(), **_modes(), **_containers(), **_sizes()}.items():
        (bad / name).write_bytes(content)
    for name in ("._truncated.jpg", "Thumbs.db"):
        (bad / name).write_bytes(b"\0" * 64)
    path = folder / "manifest_dirty.csv"
    text = "\n".join([HEADER, *(line for line, *_ in lines())]) + "\n"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _odd(name: str) -> str:
    quoted = '"images/bad/' + name.replace('"', '""') + '"' if set(name) & set(',"') else ""
    return f"{quoted or 'images/bad/' + name},cars/dirty,cars,train,train"


def _picture() -> Image.Image:
    """Smooth, in colour, and unlike itself however it is turned."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    pixels = np.stack([x * 255 / SIZE[0], y * 255 / SIZE[1], 180 - x * 90 / SIZE[0]], axis=-1)
    image = Image.fromarray(pixels.astype(np.uint8))
    ImageDraw.Draw(image).ellipse((20, 10, 80, 60), fill=(220, 40, 30))
    return image


def _damaged() -> dict[str, bytes]:
    jpeg, png = encoded(_picture(), "JPEG"), encoded(_picture(), "PNG")
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0xFF
    return {
        "truncated_50.jpg": jpeg[: len(jpeg) // 2],
        "truncated_95.jpg": jpeg[: len(jpeg) * 95 // 100],
        "truncated_header.jpg": jpeg[:20],
        "truncated.png": png[: len(png) // 2],
        "bad_crc.png": bytes(flipped),
        "zero_byte.jpg": b"",
        "text.jpg": b"this is not a picture",
        "html.png": b"<html><body>404 Not Found</body></html>",
    }


def _modes() -> dict[str, bytes]:
    picture = _picture()
    gray = np.asarray(picture.convert("L"))
    clear = picture.copy()
    clear.putalpha(0)
    return {
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
        "gray16.png": encoded(Image.fromarray(gray.astype(np.uint16) * 257), "PNG"),
        "rgb16.png": _png(np.asarray(picture).astype(">u2") * 257, depth=16),
        "palette_transparent.png": encoded(picture.quantize(16), "PNG", transparency=0),
        "gray_alpha.png": encoded(picture.convert("LA"), "PNG"),
        "fully_transparent.png": encoded(clear, "PNG"),
        "one_bit.png": encoded(picture.convert("1"), "PNG"),
        "gray.jpg": encoded(picture.convert("L"), "JPEG"),
        "float.tiff": encoded(Image.fromarray(gray.astype(np.float32) / 255), "TIFF"),
    }


def _containers() -> dict[str, bytes]:
    picture = _picture()
    jpeg = encoded(picture, "JPEG", quality=90)
    frames = [Image.new("RGB", SIZE, (60 * n, 0, 0)) for n in range(4)]
    found = {
        "progressive.jpg": encoded(picture, "JPEG", quality=90, progressive=True),
        "interlaced.png": _png(np.asarray(picture), interlaced=True),
        "trailing_garbage.jpg": jpeg + b"garbage" * 40,
        "jpeg_named.png": jpeg,
        "UPPER.JPG": jpeg,
        "png_named.jpg": encoded(picture, "PNG"),
        "webp_named.jpg": encoded(picture, "WEBP"),
        "animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "exif_corrupt.jpg": encoded(picture, "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffbroken"),
    }
    for n in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = n
        turned = picture.transpose(TRANSPOSED[n]) if n in TRANSPOSED else picture
        found[f"exif_{n}.jpg"] = encoded(turned, "JPEG", quality=95, exif=exif)
    return found


def _sizes() -> dict[str, bytes]:
    return {
        "1x1.png": encoded(Image.new("RGB", (1, 1), "red"), "PNG"),
        "1x2000.png": encoded(Image.new("RGB", (1, 2000), "red"), "PNG"),
        "2000x1.jpg": encoded(Image.new("RGB", (2000, 1), "red"), "JPEG"),
        "8000x6000.png": _chunks((8000, 6000, 8, 0, 0, 0, 0), bytes(8001 * 6000)),  # grey
        "bomb_30000x30000.png": _chunks((30_000, 30_000, 1, 0, 0, 0, 0), bytes(30_000)),
    }


def _png(pixels: np.ndarray, depth: int = 8, interlaced: bool = False) -> bytes:
    """A PNG of RGB pixels [H, W, 3] such as Pillow cannot write."""
    height, width, _ = pixels.shape
    passes = [pixels[y::dy, x::dx] for x, y, dx, dy in ADAM7] if interlaced else [pixels]
    rows = b"".join(b"\0" + row.tobytes() for part in passes if part.size for row in part)
    return _chunks((width, height, depth, 2, 0, 0, int(interlaced)), rows)


def _chunks(header: tuple[int, ...], rows: bytes) -> bytes:
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", *header)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
