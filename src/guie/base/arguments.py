"""Parse the words of a command line or a web address, without any heavy import.

The functions named like a value (`count`, `port`, ...) are types of argparse.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from guie.base.errors import URL, UserError
from guie.base.processes import CHECK_CONTENT, ENGINE

MOST = 2**31 - 1  # of counts: the limit of faiss and torch
PRECISIONS = ("no", "bf16", "fp16")
PRECISION_HELP = "of autocast; default: the run's own on a GPU, no (float32) on a CPU"
Corners = tuple[int, int, int, int]  # left, top, right, bottom, in pixels of the upright image
METHODS = {  # ways to re-rank, in the order in which they apply
    "expand": "alpha query expansion among mutual neighbours (Radenovic et al., TPAMI 2019)",
    "augment": "the same for each index image (database augmentation; Gordo et al., IJCV 2017)",
    "csls": "local scaling of similarities against hubs (Conneau et al., ICLR 2018)",
    "softmax": "inverted softmax against hubs (Smith et al., ICLR 2017)",
    "local": "the first 50 by patches that match, with a geometric check (Noh et al., ICCV 2017)",
}
LOCAL = "local"  # needs the model and the images, not only embeddings


def whole_number(text: str) -> int | None:
    """Parse at most 18 ASCII digits; return None for anything else.

    `isdigit` accepts `²`, for which `int` raises, as for thousands of digits.
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def corners(text: str) -> Corners:
    """Parse a box such as `10,20,200,300`. Raises UserError for anything else."""
    match [whole_number(side.strip()) for side in text.split(",")]:
        case [int() as left, int() as top, int() as right, int() as bottom]:
            return left, top, right, bottom
    raise UserError(f"box {text[:40]}: must be left,top,right,bottom in pixels")


def methods_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named ways to re-rank in the order of METHODS.

    Raises UserError for an unknown name, or for both corrections of hubs.
    """
    for name in names:
        if name not in METHODS:
            raise UserError(f"--rerank {name}: unknown; known: {', '.join(METHODS)}")
    if {"csls", "softmax"} <= set(names):
        raise UserError("--rerank: csls and softmax both correct hubs; choose one")
    return tuple(name for name in METHODS if name in names)


def add_check_content(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add `--check-content`, for `set_environment`."""
    words = "read all images to find changed ones, instead of trusting size and modification time"
    parser.add_argument("--check-content", *names, action="store_true", help=words)


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, for `set_environment`."""
    words = (
        "where rows are computed: here, or on a Ray cluster (RAY_ADDRESS; default: this machine)"
    )
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=words)


def set_environment(args: argparse.Namespace) -> None:
    """Set CHECK_CONTENT and ENGINE for this process and its children, by the options that were added."""
    if getattr(args, "check_content", False):
        os.environ[CHECK_CONTENT] = "1"
    if engine := getattr(args, "engine", None):
        os.environ[ENGINE] = engine


def count(text: str) -> int:
    """Parse a number of 1 or more."""
    number = whole_number(text)
    if not number or number > MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be 1 to {MOST:,}")
    return number


def port(text: str) -> int:
    """Parse a port; 0 is any free one."""
    number = whole_number(text)
    if number is None or number > 65_535:  # werkzeug would use the remainder
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be 0 to 65535")
    return number


def shard(text: str) -> tuple[int, int]:
    """Parse a part of the work, as in 2/8."""
    number, parts = (whole_number(part) for part in (text.partition("/")[::2]))
    if number is None or parts is None or number >= parts:
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be N/M, with N from 0 to M - 1")
    return number, parts


def local_path(path: str | Path) -> Path:
    """Return where to write a result. Raises UserError for a URL, which Path takes for a folder."""
    if re.match(URL, str(path)):
        raise UserError(
            f"{path}: results are written to a disk, not to a URL; name a local path, and copy the"
            " result there"
        )
    return Path(path)


def file(text: str) -> Path:
    """Parse the path of a file to write."""
    path = local_path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; give a file name")
    return path


def host_name(text: str) -> str:
    """Parse a host name."""
    if not re.fullmatch(r"[\w.-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"{text[:40]}: must be a host name without a port, such as photos.example"
        )
    return text.lower()
