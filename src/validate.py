"""Score embeddings under research protocols, and say how sure the scores are.

One model's embeddings, or those of a specialist for each domain. Without --protocol every metric is
scored over one index; `accelerate launch src/validate.py ...` spreads a long search over processes,
and a start after a kill goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base import errors
from guie.base.files import write_json
from guie.data.manifest import Manifest, companion_path, load_manifest, read_companion
from guie.evaluation.components import PER_DOMAIN, balanced_sample
from guie.evaluation.embeddings import load_embeddings
from guie.evaluation.joined import JOINS, REDUCTIONS, arrays_of, joined, reduced
from guie.evaluation.kept import KeptBlocks
from guie.evaluation.long_search import key_of, pairs_of, search_together
from guie.evaluation.protocols import (
    INDEXES,
    PROTOCOLS,
    QUIRKS,
    Given,
    Protocol,
    Scores,
    as_units,
    compare,
    protocol_of,
    run_protocol,
    share_protocol,
    with_subsets,
    with_texts,
)
from guie.evaluation.protocols.certainty import DRAWS
from guie.evaluation.protocols.graded_parts import read_grades
from guie.evaluation.rankings import read_rankings, write_rankings
from guie.evaluation.statistics import verdict
from guie.report.tables import protocol_table, report_table

EXAMPLES = """
examples:
  python src/validate.py --embeddings runs/demo/test.npz --manifest input/demo/manifest.csv \\
      --out runs/demo/report.json
  python src/validate.py --embeddings val.npz --manifest mix.parquet --split val \\
      --index separate --out val_separate.json
  python src/validate.py --embeddings E.npz --manifest M --protocol uned puma --out uned.json
  python src/validate.py --embeddings E.npz --against other.npz --manifest M --out report.json
  python src/validate.py --specialists cars=cars.npz food=food.npz --manifest M --protocol uned \\
      --out oracle.json
  python src/validate.py --results R.json --manifest input/ilias.parquet --protocol ilias \\
      --out ilias.json
  python src/validate.py --embeddings E.npz --reduce pca-whitened --dim 64 --fit train.npz \\
      --manifest M --out pca.json

exit code: 0 scored; 2 a fault in the manifest, the embeddings or an argument
"""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_told("protocols", {n: f"{p.title} ({p.source})" for n, p in PROTOCOLS.items()})
        + _told("joins", JOINS)
        + _told("quirks, off unless named", QUIRKS)
        + EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--embeddings", type=Path, metavar="E.npz", help="as embed.py writes")
    given.add_argument(
        "--specialists", nargs="+", metavar="DOMAIN=E.npz", help="one for each domain"
    )
    given.add_argument(
        "--results", type=Path, metavar="R.json", help="rankings instead: {query: {image: score}}"
    )
    parser.add_argument(
        "--unlisted-negative",
        action="store_true",
        help="images of --results that the manifest does not list are distractors",
    )
    parser.add_argument(
        "--write-results", type=Path, metavar="R.json", help="the best 1,000 of each query"
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="text queries, as embed.py takes"
    )
    parser.add_argument("--join", choices=JOINS, default="oracle", help="of specialists")
    parser.add_argument("--reduce", choices=REDUCTIONS, help="to --dim dimensions: a baseline")
    parser.add_argument("--dim", type=int, default=64, help="default: 64")
    parser.add_argument(
        "--fit",
        nargs="+",
        metavar="E.npz",
        help="train images that PCA is fitted on, as given above",
    )
    parser.add_argument("--manifest", type=Path, required=True, help="CSV or Parquet table")
    parser.add_argument(
        "--root", type=Path, help="folder of the images (default: the manifest's; none is opened)"
    )
    parser.add_argument("--split", choices=("val", "test"), default="test", help="default: test")
    parser.add_argument(
        "--index",
        choices=INDEXES,
        help="search all domains together, or the query's alone (default: merged)",
    )
    parser.add_argument("--protocol", nargs="+", default=[], metavar="NAME", help="see below")
    parser.add_argument("--quirk", nargs="+", default=[], metavar="NAME", help="see below")
    parser.add_argument("--against", type=Path, metavar="E.npz", help="another model: the verdict")
    parser.add_argument(
        "--draws", type=int, default=DRAWS, help=f"of the bootstrap, 0 for none (default: {DRAWS})"
    )
    parser.add_argument("--out", type=Path, required=True, help="report.json")
    args = parser.parse_args(argv)
    if args.protocol and args.index:
        parser.error("--index: a protocol says what is searched; leave one of the two out")
    if args.quirk and not args.protocol:
        parser.error("--quirk: is of a protocol; name it by --protocol")
    if args.results and (args.against or args.reduce or args.write_results):
        parser.error("--results: has no embeddings; leave out --against, --reduce, --write-results")
    if args.unlisted_negative and not args.results:
        parser.error("--unlisted-negative: is of --results; leave it out")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Read, search, write. Raises UserError: a fault in the manifest or the embeddings."""
    args = parse(argv)
    protocols = [protocol_of(name) for name in args.protocol or [args.index or "merged"]]
    manifest = load_manifest(args.manifest, args.root)
    table = table_of(args, manifest)
    protocols = [protocol.over(table) for protocol in protocols]
    if args.results:
        rankings = read_rankings(args.results, table, args.unlisted_negative)
        scored = [run_protocol(p, rankings, table, draws=args.draws)[0] for p in protocols]
        finish(args, protocols, scored)
        return
    models = {"": given_embeddings(args, manifest, table)}
    if args.against:
        models["against"] = load_embeddings(args.against, table)
    grades = None
    if any(part.graded for protocol in protocols for part in protocol.parts):
        grades = read_grades(companion_path(args.manifest, "relevance"))

    def share(kept: KeptBlocks) -> None:
        for name, model in models.items():
            for protocol in protocols:
                share_protocol(protocol, model, table, kept.within(name), args.quirk)

    def work(kept: KeptBlocks | None) -> None:
        found = {
            name: [
                run_protocol(
                    protocol,
                    model,
                    table,
                    quirks=args.quirk,
                    draws=0 if name else args.draws,
                    kept=kept and kept.within(name),
                    grades=grades,
                )
                for protocol in protocols
            ]
            for name, model in models.items()
        }
        if args.against:
            add_verdicts(args, protocols, found)
        reports = [report for report, _ in found[""]]
        finish(args, protocols, reports)
        if args.write_results:
            write_rankings(args.write_results, as_units(models[""], table), table)
            print(f"wrote {args.write_results}")

    arrays = [array for model in models.values() for array in arrays_of(model)]
    search_together(
        work,
        share,
        folder=args.out.with_name(f"{args.out.name}.parts"),
        key=key_of(arrays, table, args.protocol, args.index, args.quirk),
        pairs=pairs_of(table) * len(arrays) * len(protocols),
    )


def table_of(args: argparse.Namespace, manifest: Manifest) -> pd.DataFrame:
    """The rows that are scored, and what stands beside the manifest of them."""
    table = manifest.split(args.split)
    subsets = companion_path(args.manifest, "subsets")
    if subsets.is_file():
        table = with_subsets(table, read_companion(subsets, "subsets"))
    return with_texts(table, read_companion(args.texts, "texts")) if args.texts else table


def given_embeddings(args: argparse.Namespace, manifest: Manifest, table: pd.DataFrame) -> Given:
    """The embeddings that are scored: one model's, or the specialists' as they are joined."""
    given = _load(args.specialists or args.embeddings, table, args.join)
    if not args.reduce:
        return given
    fitted: Given | None = None
    if args.reduce != "random":
        if not args.fit:
            raise errors.UserError(f"--reduce {args.reduce}: name what it is fitted on by --fit")
        sample = balanced_sample(manifest.split("train"), PER_DOMAIN, seed=0)
        fitted = _load(args.fit if args.specialists else Path(args.fit[0]), sample, args.join)
    return reduced(given, fitted, args.reduce, args.dim)


def _load(source: Path | Sequence[str], table: pd.DataFrame, join: str) -> Given:
    if isinstance(source, Path):
        return load_embeddings(source, table)
    files: dict[str, str] = {}
    for word in source:
        name, sign, path = word.partition("=")
        if not (name and sign and path) or name in files:
            raise errors.UserError(f"{word!r}: give DOMAIN=FILE, each domain once")
        files[name] = path
    return joined({name: load_embeddings(path, table) for name, path in files.items()}, join)


def add_verdicts(
    args: argparse.Namespace,
    protocols: Sequence[Protocol],
    found: dict[str, list[tuple[dict[str, Any], dict[str, Scores]]]],
) -> None:
    """Put into each report whether this model is ahead of the other, headline by headline."""
    names = (str(args.against), str(args.embeddings or "the specialists"))
    for protocol, (report, ours), (_, theirs) in zip(
        protocols, found[""], found["against"], strict=True
    ):
        comparisons = {
            headline.title: compare(theirs[headline.part], ours[headline.part], headline)
            for headline in protocol.headlines
            if headline.statistic in ("mean", "pooled", "harmonic")
            and headline.metric in ours[headline.part].values
        }
        report["against"] = {
            "embeddings": names[0],
            "differences": {title: asdict(found) for title, found in comparisons.items()},
            "verdicts": [verdict(found, names, title) for title, found in comparisons.items()],
        }


def finish(
    args: argparse.Namespace, protocols: Sequence[Protocol], reports: Sequence[dict[str, Any]]
) -> None:
    """Show the reports and write them."""
    print(told(protocols, reports, plain=not args.protocol))
    write(args.out, reports, plain=not args.protocol)


def told(protocols: Sequence[Protocol], reports: Sequence[dict[str, Any]], plain: bool) -> str:
    """What the terminal shows."""
    shown = []
    for protocol, report in zip(protocols, reports, strict=True):
        (one, *_) = report["parts"].values()
        shown.append(report_table(one) if plain else protocol_table(protocol, report))
        shown += report.get("against", {}).get("verdicts", [])
    return "\n".join(shown)


def write(out: Path, reports: Sequence[dict[str, Any]], plain: bool) -> None:
    """Write report.json: of protocols by their names, else the one report itself."""
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


def _told(title: str, entries: Mapping[str, str]) -> str:
    return f"{title}:\n" + "".join(f"  {name:12} {words}\n" for name, words in entries.items())


if __name__ == "__main__":
    errors.run(main)
