"""Score a submission exactly like the challenge, after checking that it keeps the contract."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import UserError

# The rest of the scorer is imported where it is used: a process of the model imports this script, too.
if TYPE_CHECKING:
    import pandas as pd

    from scorer.contract import Checklist
    from scorer.embedding import Embedded
    from scorer.manifest import Manifest

MAX_LIMIT = 10**6  # seconds, hours, GB: larger values overflow system limits
MAX_THREADS = 1024
EXAMPLES = """
examples:
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest input/mix_demo.csv --out submissions/demo/score.json
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest input/mix_demo.csv --split val --out runs/demo/val/score.json
  python src/score.py --submission submissions/today/submission.zip --torch current --fast \\
      --manifest input/mix_demo.csv --out runs/demo/score.json

submissions/demo is made by export.py, submissions/today by export.py --torch current.

The model runs in separate processes with limits of time and memory, and gets the images in a secret
order. Score only your own files: these processes do not confine foreign code. Run the same command
again to resume an interrupted scoring, from what is saved every ten minutes.

exit code: 0 scored; 1 the submission breaks the contract (score.json then holds the checks);
2 a fault in the manifest, an image or an argument
"""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--submission", type=Path, required=True, help="submission.zip")
    parser.add_argument("--manifest", type=Path, required=True, help="CSV or Parquet table")
    parser.add_argument("--split", default="test", help="the manifest's split (default: test)")
    parser.add_argument("--root", type=Path, help="folder of the images (default: the manifest's)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="score.json; score.neighbours.csv goes to its folder",
    )
    parser.add_argument(
        "--torch", choices=("1.11", "current"), default="1.11", help="runtime (default: 1.11)"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="batches of one size; stops if they change answers",
    )
    from scorer.process import Allowance

    own = Allowance()
    limits = parser.add_argument_group("limits of the model's process")
    for flag, value, what in (
        ("--memory-gb", own.memory_bytes / 2**30, "in addition to PyTorch's own, on the CPU"),
        ("--image-seconds", own.image_seconds, "per image"),
        ("--total-hours", own.total_seconds / 3600, "in total"),
        ("--threads", own.threads, "to compute with"),
    ):
        kind, message = type(value), f"{what} (default: {value:g})"
        limits.add_argument(flag, type=kind, default=value, metavar="N", help=message)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Check the contract, embed, search, judge, write.

    Raises:
        UserError: a fault in the manifest, an image or an argument.
        SystemExit: with code 1, the submission breaks the contract.
    """
    args = parse_args(argv)
    check_arguments(args)
    forkserver.ensure_running()  # imports torch while the manifest is read
    from scorer import report
    from scorer.contract import Checklist
    from scorer.manifest import read_manifest

    manifest = read_manifest(args.manifest, args.split, args.root)
    checklist, digest = Checklist(), report.sha256(args.submission)
    embedded, about = embed(args, manifest, checklist, digest)
    provenance = {
        "verdict": checklist.verdict,
        "checks": [asdict(check) for check in checklist.checks],
        "submission": {"sha256": digest, "bytes": args.submission.stat().st_size},
        "torch": about["torch"],
        "runtime": args.torch,
        "device": about["device"],
        "limits": about["limits"],
    }
    if embedded is None:
        report.write_json(args.out, provenance)
        for name, detail in checklist.failed.items():
            print(f"VIOLATION {name}: {detail}")
        print(f"no score: {checklist.verdict}")
        sys.exit(1)
    score, neighbours = evaluate(manifest, embedded)
    neighbours = neighbours.assign(submission=digest)
    score |= report.costs(embedded, about["peak_bytes"]) | {"budget": about["budget"]} | provenance
    neighbours_path = args.out.with_suffix(".neighbours.csv")
    report.write_text(neighbours_path, neighbours.to_csv(index=False))
    report.write_json(args.out, score)
    progress_file(args.out).unlink(missing_ok=True)
    print(f"{report.format_table(score)}\nwrote {args.out} and {neighbours_path}")


def embed(
    args: argparse.Namespace, manifest: Manifest, checklist: Checklist, digest: str
) -> tuple[Embedded | None, dict[str, Any]]:
    """Check the contract, measure, embed; None where the submission breaks the contract.

    Returns also where it ran: torch, device (None if no process embedded), limits, budget, peak_bytes.
    """
    from importlib.metadata import version

    from scorer import budget
    from scorer.contract import MAX_DIMENSION, verified
    from scorer.embedding import Progress, embed_images
    from scorer.process import Allowance

    allowance = Allowance(
        int(args.memory_gb * 2**30), args.threads, args.image_seconds, args.total_hours * 3600
    )
    embedded = None
    about: dict[str, Any] = {"torch": version("torch"), "device": None, "limits": {}}
    # Next to the result: the system's temporary folder may be too small. After a killed scoring, the
    # next one replaces the file.
    unpacked = args.out.with_name(f".{args.out.stem}.saved_model.pt")
    unpacked.unlink(missing_ok=True)  # another scoring may still read it
    try:
        model = verified(args.submission, checklist, unpacked, allowance, args.torch)
        if model is None:
            return None, about
        demand = f"1 to {MAX_DIMENSION} finite numbers, equally many for all images, in any order"
        with checklist.check("every_image", demand), model.process() as process:
            about |= {"torch": process.torch, "device": process.device_name}
            about["limits"] = {
                "memory": process.memory,
                "time_per_image": {"held": True, "how": f"{args.image_seconds:g} s"},
                "time": {"held": True, "how": f"{args.total_hours:g} h in total"},
            }
            process.ask("load")
            images = [manifest.root / path for path in manifest.images()]
            about["budget"] = budget.measured(process, images)
            if message := budget.warning(about["budget"]):
                print(message, file=sys.stderr)
            key = f"{digest} {process.torch} {process.device_name} {args.fast}"
            with Progress(progress_file(args.out), key) as progress:
                embedded = embed_images(model, process, manifest, progress, args.fast)
            about["peak_bytes"] = process.peak_bytes
    finally:
        unpacked.unlink(missing_ok=True)
    return embedded, about


def progress_file(out: Path) -> Path:
    """Return where the embeddings of an unfinished scoring are saved."""
    return out.with_suffix(".embeddings.npz")


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError for invalid arguments before hours are spent on the images."""
    for name in ("memory_gb", "image_seconds", "total_hours", "threads"):
        value, most = getattr(args, name), MAX_THREADS if name == "threads" else MAX_LIMIT
        if not 0 < value <= most:  # also rejects NaN
            message = f"must be above 0 and at most {most:,}"
            raise UserError(f"--{name.replace('_', '-')} {value}: {message}")
    for flag, path in (("--submission", args.submission), ("--manifest", args.manifest)):
        if ":/" in str(path):  # a manifest in object storage
            continue
        try:
            with path.open("rb"):
                fault = "" if path.is_file() else "not a regular file"
        except OSError as error:
            fault = "a link that points nowhere" if path.is_symlink() else str(error.strerror)
        if fault:
            raise UserError(f"{flag} {path}: {fault}")
    if args.out.suffix != ".json" or ":/" in str(args.out) or args.out.is_dir():
        raise UserError(f"--out {args.out}: must be the name of a .json file on a local disk")
    listed = args.out.with_suffix(".neighbours.csv")
    if listed.exists() and not listed.read_bytes()[:11] == b"query,rank,":
        raise UserError(f"{listed}: would be replaced, and score.py did not write it; rename it")
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {args.out}: {error.strerror}") from error
    if not os.access(args.out.parent, os.W_OK):
        raise UserError(f"--out {args.out}: no permission to write there")


def evaluate(manifest: Manifest, embedded: Embedded) -> tuple[dict[str, Any], pd.DataFrame]:
    """Search the merged index for every query; return the score and the table of neighbours."""
    from scorer import report
    from scorer.retrieval import judge, nearest, own_rows

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
    except OSError as error:  # a full disk, a removed folder
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else "a write failed: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
