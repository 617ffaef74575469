"""Score a submission exactly like the challenge, after checking that it keeps the contract."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from scorer import budget, report
from scorer.archive import MODEL_NAME
from scorer.contract import MAX_DIMENSION, Checklist, verified
from scorer.embedding import Embedded, EmbeddingCache, embed_images
from scorer.errors import UserError, Violation
from scorer.manifest import Manifest, read_manifest
from scorer.process import Allowance, ModelProcess, SandboxedModel, server
from scorer.retrieval import judge, nearest, own_rows
from scorer.shards import URL

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

The model runs in a separate process, under limits that score.json lists, and gets the images in a
secret order. Run the same command again to resume an interrupted scoring.

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
    server()  # imports torch while the manifest is read
    manifest = read_manifest(args.manifest, args.split, args.root)
    neighbours_path = args.out.with_suffix(".neighbours.csv")
    scoring = Scoring(args, manifest)
    embedded = scoring.embed()
    provenance = {
        "verdict": scoring.checklist.verdict,
        "checks": [asdict(check) for check in scoring.checklist.checks],
        "submission": {"sha256": scoring.digest, "bytes": args.submission.stat().st_size},
        "torch": scoring.torch,
        "runtime": args.torch,
        "device": scoring.device,
        "limits": scoring.limits,
    }
    if embedded is None:
        report.write_json(args.out, provenance)
        for name, detail in scoring.checklist.failed.items():
            print(f"VIOLATION {name}: {detail}")
        print(f"no score: {scoring.checklist.verdict}")
        sys.exit(1)
    score, neighbours = evaluate(manifest, embedded)
    neighbours = neighbours.assign(submission=scoring.digest)
    score |= report.costs(embedded, scoring.peak_bytes) | {"budget": scoring.budget} | provenance
    report.write_text(neighbours_path, neighbours.to_csv(index=False))
    report.write_json(args.out, score)
    scoring.kept.unlink(missing_ok=True)
    print(f"{report.format_table(score)}\nwrote {args.out} and {neighbours_path}")


class Scoring:
    """One submission, from its file to the embeddings, and what is found out on the way."""

    def __init__(self, args: argparse.Namespace, manifest: Manifest) -> None:
        self.args, self.manifest, self.checklist = args, manifest, Checklist()
        self.digest = report.sha256(args.submission)
        self.kept = args.out.with_suffix(".embeddings")
        # Where it is embedded; no device and no limits where no process is started for it.
        self.torch = version("torch")
        self.device: str | None = None
        self.limits: dict[str, Any] = {}
        self.budget: dict[str, Any] = {}
        self.peak_bytes = 0

    def embed(self) -> Embedded | None:
        """Check the contract, measure, embed; return None if it breaks the contract. Raises UserError."""
        args = self.args
        allowance = Allowance(
            int(args.memory_gb * 2**30), args.threads, args.image_seconds, args.total_hours * 3600
        )
        # Next to the result: the system's temporary folder may be too small.
        remove_left_over(args.out.parent)
        prefix = f".score-{socket.gethostname()}-{os.getpid()}-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=args.out.parent) as folder:
            sandboxed = verified(
                args.submission, self.checklist, Path(folder), allowance, args.torch
            )
            if sandboxed is None:
                return None
            embedded = None
            demand = (
                f"1 to {MAX_DIMENSION} finite numbers, equally many for all images, in any order"
            )
            with self.checklist.check("every_image", demand), sandboxed.process() as model:
                self.torch, self.device, self.limits = model.torch, model.device.name, model.limits
                model.load()
                embedded = self._embed(sandboxed, model)
                self.peak_bytes = model.peak_bytes
            return embedded

    def _embed(self, sandboxed: SandboxedModel, model: ModelProcess) -> Embedded:
        images = [self.manifest.root / path for path in self.manifest.images()]
        self.budget = budget.measured(model, images)
        if message := budget.warning(self.budget):
            print(message, file=sys.stderr)
        key = f"{self.digest} {model.torch} {model.device} {self.args.fast}"
        cache, is_kept = EmbeddingCache(self.kept, key), True
        try:
            return embed_images(sandboxed, model, self.manifest, cache, self.args.fast)
        except Violation as fault:
            is_kept = fault.verdict == "too_slow"
            raise
        finally:
            cache.close(remove=not is_kept)


def remove_left_over(parent: Path) -> None:
    """Remove unpacked models of killed scorings, which may take gigabytes."""
    begin = f".score-{socket.gethostname()}-"  # another machine's may be running
    for folder in parent.glob(f"{begin}*-*"):
        pid = folder.name.removeprefix(begin).split("-")[0]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            names = {path.name.partition("-")[0] for path in folder.iterdir()}
            if names <= {MODEL_NAME, "scratch"}:
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, ValueError, OverflowError):  # not a scoring, or another user's running one
            continue


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError for invalid arguments before hours are spent on the images."""
    for name in ("memory_gb", "image_seconds", "total_hours", "threads"):
        value, most = getattr(args, name), MAX_THREADS if name == "threads" else MAX_LIMIT
        if not 0 < value <= most:  # also rejects NaN
            message = f"must be above 0 and at most {most:,}"
            raise UserError(f"--{name.replace('_', '-')} {value}: {message}")
    for flag, path in (("--submission", args.submission), ("--manifest", args.manifest)):
        if URL.match(str(path)):
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
