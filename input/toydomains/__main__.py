"""Draw the toy domains from the command line: `python -m toydomains --help`."""

from __future__ import annotations

import argparse
import io
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from toydomains.dataset import DrawingError, draw, replacing
from toydomains.domains import PARTS

CELL, GAP, NAMES, CLASSES, VIEWS = 112, 10, 92, 4, 4


def contact_sheet(manifest: Path, out: Path) -> None:
    """Write the sheet of a manifest's classes with the most views, in the format of `out`'s suffix."""
    table = pd.read_csv(manifest)
    domains = list(dict.fromkeys(table["domain"]))
    width = NAMES + CLASSES * (VIEWS * CELL + GAP)
    sheet = Image.new("RGB", (width, len(domains) * (CELL + GAP) + GAP), (250, 248, 244))
    for row, domain in enumerate(domains):
        y = GAP + row * (CELL + GAP)
        font = ImageFont.load_default(size=13)
        ImageDraw.Draw(sheet).text((8, y + CELL // 2 - 8), domain, fill=(60, 60, 70), font=font)
        rows = table[table["domain"] == domain]
        for column, label in enumerate(rows["label"].value_counts(sort=True).index[:CLASSES]):
            x = NAMES + column * (VIEWS * CELL + GAP)
            paths = rows.loc[rows["label"] == label, "image_path"].head(VIEWS)
            for i, path in enumerate(paths):
                with Image.open(manifest.parent / path) as picture:
                    view = picture.convert("RGB")
                view.thumbnail((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
                dx, dy = (CELL - view.width) // 2, (CELL - view.height) // 2
                sheet.paste(view, (x + i * CELL + dx, y + dy))
    with replacing(out) as temporary:
        sheet.save(temporary)


def can_be_written(out: Path) -> bool:
    """Return whether Pillow writes colour pictures in the format of `out`'s suffix."""
    try:
        kind = Image.registered_extensions()[out.suffix.lower()]
        Image.new("RGB", (1, 1)).save(io.BytesIO(), kind)
    except (KeyError, OSError, ValueError):
        return False
    return True


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
    parser.add_argument(
        "--workers", type=process_count, help="processes (default: one per processor)"
    )
    parser.add_argument(
        "--preview", type=picture_path, help="also write a contact sheet, e.g. toy.png"
    )
    args = parser.parse_args(argv)
    manifest = draw(
        args.out, images=args.images, seed=args.seed, part=args.part, workers=args.workers
    )
    if args.preview:
        contact_sheet(manifest, args.preview)


def process_count(text: str) -> int:
    """Parse a whole number of at least 1, as an argparse type."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def picture_path(text: str) -> Path:
    """Parse the path of a picture file, so that a bad suffix fails before minutes of drawing."""
    path = Path(text)
    if not can_be_written(path):
        raise argparse.ArgumentTypeError(f"{text!r} does not end like a picture; write .png")
    return path


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
