"""Search your own images: an index, queries, a page in the browser, duplicates, a push to a server.

python src/search.py index --model runs/demo --images ~/Pictures --out runs/pictures
python src/search.py query --index runs/pictures photo.jpg [--box 10,20,200,300] [--html found.html]
python src/search.py query --index runs/pictures photo.jpg --rerank expand csls
python src/search.py query --index runs/pictures --text "a red cup"
python src/search.py serve --index runs/pictures [--host 0.0.0.0]
python src/search.py duplicates --index runs/pictures --out copies.csv [--html copies.html]
python src/search.py push --index runs/pictures postgresql://user@server/photos

index accepts a folder, an archive or a manifest, and any model that embed.py accepts. Run the same command
again to update an index, or to resume after a kill: only new and changed images are computed. Computed rows
stay in OUT.rows, or in `--store DIR`, which embed.py shares. Images, rows and index may be in a bucket (s3://...).
Search is exact by default; `--ann` adds an approximate index on disk, and measures its recall.

Several machines compute parts of the rows, and the command without --shard then writes the index:

python src/search.py index --model M --images IMAGES --out runs/all --store DIR --shard 0/4
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guie.base import arguments, errors
from guie.base.arguments import METHODS
from guie.base.errors import UserError
from guie.base.files import refuse_missing, refuse_replacing, replacing, shown, write_text
from guie.data.shards.storage import as_path, url_of
from guie.data.shards.storage import shown as named

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image

    from guie.search.engines import Hit
    from guie.search.table import Index

NAMED = 5  # unreadable files that are printed; a list has all
DROPPED = ["image_path", "reason"]  # columns of that list

# Each command imports what it needs: the help and refusals come at once, and a query does not
# wait for what builds an index.


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("index", help="build or update an index")
    query = commands.add_parser("query", help="list the neighbours of images, or of a text")
    serve = commands.add_parser("serve", help="open a search page in the browser")
    copies = commands.add_parser("duplicates", help="find copies and look-alikes")
    push = commands.add_parser("push", help="bring a table in PostgreSQL or Qdrant up to date")
    _add_index_options(make)
    for command in (query, serve, copies, push):
        command.add_argument("--index", type=Path, required=True)
    for command in (query, serve, copies):
        command.add_argument("--root", type=Path, help="new folder of the images, if they moved")
    for command in (query, serve):
        command.add_argument("--model", help="new path of the index' model")
        words = "re-rank: " + "; ".join(f"{n}: {w}" for n, w in METHODS.items())
        command.add_argument(
            "--rerank", nargs="+", default=[], choices=METHODS, metavar="NAME", help=words
        )

    add = query.add_argument
    add("pictures", type=Path, nargs="*", metavar="IMAGE")
    add("--text", help="query with a description, in an index made with a CLIP")
    add("--box", type=arguments.corners, help="left,top,right,bottom: query with this part")
    add("--k", type=arguments.count, default=10)
    add("--domain", help="only domains that contain this text")
    add("--json", type=arguments.file, metavar="FILE", help="write the results as JSON")
    add("--html", type=arguments.file, metavar="FILE", help="write a page of results")

    add = serve.add_argument
    add("--port", type=arguments.port, default=8000)
    words = "address or name of this machine to listen on (default: 127.0.0.1, only this machine)"
    add("--host", type=arguments.host_name, default="127.0.0.1", help=words)
    add(
        "--root-path",
        default="",
        help="address of the page at a proxy, such as https://photos.example/search",
    )

    add = copies.add_argument
    add("--out", type=arguments.file, required=True, help="CSV: one row per image of a group")
    add("--html", type=arguments.file, metavar="FILE", help="write a page of groups")
    add("--mirrored", action="store_true", help="a mirror image is also a copy")
    add("--workers", type=arguments.count, help="processes (default: cores)")

    add = push.add_argument
    add("url", metavar="URL", help="postgresql://... or http(s)://... of Qdrant")
    add("--name", default="images", help="of the view or alias that always has the newest rows")

    args = parser.parse_args(argv)
    if args.command == "index" and (args.size_px or args.fit) and ":" not in args.model:
        make.error("--size-px and --fit: need a model LIBRARY:NAME:TAG; others have their own")
    if args.command == "query" and not args.pictures:
        if args.text is None:
            query.error("give an image, or --text")
        if args.box:
            query.error("--box: is a part of an image; give one, or leave it out")
    return args


def _place(text: str) -> Path:
    """Parse the folder of an index: on a disk, or in a bucket. Its rows and its list are put beside it."""
    place = arguments.local_path(as_path(text))
    if url_of(place) and not url_of(place.parent):
        raise UserError(f"{text}: is a whole bucket; name a folder in it, such as {text}/index")
    return place


def _add_index_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", required=True, help="run folder, your own submission.zip or LIBRARY:NAME:TAG")
    add("--images", type=as_path, required=True, help="folder, archive or manifest")
    add("--root", type=as_path, help="folder of a manifest's images (default: its folder)")
    add("--out", type=_place, required=True, help="folder of the index, or its URL in a bucket")
    add("--store", metavar="DIR", help="folder of computed rows (default: <out>.rows)")
    words = "only compute part N, from 0 on, of M"
    add("--shard", type=arguments.shard, default=(0, 1), metavar="N/M", help=words)
    add("--ann", action="store_true", help="approximate search on disk, for millions of images")
    add("--size-px", type=arguments.count, help="image size for a model LIBRARY:NAME:TAG")
    words = "for a model LIBRARY:NAME:TAG (default: squash)"
    add("--fit", choices=("squash", "pad", "crop"), help=words)
    add("--batch-size", type=arguments.count, default=128, help="images per process and step")
    add("--workers", type=arguments.count, help="loaders per process (default: its share of cores)")
    add("--precision", choices=arguments.PRECISIONS, help=arguments.PRECISION_HELP)
    words = (
        "vectors of an image: the whole, 4 parts of 3/4 of a side, 9 of half a side (default: 1)"
    )
    add("--regions", type=int, choices=(1, 5, 14), help=words)
    add("--fewer", action="store_true", help="allow that most indexed images are gone")
    arguments.add_engine(parser)
    arguments.add_check_content(parser, "--rehash")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Raises UserError."""
    for word in sys.argv[1:] if argv is None else argv:
        # Python decodes other bytes as surrogates, which neither JSON nor a table can store.
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(f"{ascii(word)}: is not UTF-8; rename that file or folder")
    args = parse_args(argv)
    arguments.set_environment(args)
    errors.optional_module("lancedb", "search.py", "search")
    run = {"index": index, "query": query, "serve": serve, "duplicates": duplicates, "push": push}
    run[args.command](args)


def index(args: argparse.Namespace) -> None:
    """Build or update an index."""
    from guie.base.devices import from_main, make_accelerator
    from guie.base.files import cache_folder, refuse_foreign_list
    from guie.base.slow_bf16 import float32_products
    from guie.evaluation.opened import embedding_precision, load_embedding_model, open_in_actor
    from guie.rows.pictures import pictures_of
    from guie.search.table import Facts, Index
    from guie.search.updating import existing, update
    from guie.training.process_guard import Interrupts, ProcessGroupGuard

    dropped = args.out.with_name(f"{args.out.name}.dropped.csv")
    if not url_of(dropped):
        refuse_foreign_list(dropped, DROPPED)
    old = existing(args.out)
    before = old.facts if old else Facts()  # whose settings an update keeps
    settings = args.size_px or before.size_px, args.fit or before.fit, args.batch_size
    precision = embedding_precision(
        args.model, args.precision or (before.precision if old else None)
    )
    interrupts, accelerator = Interrupts(), make_accelerator(mixed_precision=precision)
    with float32_products(accelerator), ProcessGroupGuard(accelerator, interrupts) as guard:
        pictures = from_main(accelerator, partial(pictures_of, args.images, args.root))
        facts = Facts(
            model=args.model,
            source=named(args.images),
            root=named(pictures.root),
            size_px=settings[0],
            fit=settings[1],
            precision=accelerator.mixed_precision,
            regions=args.regions or before.regions,
            ann=args.ann or before.ann,
        )
        scratch = cache_folder()
        opened = load_embedding_model(args.model, accelerator, scratch, *settings)
        model = os.path.abspath(args.model) if os.path.exists(args.model) else args.model
        opens = partial(open_in_actor, precision, model, scratch.absolute(), *settings)
        store = args.store or args.out.with_name(f"{args.out.name}.rows")
        with interrupts:
            words, bad = update(
                args.out,
                store,
                opened,
                facts,
                pictures,
                accelerator,
                part=args.shard,
                workers=args.workers,
                fewer=args.fewer,
                opens=opens,
                check=guard.check,
            )
        if args.shard != (0, 1):
            shard = "/".join(map(str, args.shard))
            accelerator.print(f"{named(store)}: has the rows of part {shard}")
        elif accelerator.is_main_process:
            print(f"{_described(Index(args.out))}: {words}")
            _name_left_out(pictures.skipped, bad, dropped)
        # All processes end together: one that outlives its group aborts.
        accelerator.wait_for_everyone()
        accelerator.end_training()


def _name_left_out(skipped: Mapping[str, int], bad: pd.DataFrame, dropped: Path) -> None:
    """Print what is not in the index, and list unreadable images in a file, which goes if there are none."""
    for reason, count in skipped.items():
        print(f"left out: {count:,} files, {reason}")
    for row in bad.head(NAMED).itertuples():
        print(f"left out: {shown(str(row.image_path))}: {row.reason}")
    from guie.data.shards.storage import request, written

    if len(bad):
        with written(dropped) as local, replacing(local) as temporary:
            bad[DROPPED].to_csv(temporary, index=False)
        print(f"left out: {len(bad):,} images, listed in {named(dropped)}")
    elif url := url_of(dropped):
        request(url, "rm_file", optional=True)
    else:
        dropped.unlink(missing_ok=True)


def _described(index: Index) -> str:
    facts = index.facts
    regions = f" of {facts.regions} regions" if facts.regions > 1 else ""
    kind = f"approximate, recall at 10 {facts.recall:.3f}" if facts.recall is not None else "exact"
    about = f"{index.images:,} images{regions}, {facts.dimension} dimensions ({kind})"
    return f"{index.name}: {about}"


def query(args: argparse.Namespace) -> None:
    """List the neighbours of images, and of a text."""
    refuse_replacing([args.json, args.html], [*args.pictures, args.model])
    refuse_missing(args.pictures)
    from guie.data.images import cropped
    from guie.search.searcher import Searcher

    searcher = Searcher(args.index, args.model, args.rerank, args.root)
    results: list[tuple[str, Image.Image | None, list[Hit]]] = []
    for path in args.pictures:
        picture = cropped(searcher.decoded(path), args.box)
        results.append((str(path), picture, searcher.query(picture, args.k, domain=args.domain)))
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
        from guie.report.pages.search import answers_page

        answers_page(args.html, searcher.root, _about(searcher.index), results)
        print(f"wrote {args.html}")


def _about(index: Index) -> dict[str, Any]:
    """Return what a page says of an index."""
    from guie.evaluation.confidence import describe

    facts = index.facts
    about = {"source": facts.source, "model": facts.model, "sure": describe(facts.confidence)}
    return about | {"pictures": index.images}


def serve(args: argparse.Namespace) -> None:
    """Serve the search page until Ctrl-C."""
    errors.optional_module("gradio", "search.py serve", "search")
    from guie.search.app import serve_page
    from guie.search.searcher import Searcher

    searcher = Searcher(args.index, args.model, args.rerank, args.root)
    serve_page(searcher, args.host, args.port, args.root_path)


def duplicates(args: argparse.Namespace) -> None:
    """Write groups of copies."""
    refuse_replacing([args.out, args.html], [])
    from guie.base.processes import loader_count
    from guie.curation.duplicates.groups import KINDS, find_groups
    from guie.search.table import ABOUT, Index

    opened = Index(args.index)
    files = opened.read(ABOUT, "region = 0").select(ABOUT).to_pandas()
    root = as_path(args.root or opened.facts.root)
    found = find_groups(root, files, loader_count(args.workers), args.mirrored)
    with replacing(args.out) as temporary:
        found.to_csv(temporary, index=False)
    kinds = found["kind"].value_counts()
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none"
    print(f"{args.out}: {found['group'].nunique():,} groups; images: {counts}")
    if args.html:
        from guie.report.pages.search import duplicates_page

        duplicates_page(args.html, root, _about(opened), found, KINDS)
        print(f"wrote {args.html}")


def push(args: argparse.Namespace) -> None:
    """Bring a server up to date with an index."""
    from guie.search.push import push
    from guie.search.table import Index

    print(push(Index(args.index), args.url, args.name))


if __name__ == "__main__":
    errors.run(main)
