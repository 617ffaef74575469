"""Search your own images: build an index, query it, open it in a browser, find duplicates.

python src/search.py index --model runs/demo --images ~/Pictures --out runs/pictures
python src/search.py query --index runs/pictures photo.jpg [--box 10,20,200,300] [--html found.html]
python src/search.py index --model runs/demo --images ~/Pictures --out runs/parts --regions 14
python src/search.py query --index runs/pictures photo.jpg --rerank expand csls
python src/search.py query --index runs/pictures --text "a red cup"
python src/search.py serve --index runs/pictures [--host 0.0.0.0 --allow-host photos.example]
python src/search.py duplicates --index runs/pictures --out copies.csv [--html copies.html]

index accepts a folder, an archive or a manifest, and any model that embed.py accepts. Run the same command
again to update an index, or to resume after a kill. `accelerate launch` runs several processes. Search is
exact by default. --factory IVF4096,PQ16 uses approximate search by faiss, and measures its recall.

For a large set, several machines can build shards, which are then merged with inverted lists on disk:

python src/search.py index --model M --images IMAGES --out runs/part_0 --shard 0/4
python src/search.py merge --shards runs/part_* --out runs/all --factory IVF4096,SQ8
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from guie.base import arguments, errors
from guie.base.arguments import METHODS
from guie.base.errors import UserError
from guie.base.files import refuse_missing, refuse_replacing, replacing, shown, write_text

if TYPE_CHECKING:
    from PIL import Image

    from guie.search.searcher import Hit

# Each command imports what it needs: the help and refusals come at once, and a query does not
# wait for what builds an index.


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("index", help="build or update an index")
    join = commands.add_parser("merge", help="merge shards")
    query = commands.add_parser("query", help="list the neighbours of images, or of a text")
    serve = commands.add_parser("serve", help="open a search page in the browser")
    copies = commands.add_parser("duplicates", help="find copies and look-alikes")
    _add_index_options(make)
    _add_merge_options(join)
    _add_query_options(query)
    _add_serve_options(serve)
    _add_duplicates_options(copies)
    for command in (query, serve, copies):
        command.add_argument("--index", type=Path, required=True)
    for command in (query, serve):
        command.add_argument("--model", help="new path of the index' model")
        command.add_argument(
            "--rerank",
            nargs="+",
            default=[],
            choices=METHODS,
            metavar="NAME",
            help="re-rank: " + "; ".join(f"{n}: {w}" for n, w in METHODS.items()),
        )
    args = parser.parse_args(argv)
    if args.command == "index":
        if (args.size_px or args.fit) and ":" not in args.model:
            make.error("--size-px and --fit: need a model LIBRARY:NAME:TAG; others have their own")
        args.fit = args.fit or "squash"
    if args.command == "query" and not args.pictures:
        if args.text is None:
            query.error("give an image, or --text")
        if args.box:
            query.error("--box: is a part of an image; give one, or leave it out")
    return args


def _add_index_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="run folder, your own submission.zip or LIBRARY:NAME:TAG")
    add("--images", type=Path, required=True, help="folder, archive or manifest")
    add("--root", type=Path, help="folder of a manifest's images (default: its folder)")
    add("--out", type=arguments.local_path, required=True, help="folder of the index")
    add("--factory", help="faiss factory string (default: exact search)")
    add("--probes", type=arguments.count, help="inverted lists searched per query (default: 32)")
    add("--shard", type=arguments.shard, help="N/M: part N, from 0 on, of M, by a hash of the path")
    add("--size-px", type=arguments.count, help="image size for a model LIBRARY:NAME:TAG")
    add(
        "--fit",
        choices=("squash", "pad", "crop"),
        help="for a model LIBRARY:NAME:TAG (default: squash)",
    )
    add("--batch-size", type=arguments.count, default=128, help="images per process and step")
    add("--workers", type=arguments.count, help="loaders per process (default: its share of cores)")
    add("--precision", choices=arguments.PRECISIONS, help=arguments.PRECISION_HELP)
    add(
        "--regions",
        type=int,
        choices=(1, 5, 14),
        help="vectors of an image: the whole, 4 parts of 3/4 of a side, 9 of half a side (default: 1)",
    )
    add("--fewer", action="store_true", help="allow that most indexed images are gone")
    arguments.add_check_content(parser, "--rehash")


def _add_merge_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shards", type=Path, nargs="+", required=True, help="their folders")
    add("--out", type=arguments.local_path, required=True, help="folder of the whole")
    add("--factory", help="faiss string with an inverted file, IVF... (default: exact)")
    add("--probes", type=arguments.count, help="as for index")


def _add_query_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pictures", type=Path, nargs="*", metavar="IMAGE")
    add("--text", help="query with a description, in an index made with a CLIP")
    add("--box", type=arguments.corners, help="left,top,right,bottom: query with this part")
    add("--k", type=arguments.count, default=10)
    add("--domain", help="only domains that contain this text")
    add("--json", type=arguments.file, metavar="FILE", help="write the results as JSON")
    add("--html", type=arguments.file, metavar="FILE", help="write a page of results")


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=arguments.port, default=8000)
    add("--host", default="127.0.0.1", help="address to listen on (default: only this machine)")
    add(
        "--allow-host",
        metavar="NAME",
        type=arguments.host_name,
        action="append",
        default=[],
        help="a host name of this machine for browsers (repeatable)",
    )


def _add_duplicates_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", type=arguments.file, required=True, help="CSV: one row per image of a group")
    add("--html", type=arguments.file, metavar="FILE", help="write a page of groups")
    add("--mirrored", action="store_true", help="a mirror image is also a copy")
    add("--workers", type=arguments.count, help="processes (default: cores)")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Raises UserError."""
    for word in sys.argv[1:] if argv is None else argv:
        # Python decodes other bytes as surrogates, which neither JSON nor Parquet can store.
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(f"{ascii(word)}: is not UTF-8; rename that file or folder")
    args = parse_args(argv)
    arguments.set_environment(args)
    run = {"index": index, "merge": join, "query": query, "serve": serve, "duplicates": duplicates}
    run[args.command](args)


def index(args: argparse.Namespace) -> None:
    """Build or update an index."""
    from guie.base.devices import from_main, make_accelerator
    from guie.base.slow_bf16 import float32_products
    from guie.evaluation.opened import embedding_precision, load_embedding_model
    from guie.search.building import build, claimed, describe
    from guie.search.index import Facts, facts_of_existing, pictures_of, shard_of
    from guie.training.process_guard import Interrupts, ProcessGroupGuard

    before = facts_of_existing(args.out)
    asked = args.precision or (before.precision if before else None)
    precision = embedding_precision(args.model, asked)
    interrupts, accelerator = Interrupts(), make_accelerator(mixed_precision=precision)
    with ExitStack() as held, ProcessGroupGuard(accelerator, interrupts) as guard:
        held.enter_context(float32_products(accelerator))
        pictures = from_main(accelerator, lambda: pictures_of(args.images, args.root))
        if args.shard:
            pictures = from_main(accelerator, lambda: shard_of(pictures, *args.shard))
        from_main(accelerator, lambda: held.enter_context(claimed(args.out)))
        model = (args.model, accelerator, args.out, args.size_px, args.fit, args.batch_size)
        facts = Facts(
            model=args.model,
            recipe="",
            dimension=0,
            pictures=0,
            source=str(args.images),
            root=str(pictures.root),
            size_px=args.size_px,
            fit=args.fit,
            precision=accelerator.mixed_precision,
            factory=args.factory,
            probes=_probes(args),
            shard="/".join(map(str, args.shard)) if args.shard else None,
            regions=args.regions or (before.regions if before else 1),
        )
        settings = {"workers": args.workers, "fewer": args.fewer, "check": guard.check}
        with interrupts:
            made = build(
                args.out, load_embedding_model(*model), facts, pictures, accelerator, **settings
            )
        if made:
            print(describe(*made))
            for reason, count in pictures.skipped.items():
                print(f"left out: {count:,} files, {reason}")
        # All processes end together: one that outlives its group aborts.
        accelerator.wait_for_everyone()
        accelerator.end_training()


def join(args: argparse.Namespace) -> None:
    """Merge shards."""
    refuse_missing(args.shards)
    from guie.search.building import merge

    print(merge(args.shards, args.out, args.factory, _probes(args)).description)


def query(args: argparse.Namespace) -> None:
    """List the neighbours of images, and of a text."""
    inputs = [*args.pictures, args.model, *_index_files(args.index)]
    refuse_replacing([args.json, args.html], inputs)
    refuse_missing(args.pictures)
    from guie.data.images import DECODERS
    from guie.search.searcher import cropped, open_index

    searcher = open_index(args.index, args.model, args.rerank)
    results: list[tuple[str, Image.Image | None, list[Hit]]] = []
    for path in args.pictures:
        picture = cropped(DECODERS[searcher.index.facts.decode](path), args.box)
        hits = searcher.query(picture, args.k, domain=args.domain)
        results.append((str(path), picture, hits))
    if args.text is not None:
        results.append((args.text, None, searcher.query_text(args.text, args.k, args.domain)))
    for name, _, hits in results:
        print("\n".join([shown(name), *(hit.description for hit in hits)]))
    if args.json:
        values = [
            {"query": name, "hits": [asdict(hit) for hit in hits]} for name, _, hits in results
        ]
        write_text(args.json, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    if args.html:
        from guie.search.pages import answers_page

        answers_page(args.html, searcher.index, results)
        print(f"wrote {args.html}")


def serve(args: argparse.Namespace) -> None:
    """Serve the search page until Ctrl-C."""
    errors.optional_module("flask", "search.py serve", "search")
    from guie.search.searcher import open_index
    from guie.search.server import serve_page

    searcher = open_index(args.index, args.model, args.rerank)
    serve_page(searcher, args.host, args.port, args.allow_host)


def duplicates(args: argparse.Namespace) -> None:
    """Write groups of copies."""
    refuse_replacing([args.out, args.html], _index_files(args.index))
    from guie.base.processes import loader_count
    from guie.search.duplicates import find_duplicates
    from guie.search.index import read_index
    from guie.search.pages import duplicates_page

    opened = read_index(args.index)
    found = find_duplicates(opened, loader_count(args.workers), args.mirrored)
    with replacing(args.out) as temporary:
        found.to_csv(temporary, index=False)
    kinds = found["kind"].value_counts()
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none"
    print(f"{args.out}: {found['group'].nunique():,} groups; images: {counts}")
    if args.html:
        duplicates_page(args.html, opened, found)
        print(f"wrote {args.html}")


def _index_files(folder: Path) -> list[Path]:
    """Return an index's files; `guie.search.index`, which describes them, takes a second to import."""
    return [folder / "index.json", *folder.glob("g[0-9]*/*")]


def _probes(args: argparse.Namespace) -> int | None:
    return args.probes or (32 if args.factory and "IVF" in args.factory else None)


if __name__ == "__main__":
    errors.run(main)
