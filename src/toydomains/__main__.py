"""Draw the toy domains from the command line: `python -m toydomains --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toydomains.dataset import DrawingError, draw
from toydomains.domains import PARTS
from toydomains.preview import can_be_written, contact_sheet

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


if __name__ == "__main__":
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
