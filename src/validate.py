"""Score embeddings under research protocols, with confidence intervals.

The embeddings come from one model, or from one specialist per domain. Without --protocol, every
metric is scored over one index. `accelerate launch src/validate.py ...` distributes a long search
over processes, and the same command resumes a search that was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base import errors
from guie.base.files import refuse_replacing, write_json
from guie.data.manifest import Manifest, companion_path, load_manifest
from guie.evaluation.embeddings import load_embeddings
from guie.evaluation.graded import read_rankings, write_rankings
from guie.evaluation.protocols import (
    DRAWS,
    INDEXES,
    PROTOCOLS,
    QUIRKS,
    Given,
    Protocol,
    as_units,
    protocol_of,
    run_models,
    run_protocol,
    share_models,
)
from guie.evaluation.protocols.retrieval import read_grades
from guie.evaluation.search import BlockCache, key_of, pairs_of, search_together
from guie.evaluation.sources import (
    JOINS,
    REDUCTIONS,
    arrays_of,
    read_embeddings,
    reduce_embeddings,
    table_of,
)
from guie.report.pages.evaluation import write_evaluation
from guie.report.pages.evaluation_scores import judged_models
from guie.report.tables import reports_table

DRAWS_MAX, DIM_MAX = 100_000, 100_000

EXAMPLES = """
examples:
  python src/validate.py --embeddings runs/demo/test.npz --manifest input/demo/manifest.csv \\
      --out runs/demo/report.json
  python src/validate.py --embeddings val.npz --manifest mix.parquet --split val \\
      --index separate --out val_separate.json
  python src/validate.py --embeddings E.npz --manifest M --protocol uned puma --out uned.json
  python src/validate.py --embeddings E.npz --against other.npz third.npz --manifest M \\
      --out report.json --html report.html
  python src/validate.py --specialists cars=cars.npz food=food.npz --manifest M --protocol uned \\
      --out oracle.json
  python src/validate.py --results R.json --manifest input/ilias.parquet --protocol ilias \\
      --out ilias.json
  python src/validate.py --embeddings E.npz --reduce pca-whitened --dim 64 --fit train.npz \\
      --manifest M --out pca.json

exit code: 0 scored; 2 an error in the manifest, the embeddings or an argument
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_describe("protocols", {n: f"{p.title} ({p.source})" for n, p in PROTOCOLS.items()})
        + _describe("joins", JOINS)
        + _describe("quirks, off by default", QUIRKS)
        + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_sources(parser)
    _add_protocols(parser)
    parser.add_argument("--out", type=Path, required=True, help="report.json")
    parser.add_argument(
        "--html", type=Path, metavar="PAGE.html", help="also write a page to explore the results"
    )
    parser.add_argument("--no-images", action="store_true", help="leave images out of --html")
    parser.add_argument(
        "--write-results", type=Path, metavar="R.json", help="write each query's best 1,000 images"
    )
    args = parser.parse_args(argv)
    if args.protocol and args.index:
        parser.error("--index: --protocol already defines the index; use one of the two")
    if args.quirk and not args.protocol:
        parser.error("--quirk: needs --protocol")
    if args.results and (args.against or args.reduce or args.write_results or args.html):
        parser.error(
            "--results: rankings have no embeddings; leave out --against, --reduce, --write-results, --html"
        )
    names = [str(path) for path in (args.embeddings, *args.against)]
    if len(set(names)) < len(names):
        parser.error("--against: a file is named twice or is also --embeddings; remove one")
    if args.no_images and not args.html:
        parser.error("--no-images: needs --html PAGE.html")
    if not 0 <= args.draws <= DRAWS_MAX:
        parser.error(f"--draws {args.draws}: must be from 0 to {DRAWS_MAX:,}")
    if not 0 < args.dim <= DIM_MAX:
        parser.error(f"--dim {args.dim}: must be from 1 to {DIM_MAX:,}")
    if args.unlisted_negative and not args.results:
        parser.error("--unlisted-negative: needs --results; leave it out")
    return args


def _add_sources(parser: argparse.ArgumentParser) -> None:
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--embeddings", type=Path, metavar="E.npz", help="file written by embed.py")
    given.add_argument(
        "--specialists", nargs="+", metavar="DOMAIN=E.npz", help="one file per domain"
    )
    given.add_argument(
        "--results", type=Path, metavar="R.json", help="rankings: {query: {image: score}}"
    )
    add = parser.add_argument
    add(
        "--unlisted-negative",
        action="store_true",
        help="count images of --results that are not in the manifest as distractors",
    )
    add("--texts", type=Path, metavar="FILE", help="text queries, as for embed.py --texts")
    add("--join", choices=JOINS, default="oracle", help="how specialists are joined, see below")
    add(
        "--reduce",
        choices=REDUCTIONS,
        help="reduce to --dim dimensions; first: keep the first ones",
    )
    add("--dim", type=int, default=64, help="dimensions of --reduce (default: 64)")
    add(
        "--fit",
        nargs="+",
        metavar="E.npz",
        help="embeddings of train images to fit PCA on: one file, or DOMAIN=E.npz of each",
    )
    add("--manifest", type=Path, required=True, help="CSV or Parquet table")
    add("--root", type=Path, help="folder of the images (default: the manifest's)")
    add("--split", choices=("val", "test"), default="test", help="default: test")


def _add_protocols(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--index",
        choices=INDEXES,
        help="search all domains together, or only the query's domain (default: merged)",
    )
    add("--protocol", nargs="+", default=[], metavar="NAME", help="see below")
    add("--quirk", nargs="+", default=[], metavar="NAME", help="see below")
    add("--against", type=Path, nargs="+", default=[], metavar="E.npz", help="models to compare")
    add("--draws", type=int, default=DRAWS, help=f"bootstrap draws, 0 for none (default: {DRAWS})")


def main(argv: Sequence[str] | None = None) -> None:
    """Read, search, write. Raises UserError for an error in the manifest or the embeddings."""
    args = parse(argv)
    words = [*(args.specialists or ()), *(args.fit or ())]
    files = [args.manifest, args.embeddings, *args.against, args.results, args.texts]
    refuse_replacing(
        [args.out, args.html, args.write_results],
        [*files, *words, *(word.partition("=")[2] for word in words)],
    )
    named = [protocol_of(name) for name in args.protocol or [args.index or "merged"]]
    manifest = load_manifest(args.manifest, args.root)
    table = table_of(manifest, args.split, args.texts)
    protocols = [protocol.over(table) for protocol in named]
    if args.results:
        rankings = read_rankings(args.results, table, args.unlisted_negative)
        scored = [run_protocol(p, rankings, table, draws=args.draws)[0] for p in protocols]
        finish(args, protocols, scored)
    else:
        search(args, protocols, manifest, table)


def search(
    args: argparse.Namespace, protocols: Sequence[Protocol], manifest: Manifest, table: pd.DataFrame
) -> None:
    """Score embeddings, in one or several processes."""
    given = embeddings_of(args, manifest, table)
    models: dict[str, Given] = {str(args.embeddings or "the specialists"): given}
    models |= {str(path): load_embeddings(path, table) for path in args.against}
    grades = None
    if any(part.graded for protocol in protocols for part in protocol.parts):
        grades = read_grades(companion_path(manifest.path, "relevance"))

    def work(kept: BlockCache | None) -> None:
        reports = run_models(
            protocols,
            models,
            table,
            quirks=args.quirk,
            draws=args.draws,
            draws_of_others=args.draws if args.html else 0,
            kept=kept,
            grades=grades,
        )
        finish(args, protocols, next(iter(reports.values())))
        if args.html:
            about = f"{manifest.path.name}, {args.split} split"
            judged = judged_models(models, reports, table)
            pictures = None if args.no_images else manifest.root
            write_evaluation(args.html, judged, protocols, table, pictures, about)
            print(f"wrote {args.html}")
        if args.write_results:
            write_rankings(args.write_results, as_units(given, table), table)
            print(f"wrote {args.write_results}")

    arrays = [array for model in models.values() for array in arrays_of(model)]
    search_together(
        work,
        lambda kept: share_models(protocols, models, table, kept, args.quirk),
        folder=args.out.with_name(f"{args.out.name}.parts"),
        key=key_of(arrays, table, args.protocol, args.index, args.quirk),
        pairs=pairs_of(table) * len(arrays) * len(protocols),
    )


def embeddings_of(args: argparse.Namespace, manifest: Manifest, table: pd.DataFrame) -> Given:
    """Return the embeddings to score: one model's, or those of the joined specialists."""
    given = read_embeddings(args.specialists or args.embeddings, table, args.join)
    if not args.reduce:
        return given
    fit = args.fit if args.specialists or not args.fit else Path(args.fit[0])
    return reduce_embeddings(given, args.reduce, args.dim, fit, manifest, args.join)


def finish(
    args: argparse.Namespace, protocols: Sequence[Protocol], reports: Sequence[dict[str, Any]]
) -> None:
    """Print the reports and write them."""
    print(reports_table(protocols, reports, plain=not args.protocol))
    write(args.out, reports, plain=not args.protocol)


def write(out: Path, reports: Sequence[dict[str, Any]], plain: bool) -> None:
    """Write report.json: reports by protocol name, or, if plain, the single report itself."""
    content: dict[str, Any] = {"protocols": {report["protocol"]: report for report in reports}}
    if plain:
        (report,) = reports
        (content,) = report["parts"].values()
        content = content | {key: report[key] for key in ("against",) if key in report}
    try:
        write_json(out, content)
    except OSError as error:
        raise errors.UserError(f"{out}: cannot be written ({error.strerror})") from error
    print(f"wrote {out}")


def _describe(title: str, entries: Mapping[str, str]) -> str:
    return f"{title}:\n" + "".join(f"  {name:12} {words}\n" for name, words in entries.items())


if __name__ == "__main__":
    errors.run(main)
