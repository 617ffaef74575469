"""Draw the toy domains from the command line: `python -m toydomains --help`."""

from __future__ import annotations

import argparse
import csv
import io
import signal
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from toydomains.dataset import DrawingError, draw
from toydomains.domains import PARTS

CELL, GAP, NAMES, CLASSES, VIEWS = 112, 10, 92, 4, 4


def contact_sheet(manifest: Path, out: Path) -> None:
    """Write the sheet of a manifest's classes with the most views, in the format of `out`'s suffix."""
    views: dict[str, dict[str, list[str]]] = {}  # paths by domain and label
    with manifest.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            classes = views.setdefault(row["domain"], {})
            classes.setdefault(row["label"], []).append(row["image_path"])
    size = NAMES + CLASSES * (VIEWS * CELL + GAP), len(views) * (CELL + GAP) + GAP
    sheet = Image.new("RGB", size, (250, 248, 244))
    font = ImageFont.load_default(size=13)
    for number, (domain, classes) in enumerate(views.items()):
        y = GAP + number * (CELL + GAP)
        ImageDraw.Draw(sheet).text((8, y + CELL // 2 - 8), domain, fill=(60, 60, 70), font=font)
        largest = sorted(classes.values(), key=len, reverse=True)[:CLASSES]
        for column, i in product(range(len(largest)), range(VIEWS)):
            x = NAMES + column * (VIEWS * CELL + GAP) + i * CELL
            for path in largest[column][i : i + 1]:
                with Image.open(manifest.parent / path) as picture:
                    view = picture.convert("RGB")
                view.thumbnail((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
                sheet.paste(view, (x + (CELL - view.width) // 2, y + (CELL - view.height) // 2))
    sheet.save(out)


EXAMPLES = """examples:
  python -m toydomains --out input/toy
  python -m toydomains --out input/toy --preview input/toy.png
  python -m toydomains --out input/toy_pretrain --part pretrain --images 12000
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Draw a data set and, with --preview, its contact sheet."""
    parser = argparse.ArgumentParser(
        prog="python -m toydomains",
        description="Draw the toy domains: images, captions and a manifest.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to draw into")
    parser.add_argument("--images", type=int, default=6000, help="about how many (default: 6000)")
    parser.add_argument("--seed", type=int, default=0, help="other classes and views (default: 0)")
    parser.add_argument("--part", choices=PARTS, default=PARTS[0], help="default: benchmark")
    parser.add_argument("--workers", type=int, help="processes (default: one per processor)")
    parser.add_argument(
        "--preview", type=picture_path, help="also write a contact sheet, e.g. toy.png"
    )
    args = parser.parse_args(argv)
    manifest = draw(
        args.out, images=args.images, seed=args.seed, part=args.part, workers=args.workers
    )
    if args.preview:
        contact_sheet(manifest, args.preview)


def picture_path(text: str) -> Path:
    """Parse the path of a picture file, so that a bad suffix fails before minutes of drawing."""
    try:
        kind = Image.registered_extensions()[Path(text).suffix.lower()]
        Image.new("RGB", (1, 1)).save(io.BytesIO(), kind)  # some formats lack colours
    except (KeyError, OSError, ValueError):
        message = f"{text!r} does not end like a picture; write .png"
        raise argparse.ArgumentTypeError(message) from None
    return Path(text)


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt at the first Ctrl-C; a second one would hang the pool that is ending."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    try:
        main()
    except DrawingError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, or a folder without write permission
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else "a write failed: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
