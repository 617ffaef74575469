"""Score embeddings or rankings under protocols, and write the report: the work of validate.py."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.arguments import LOCAL, methods_of
from guie.base.errors import UserError
from guie.base.files import write_json, write_text
from guie.data.manifest import Manifest, load_manifest
from guie.data.manifest.companions import companion_path
from guie.evaluation.files import arrays_of, as_units, load_embeddings, table_of
from guie.evaluation.graded import read_grades
from guie.evaluation.knn import Embeddings
from guie.evaluation.protocols.base import Protocol
from guie.evaluation.protocols.catalogue import FITTED
from guie.evaluation.protocols.evaluating import run_models, run_protocol, share_models
from guie.evaluation.protocols.retrieval import Scores
from guie.evaluation.ranking_files import read_rankings, write_rankings
from guie.evaluation.reduction import PER_DOMAIN, balanced_sample, read_embeddings, reduced
from guie.evaluation.rerank import Rerank
from guie.evaluation.search import ScoreStore, key_of, search_together
from guie.report.tables import reports_table


def score(args: argparse.Namespace, named: Sequence[Protocol]) -> None:
    """Read, search, write, by the arguments of validate.py. Raises UserError for an error in its files."""
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
    models: dict[str, Embeddings] = {str(args.embeddings or "the specialists"): given}
    models |= {str(path): load_embeddings(path, table) for path in args.against}
    grades = None
    if any(part.graded for protocol in protocols for part in protocol.parts):
        grades = read_grades(companion_path(manifest.path, "relevance"))
    rerank = Rerank(methods_of(args.rerank))
    if LOCAL in rerank.methods:  # embeds images: after all that can be refused
        # Imported here, as the other methods need no torch.
        from guie.evaluation.opened import embed_patches

        rerank = Rerank(rerank.methods, embed_patches(args.model, manifest, table))
    options = {"quirks": args.quirk, "rerank": rerank, "grades": grades}

    def work(store: ScoreStore | None) -> None:
        draws = {"draws": args.draws, "draws_of_others": args.draws if args.html else 0}
        reports, scores = run_models(protocols, models, table, store=store, **draws, **options)
        if args.write_queries:  # before the report, which tells study.py that both are there
            write_query_scores(args.write_queries, protocols, scores)
            print(f"wrote {args.write_queries}")
        finish(args, protocols, next(iter(reports.values())))
        if args.html:
            # Imported here: the page needs matplotlib and scikit-learn, the other results do not.
            from guie.report.pages.evaluation import write_evaluation

            about = f"{manifest.path.name}, {args.split} split"
            pictures = None if args.no_images else manifest.root
            write_evaluation(args.html, models, reports, protocols, table, pictures, about)
            print(f"wrote {args.html}")
        if args.write_results:
            write_rankings(args.write_results, as_units(given, table), table)
            print(f"wrote {args.write_results}")

    arrays = [array for model in models.values() for array in arrays_of(model)]
    patches = [] if rerank.patches_TPF is None else [rerank.patches_TPF]
    settings = args.protocol, args.index, args.quirk, rerank.methods
    queries, indexed = (int(table["role"].isin([r, "both"]).sum()) for r in ("query", "index"))
    search_together(
        work,
        lambda store: share_models(protocols, models, table, store, **options),
        folder=args.out.with_name(f"{args.out.name}.parts"),
        key=key_of([*arrays, *patches], table, settings),
        # Those of a merged index, the most that any protocol compares
        pairs=queries * indexed * len(arrays) * len(protocols),
    )


def embeddings_of(args: argparse.Namespace, manifest: Manifest, table: pd.DataFrame) -> Embeddings:
    """Return the embeddings to score: one model's, or those of the joined specialists.

    A reduction by PCA is fitted on train images of the manifest. Raises UserError without embeddings of them.
    """
    join = args.join or "oracle"
    given = read_embeddings(args.specialists or args.embeddings, table, join)
    if not args.reduce:
        return given
    fit = None
    if args.reduce in FITTED:
        if not args.fit:
            needs = "needs embeddings of train images; name them by --fit"
            raise UserError(f"--reduce {args.reduce}: {needs}")
        sample = balanced_sample(manifest.split("train"), PER_DOMAIN, seed=0)
        fit = read_embeddings(args.fit if args.specialists else Path(args.fit[0]), sample, join)
    return reduced(given, fit, args.reduce, args.dim, args.seed)


def finish(
    args: argparse.Namespace, protocols: Sequence[Protocol], reports: Sequence[dict[str, Any]]
) -> None:
    """Print the reports, and write report.json: by protocol, or without --protocol the single report."""
    plain = not args.protocol
    print(reports_table(protocols, reports, plain))
    content: dict[str, Any] = {"protocols": {report["protocol"]: report for report in reports}}
    if plain:
        (report,) = reports
        (content,) = report["parts"].values()
        content = content | {key: report[key] for key in ("against",) if key in report}
    write_json(args.out, content)
    print(f"wrote {args.out}")


def write_query_scores(
    path: Path, protocols: Sequence[Protocol], scores: Sequence[Mapping[str, Scores]]
) -> None:
    """Write a CSV with the scores of every query: protocol, part, domain, class, query, metrics.

    An empty field is a metric that the query does not have: it has no positive. Raises UserError if the
    file cannot be written.
    """
    lines = []
    for protocol, parts in zip(protocols, scores, strict=True):
        for part, found in parts.items():
            about = {"protocol": protocol.name, "part": part, "domain": found.group_Q}
            about |= {"class": found.cluster_Q, "query": found.path_Q}
            lines.append(pd.DataFrame(about).join(found.values.reset_index(drop=True)))
    write_text(path, pd.concat(lines).to_csv(index=False))
