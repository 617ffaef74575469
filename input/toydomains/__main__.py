"""Draw the toy domains from the command line: `python -m toydomains --help`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from toydomains.dataset import DrawingError, draw
from toydomains.domains import PARTS

EXAMPLES = """examples:
  python -m toydomains --out input/toy
  python -m toydomains --out input/toy_pretrain --part pretrain --images 12000
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Draw a data set."""
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
    args = parser.parse_args(argv)
    draw(args.out, images=args.images, seed=args.seed, part=args.part, workers=args.workers)


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
