"""Search your own images: build an index, query it, open it in a browser, find duplicates.

python src/search.py index --model runs/demo --images ~/Pictures --out runs/pictures
python src/search.py query --index runs/pictures photo.jpg [--box 10,20,200,300] [--html found.html]
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
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.base.files import replacing, write_text
from guie.data.images import open_as_seen
from guie.evaluation.opened import load_embedding_model
from guie.search.building import DROPPED, Changes, build, claimed, merge
from guie.search.duplicates import find_duplicates
from guie.search.index import Facts, Index, pictures_of, read_index, shard_of
from guie.search.pages import answers_page, duplicates_page
from guie.search.searcher import Corners, Hit, corners_of, cropped, open_index, whole_number
from guie.training.distributed import Interrupts, ProcessGroupGuard

LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "")  # listens on all addresses of this machine
MOST = 2**31 - 1  # of counts in options: the limit of faiss and torch
NAMED = 5  # unreadable files listed; the rest are counted


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("index", help="build or update an index").add_argument
    add("--model", required=True, help="run folder, submission.zip or LIBRARY:NAME:TAG")
    add("--images", type=Path, required=True, help="folder, archive or manifest")
    add("--root", type=Path, help="folder of a manifest's images (default: its folder)")
    add("--out", type=Path, required=True, help="folder of the index")
    add("--factory", help="faiss factory string (default: exact search)")
    add("--probes", type=_positive, help="inverted lists searched per query (default: 32)")
    add("--shard", type=_shard, help="N/M: every Mth image from the Nth on")
    add("--size-px", type=_positive, help="image size for a model LIBRARY:NAME:TAG")
    add(
        "--fit",
        choices=("squash", "pad", "crop"),
        default="squash",
        help="for a model LIBRARY:NAME:TAG",
    )
    add("--batch-size", type=_positive, default=128, help="images per process and step")
    add("--workers", type=_positive, default=2, help="loader processes per process")
    add("--fewer", action="store_true", help="allow that most indexed images are gone")

    add = commands.add_parser("merge", help="merge shards").add_argument
    add("--shards", type=Path, nargs="+", required=True, help="their folders")
    add("--out", type=Path, required=True, help="folder of the whole")
    add("--factory", help="faiss string with an inverted file, IVF... (default: exact)")
    add("--probes", type=_positive, help="as for index")

    query = commands.add_parser("query", help="list the neighbours of images")
    query.add_argument("pictures", type=Path, nargs="+")
    query.add_argument("--box", type=_corners, help="left,top,right,bottom: query with this part")
    query.add_argument("--k", type=_positive, default=10)
    query.add_argument("--domain", help="only domains that contain this text")
    query.add_argument("--json", type=_file, metavar="FILE", help="write the results as JSON")
    query.add_argument("--html", type=_file, metavar="FILE", help="write a page of results")

    serve = commands.add_parser("serve", help="open a search page in the browser")
    serve.add_argument("--port", type=_port, default=8000)
    serve.add_argument(
        "--host", default=LOOPBACK[0], help="address to listen on (default: only this machine)"
    )
    serve.add_argument(
        "--allow-host",
        metavar="NAME",
        type=_host_name,
        action="append",
        default=[],
        help="a host name of this machine for browsers (repeatable)",
    )

    copies = commands.add_parser("duplicates", help="find copies and look-alikes")
    copies.add_argument(
        "--out", type=_file, required=True, help="CSV: one row per image of a group"
    )
    copies.add_argument("--html", type=_file, metavar="FILE", help="write a page of groups")
    copies.add_argument("--mirrored", action="store_true", help="a mirror image is also a copy")
    copies.add_argument("--workers", type=_positive, default=2)
    for command in (query, serve, copies):
        command.add_argument("--index", type=Path, required=True)
    for command in (query, serve):
        command.add_argument("--model", help="new path of the index' model")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Raises UserError."""
    for word in sys.argv[1:] if argv is None else argv:
        # Python decodes other bytes as surrogates, which neither JSON nor Parquet can store.
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UserError(f"{ascii(word)}: is not UTF-8; rename that file or folder")
    args = parse_args(argv)
    commands = {
        **{"index": index, "merge": join, "query": query, "serve": serve},
        **{"duplicates": duplicates},
    }
    commands[args.command](args)


def index(args: argparse.Namespace) -> None:
    """Build or update an index."""
    interrupts = Interrupts()
    accelerator = make_accelerator()
    with ExitStack() as held, ProcessGroupGuard(accelerator, interrupts) as guard:
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
            factory=args.factory,
            probes=_probes(args),
            shard="/".join(map(str, args.shard)) if args.shard else None,
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


def describe(made: Index, changes: Changes) -> str:
    """Describe an index, its changes and its unreadable files."""
    lines = [_about(made) + f": {changes.description}"]
    bad = changes.unreadable
    lines += [f"left out: {row.image_path}: {row.reason}" for row in bad.head(NAMED).itertuples()]
    if len(bad) > NAMED:
        lines.append(f"and {len(bad) - NAMED:,} more in {made.folder / DROPPED}")
    return "\n".join(lines)


def join(args: argparse.Namespace) -> None:
    """Merge shards."""
    print(_about(merge(args.shards, args.out, args.factory, _probes(args))))


def query(args: argparse.Namespace) -> None:
    """List the neighbours of pictures."""
    searcher = open_index(args.index, args.model)
    results = []
    for path in args.pictures:
        picture = cropped(open_as_seen(path), args.box)
        hits = searcher.query(picture, args.k, domain=args.domain)
        results.append((str(path), picture, hits))
        print("\n".join([str(path), *map(_line, hits)]))
    if args.json:
        values = [
            {"query": name, "hits": [asdict(hit) for hit in hits]} for name, _, hits in results
        ]
        write_text(args.json, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    if args.html:
        answers_page(args.html, searcher.index, results)
        print(f"wrote {args.html}")


def serve(args: argparse.Namespace) -> None:
    """Serve the search page until Ctrl-C."""
    from werkzeug.serving import make_server

    from guie.search.server import make_app

    searcher = open_index(args.index, args.model)
    searcher.open_model()  # so that the first request does not wait for it
    everywhere = args.host in ANY_ADDRESS
    if args.host not in LOOPBACK:
        print(
            f"warning: anyone who can reach {args.host}:{args.port} sees the pictures of this index. Open the"
            f" page with {'an IP address of this machine' if everywhere else args.host}; for other names add"
            " --allow-host NAME",
            file=sys.stderr,
        )
    app = make_app(searcher, {*LOOPBACK, args.host.lower(), *args.allow_host} - {""}, everywhere)
    try:
        server = make_server(args.host, args.port, app, threaded=True)
    except (OSError, SystemExit):
        raise UserError(
            f"--port {args.port}: cannot listen on {args.host}; choose another --port or --host"
        ) from None
    shown = "localhost" if everywhere else f"[{args.host}]" if ":" in args.host else args.host
    print(f"http://{shown}:{server.server_port}/ (Ctrl-C stops it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("ended")


def duplicates(args: argparse.Namespace) -> None:
    """Write groups of copies."""
    opened = read_index(args.index)
    found = find_duplicates(opened, args.workers, args.mirrored)
    with replacing(args.out) as temporary:
        found.to_csv(temporary, index=False)
    kinds = found["kind"].value_counts()
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none"
    print(f"{args.out}: {found['group'].nunique():,} groups; pictures: {counts}")
    if args.html:
        duplicates_page(args.html, opened, found)
        print(f"wrote {args.html}")


def _about(made: Index) -> str:
    facts = made.facts
    kind = facts.factory or "flat, exact"
    recall = "".join(f", {k.replace('_', ' ')} {v:.3f}" for k, v in facts.recall.items())
    return (
        f"{made.folder}: {facts.pictures:,} pictures, {facts.dimension} dimensions ({kind}{recall})"
    )


def _line(hit: Hit) -> str:
    sure = "" if hit.sure is None else f"  sure {hit.sure:.2f}"
    about = f"  {hit.label or hit.domain}" if hit.label or hit.domain else ""
    return f"  {hit.distance:.3f}{sure}  {hit.image_path}{about}"


def _probes(args: argparse.Namespace) -> int | None:
    return args.probes or (32 if args.factory and "IVF" in args.factory else None)


def _positive(text: str) -> int:
    number = whole_number(text)
    if not number or number > MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be 1 to {MOST:,}")
    return number


def _port(text: str) -> int:
    number = whole_number(text)
    if number is None or number > 65_535:  # werkzeug would use the remainder
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be 0 to 65535")
    return number


def _shard(text: str) -> tuple[int, int]:
    number, count = (whole_number(part) for part in (text.partition("/")[::2]))
    if number is None or count is None or number >= count:
        raise argparse.ArgumentTypeError(f"{text[:40]}: must be N/M, with N from 0 to M - 1")
    return number, count


def _file(text: str) -> Path:
    path = Path(text)
    if not path.name or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; give a file name")
    return path


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(
            f"{text[:40]}: must be a host name without a port, such as photos.example"
        )
    return text.lower()


def _corners(text: str) -> Corners:
    try:
        return corners_of(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    errors.run(main)
