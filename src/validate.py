"""Score embeddings under research protocols, with confidence intervals.

The embeddings come from one model, or from one specialist per domain. Without --protocol, every
metric is scored over one index. `accelerate launch src/validate.py ...` distributes a long search
over processes, and the same command resumes a search that was stopped. With --mteb, mteb embeds
and scores a model: on its image retrieval tasks, or on a split of a manifest.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.arguments import LOCAL, METHODS, count, methods_of
from guie.base.errors import UserError
from guie.base.files import refuse_missing, refuse_no_folder, refuse_replacing
from guie.evaluation.protocols import catalogue
from guie.evaluation.protocols.catalogue import PROTOCOLS, protocol_of

OF_MTEB = {"mteb", "model", "manifest", "root", "split", "batch_size", "workers", "out"}
OF_EMBEDDINGS = ("against", "reduce", "write_results", "write_queries", "html", "rerank", "quirk")
NEEDS = {  # option: the one that it needs
    "quirk": "protocol",
    "join": "specialists",
    "fit": "reduce",
    "no_images": "html",
    "unlisted_negative": "results",
}

EXAMPLES = """
examples:
  python src/validate.py --embeddings runs/demo/E.npz --manifest input/mix_demo.csv \\
      --out runs/demo/report.json
  python src/validate.py --embeddings runs/demo/E.npz --manifest input/mix_demo.csv \\
      --split val --index separate --out runs/demo/val_separate.json
  python src/validate.py --embeddings E.npz --manifest M --protocol uned puma --out uned.json
  python src/validate.py --embeddings E.npz --against other.npz third.npz --manifest M \\
      --out report.json --html report.html
  python src/validate.py --embeddings E.npz --rerank csls --manifest M --out csls.json
  python src/validate.py --specialists cars=cars.npz food=food.npz --manifest M --protocol uned \\
      --out oracle.json
  python src/validate.py --results R.json --manifest input/ilias.parquet --protocol ilias \\
      --out ilias.json
  python src/validate.py --embeddings E.npz --reduce pca-whitened --dim 64 --fit train.npz \\
      --manifest M --out pca.json

  python src/validate.py --mteb CUB200I2IRetrieval SOPI2IRetrieval --model runs/demo --out runs/demo/mteb
  python src/validate.py --mteb --model runs/demo --manifest input/mix_demo.csv --out runs/demo/mteb

E.npz and the other .npz files are made by embed.py, input/*.csv and input/*.parquet by curate.py.
Wherever an E.npz is read, an E.parquet of embed.py is, too.

mteb is not in requirements.txt; `make judges` installs it into .venv-judges. Public tasks are
downloaded, and their scores are cached in --out by the model's weights. A manifest is scored again
each time.

exit code: 0 scored; 2 an error in the manifest, the embeddings or an argument
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    lists = {
        "protocols": {name: f"{p.title} ({p.source})" for name, p in PROTOCOLS.items()},
        "joins": catalogue.JOINS,
        "quirks, off by default": catalogue.QUIRKS,
        "re-ranking, off by default": METHODS,
    }
    entries = (
        f"{title}:\n" + "".join(f"  {name:12} {words}\n" for name, words in of.items())
        for title, of in lists.items()
    )
    epilog, plain = "".join(entries) + EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=epilog, formatter_class=plain)
    add_sources(parser)
    add_scoring(parser)
    args = parser.parse_args(argv)
    refuse_contradictions(parser, args)
    return args


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add what is scored: embeddings and how they are combined, rankings, or a model for mteb."""
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--embeddings", type=Path, metavar="E.npz", help="file written by embed.py")
    add("--specialists", nargs="+", metavar="DOMAIN=E.npz", help="one file per domain")
    add("--results", type=Path, metavar="R.json", help="rankings: {query: {image: score}}")
    words = "tasks of mteb; none: the split of --manifest"
    add("--mteb", nargs="*", metavar="TASK", help=words)
    add = parser.add_argument
    words = "count images of --results that are not in the manifest as distractors"
    add("--unlisted-negative", action="store_true", help=words)
    add("--texts", type=Path, metavar="FILE", help="text queries, as for embed.py --texts")
    words = "how specialists are joined, see below (default: oracle)"
    add("--join", choices=catalogue.JOINS, help=words)
    words = "reduce to --dim dimensions; first: keep the first ones"
    add("--reduce", choices=catalogue.REDUCTIONS, help=words)
    add("--dim", type=count, default=64, help="dimensions of --reduce (default: 64)")
    add("--seed", type=int, default=0, help="of --reduce random; UnED averages three (default: 0)")
    words = "embeddings of train images to fit PCA on: one file, or DOMAIN=E.npz of each"
    add("--fit", nargs="+", metavar="E.npz", help=words)
    add("--manifest", type=Path, help="CSV or Parquet table; needed but for tasks of --mteb")
    add("--root", type=Path, help="folder of the images (default: the manifest's)")
    add("--split", choices=("val", "test"), default="test", help="default: test")


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """Add how it is scored, and what is written."""
    add = parser.add_argument
    words = "search all domains together, or only the query's domain (default: merged)"
    add("--index", choices=catalogue.INDEXES, help=words)
    add("--protocol", nargs="+", default=[], metavar="NAME", help="see below")
    add("--quirk", nargs="+", default=[], metavar="NAME", help="see below")
    add("--rerank", nargs="+", default=[], metavar="NAME", help="correct each ranking, see below")
    words = "run or LIBRARY:NAME:TAG: the embeddings', for --rerank local; or of --mteb"
    add("--model", help=words)
    add("--batch-size", type=count, help="of --mteb: images per step (default: 128)")
    add("--workers", type=int, help="of --mteb: loader processes (default: 2)")
    add("--against", type=Path, nargs="+", default=[], metavar="E.npz", help="models to compare")
    words = f"bootstrap draws, 0 for none (default: {catalogue.DRAWS})"
    add("--draws", type=int, default=catalogue.DRAWS, help=words)
    add("--out", type=Path, required=True, help="report.json, or the folder of --mteb")
    add("--html", type=Path, metavar="PAGE.html", help="also write a page to explore the results")
    add("--no-images", action="store_true", help="leave images out of --html")
    words = "write each query's best 1,000 images"
    add("--write-results", type=Path, metavar="R.json", help=words)
    add("--write-queries", type=Path, metavar="Q.csv", help="write each query's scores")


def refuse_contradictions(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with one line if arguments contradict each other, or a number is out of its range."""
    error, given = parser.error, vars(args)
    flags = {name: f"--{name.replace('_', '-')}" for name in given}
    for name in ("draws", "seed", "workers"):
        if (given[name] or 0) < 0:
            error(f"{flags[name]} {given[name]}: must be 0 or more")
    if args.mteb is not None:
        changed = [name for name, value in given.items() if value != parser.get_default(name)]
        if others := [flags[name] for name in changed if name not in OF_MTEB]:
            error(f"--mteb: leave out {', '.join(others)}")
        if not args.model:
            error("--mteb: needs --model")
        if bool(args.mteb) == bool(args.manifest):
            error("--mteb: needs the names of tasks, or --manifest")
        return
    if not args.manifest:
        error("the following arguments are required: --manifest")
    if args.workers is not None or args.batch_size:
        error("--workers and --batch-size need --mteb")
    if args.protocol and args.index:
        error("--index: --protocol already defines the index; use one of the two")
    for name, needed in NEEDS.items():
        if given[name] and not given[needed]:
            error(f"{flags[name]}: needs {flags[needed]}; leave it out")
    domains, fitted = (
        [word.partition("=")[0] for word in words or ()] for words in (args.specialists, args.fit)
    )
    if len(fitted) > 1 and not domains:
        error("--fit: one model has one file; leave out the others")
    if domains and fitted and fitted != domains:
        error(f"--fit: needs the domains of --specialists, in their order: {', '.join(domains)}")
    if args.results and any(given[name] for name in OF_EMBEDDINGS):
        others = [flags[name] for name in OF_EMBEDDINGS]
        error(f"--results: rankings have no embeddings; leave out {', '.join(others)}")
    if args.rerank and (args.html or args.write_results):
        error("--rerank: leave out --html and --write-results, which show the plain search")
    if (LOCAL in args.rerank) != bool(args.model):
        error("--model: is needed with --rerank local, and for nothing else")
    if args.model and (args.against or args.specialists or args.texts):
        error("--rerank local: leave out --against, --specialists and --texts")
    names = [str(path) for path in (args.embeddings, *args.against)]
    if len(set(names)) < len(names):
        error("--against: a file is named twice or is also --embeddings; remove one")
    if args.seed and args.reduce != "random":
        error("--seed: needs --reduce random; leave it out")


def main(argv: Sequence[str] | None = None) -> None:
    """Read, search, write. Raises UserError for an error in the manifest or the embeddings."""
    args = parse_args(argv)
    if args.mteb is not None:
        refuse_no_folder(args.out)
        try:
            from guie.evaluation.mteb import score_by_mteb
        except ModuleNotFoundError as error:
            raise UserError(f"no module {error.name}: run by .venv-judges (make judges)") from error
        score_by_mteb(args)
        return
    words = [*(args.specialists or ()), *(args.fit or ())]
    files = [args.manifest, args.embeddings, *args.against, args.results, args.texts]
    of_domains = [word.partition("=")[2] for word in words]
    results = [args.out, args.html, args.write_results, args.write_queries]
    refuse_replacing(results, [*files, *words, *of_domains])
    refuse_missing([*files, *(of_domains if args.specialists else words)])
    named = [protocol_of(name) for name in args.protocol or [args.index or "merged"]]
    methods_of(args.rerank)
    # Imported here, so that the help and refusals come at once.
    from guie.report.scoring import score

    score(args, named)


if __name__ == "__main__":
    errors.run(main)
