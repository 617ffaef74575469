"""Score a submission exactly as the challenge would, after checking that it keeps the contract."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from scorer import report
from scorer.archive import Violation
from scorer.contract import MAX_DIMENSION, Checklist, verify
from scorer.embedding import Embedded, embed_images
from scorer.manifest import Manifest, UserError, read_manifest
from scorer.neighbours import nearest
from scorer.retrieval import judge, own_rows

EXAMPLES = """
examples:
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest input/demo/manifest.csv --out submissions/demo/score.json
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest mix.parquet --root input --split val --out runs/demo/val/score.json

exit code: 0 scored; 1 the submission breaks the contract (score.json then holds the checks);
2 a fault in the manifest, an image or an argument
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--submission", type=Path, required=True, help="submission.zip")
    parser.add_argument("--manifest", type=Path, required=True, help="CSV or Parquet table")
    parser.add_argument("--split", default="test", help="the manifest's split (default: test)")
    parser.add_argument("--root", type=Path, help="folder of the images (default: the manifest's)")
    parser.add_argument(
        "--out", type=Path, required=True, help="score.json; neighbours.csv is written beside it"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Check the contract, embed, search, judge, write.

    Raises:
        UserError: a fault in the manifest, an image or an argument.
        SystemExit: with code 1, the submission breaks the contract.
    """
    args = parse(argv)
    check_paths(args)
    manifest = read_manifest(args.manifest, args.split, args.root or args.manifest.parent)
    neighbours_path = args.out.with_name("neighbours.csv")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checklist = Checklist()
    try:
        # Beside the result, where there is room; a system's own folder may be small.
        with tempfile.TemporaryDirectory(prefix=".score-", dir=args.out.parent) as folder:
            model = verify(args.submission, checklist, device, Path(folder))
        with checklist.check("every_image", f"1 to {MAX_DIMENSION} finite numbers, always as many"):
            embedded = embed_images(model, manifest, device)
    except Violation:
        neighbours_path.unlink(missing_ok=True)  # an earlier scoring's do not belong to this file
        report.write_json(args.out, report.provenance(args.submission, checklist.checks, device))
        failed = checklist.checks[-1]
        print(f"VIOLATION {failed.name}: {failed.detail}")
        sys.exit(1)
    score, neighbours = evaluate(manifest, embedded)
    score |= report.costs(embedded, device)
    score |= report.provenance(args.submission, checklist.checks, device)
    report.write_text(neighbours_path, neighbours.to_csv(index=False))
    report.write_json(args.out, score)
    print(f"{report.format_table(score)}\nwrote {args.out} and {neighbours_path}")


def check_paths(args: argparse.Namespace) -> None:
    """Refuse bad paths before hours are spent on the images."""
    for flag, path in (("--submission", args.submission), ("--manifest", args.manifest)):
        if not path.is_file():
            raise UserError(f"{flag} {path}: no such file")
    if args.out.suffix != ".json" or args.out.is_dir():
        raise UserError(f"--out {args.out}: must be the name of a .json file")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out}: {error.strerror}") from error
    if not os.access(args.out.parent, os.W_OK):
        raise UserError(f"--out {args.out}: no permission to write there")


def evaluate(manifest: Manifest, embedded: Embedded) -> tuple[dict[str, Any], pd.DataFrame]:
    """Search the merged index for every query; return the score and the table of neighbours."""
    queries, index = manifest.part("query"), manifest.part("index")
    place = {image_path: i for i, image_path in enumerate(manifest.images())}
    rows_QK, distances_QK = nearest(
        embedded.emb_ND[queries["image_path"].map(place)],
        embedded.emb_ND[index["image_path"].map(place)],
        own_rows(queries, index),
    )
    judged, relevant_QK = judge(queries, index, rows_QK)
    table = report.neighbour_table(judged, index, rows_QK, distances_QK, relevant_QK)
    return report.summarise(judged), table


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that went away
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else "a write failed: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
