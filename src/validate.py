"""Score embeddings under a research protocol: R@1, mMP@5, mAP@100, MAP@R, R-precision, Recall@k."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guie.base import errors
from guie.base.files import write_json
from guie.data.manifest import load_manifest
from guie.evaluation.protocols import HARMONIC, INDEXES, evaluate, load_embeddings

EXAMPLES = """
examples:
  python src/validate.py --embeddings runs/demo/test.npz --manifest input/demo/manifest.csv \\
      --out runs/demo/report.json
  python src/validate.py --embeddings val.npz --manifest mix.parquet --split val \\
      --index separate --out val_separate.json

exit code: 0 scored; 2 a fault in the manifest, the embeddings or an argument
"""
COLUMNS = {
    "r_at_1": "R@1",
    "mmp_at_5": "mMP@5",
    "map_at_100": "mAP@100",
    "map_at_r": "MAP@R",
    "r_precision": "RP",
    "recall_at_10": "Rec@10",
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--embeddings", type=Path, required=True, help="E.npz, as embed.py writes")
    parser.add_argument("--manifest", type=Path, required=True, help="CSV or Parquet table")
    parser.add_argument(
        "--root", type=Path, help="folder of the images (default: the manifest's; none is opened)"
    )
    parser.add_argument("--split", choices=("val", "test"), default="test", help="default: test")
    parser.add_argument(
        "--index",
        choices=INDEXES,
        default="merged",
        help="search all domains together, or the query's alone (default: merged)",
    )
    parser.add_argument("--out", type=Path, required=True, help="report.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, search, write. Raises UserError: a fault in the manifest or the embeddings."""
    args = parse(argv)
    table = load_manifest(args.manifest, args.root).split(args.split)
    report = evaluate(load_embeddings(args.embeddings, table), table, args.index)
    print(format_table(report))
    try:
        write_json(args.out, report)
    except OSError as error:
        raise errors.UserError(f"{args.out}: cannot be written ({error.strerror})") from error
    print(f"wrote {args.out}")


def format_table(report: dict[str, Any]) -> str:
    """Lay out a report for the terminal: a line a domain, then the averages."""
    width = max(map(len, [*report["domains"], "pooled"]))
    heads = "".join(f"{head:>9}" for head in COLUMNS.values())
    lines = [f"{'':{width}}{heads}  queries  without positive"]
    for name, scores in report["domains"].items():
        counts = f"{scores['queries']:9,}{scores['queries_without_positive']:18,}"
        lines.append(_line(name, scores, width) + counts)
    lines += [_line(name, report[name], width) for name in ("mean", "pooled")]
    harmonic = (f"{COLUMNS[key]} {report['mean'][f'harmonic_{key}']:.4f}" for key in HARMONIC)
    lines += [
        f"harmonic means over domains: {', '.join(harmonic)}",
        f"{report['index']} index, {report['dimension']}-D",
    ]
    return "\n".join(lines)


def _line(name: str, scores: dict[str, Any], width: int) -> str:
    values = (f"{'-':>9}" if scores[k] is None else f"{scores[k]:9.4f}" for k in COLUMNS)
    return f"{name:{width}}{''.join(values)}"


if __name__ == "__main__":
    errors.run(main)
