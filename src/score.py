"""Score a submission exactly like the challenge, after checking that it keeps the contract."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import UserError, Violation

# The rest of the scorer is imported where it is used: a process of the model imports this script, too.
if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from scorer.manifest import Manifest

MAX_LIMIT = 10**6  # seconds, hours, GB: larger values overflow system limits
MAX_THREADS = 1024
EXAMPLES = """
examples:
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest input/mix_demo.csv --out submissions/demo/score.json
  python src/score.py --submission submissions/demo/submission.zip \\
      --manifest input/mix_demo.csv --split val --out runs/demo/val/score.json
  python src/score.py --submission submissions/today/submission.zip --torch current \\
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
    add = parser.add_argument
    add("--submission", type=Path, required=True, help="submission.zip")
    add("--manifest", required=True, help="CSV or Parquet table")
    add("--split", default="test", help="the manifest's split (default: test)")
    add("--root", help="folder of the images (default: the manifest's)")
    out = "score.json; score.neighbours.csv goes to its folder"
    add("--out", type=Path, required=True, help=out)
    add("--torch", choices=("1.11", "current"), default="1.11", help="runtime (default: 1.11)")
    add = parser.add_argument_group("limits of the model's process").add_argument
    memory = "in addition to PyTorch's own, on the CPU (default: 16)"
    add("--memory-gb", type=positive, default=16.0, metavar="N", help=memory)
    seconds, hours = "per image (default: 120)", "in total (default: 24)"
    add("--image-seconds", type=positive, default=120.0, metavar="N", help=seconds)
    add("--total-hours", type=positive, default=24.0, metavar="N", help=hours)
    add("--threads", type=count, metavar="N", help="to compute with (default: PyTorch's)")
    return parser.parse_args(argv)


def positive(text: str) -> float:
    """Parse a number above 0."""
    if not 0 < float(text) <= MAX_LIMIT:  # also rejects NaN
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most {MAX_LIMIT:,}")
    return float(text)


def count(text: str) -> int:
    """Parse a number of threads."""
    if not text.isdecimal() or not 0 < int(text) <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 to {MAX_THREADS:,}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> None:
    """Check the contract, embed, search, write. Exits with code 1 if the submission breaks the contract.

    Raises UserError for a fault in the manifest, an image or an argument; OSError for a file.
    """
    args = parse_args(argv)
    check_paths(args)
    from scorer.process import Limits, ModelProcess

    forkserver.ensure_running()  # imports torch while the manifest is read
    from scorer import budget, report
    from scorer.contract import Checklist, verify
    from scorer.embedding import Progress, embed_images
    from scorer.manifest import read_manifest

    manifest = read_manifest(args.manifest, args.split, args.root)
    with args.submission.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    checklist = Checklist()
    about: dict[str, Any] = {
        "submission": {"sha256": digest, "bytes": args.submission.stat().st_size},
        "torch": version("torch"),
        "runtime": args.torch,
        "device": None,  # until a process embeds
        "limits": {},
    }
    memory_bytes, seconds = int(args.memory_gb * 2**30), args.total_hours * 3600
    limits = Limits(memory_bytes, args.threads, args.image_seconds, seconds)
    # Both next to the result, as the system's temporary folder may be too small
    unpacked = args.out.with_name(f".{args.out.stem}.saved_model.pt")
    unfinished = args.out.with_name(f".{args.out.stem}.embeddings.npz")
    try:
        verify(args.submission, unpacked, checklist, limits, args.torch)
        with checklist.check("every_image", stop=True), ModelProcess(unpacked, limits) as process:
            about |= {"torch": process.torch, "device": process.device_name}
            about["limits"] = {
                "memory": process.memory,
                "time_per_image": {"held": True, "how": f"{args.image_seconds:g} s"},
                "time": {"held": True, "how": f"{args.total_hours:g} h in total"},
            }
            process.call("load")
            estimate = budget.measured(process, manifest)
            if estimate["fits"] != "yes":
                print(f"WARNING budget: {budget.describe(estimate)}", file=sys.stderr)
            progress = Progress(unfinished, f"{digest} {process.torch} {process.device_name}")
            emb_ND, costs = embed_images(unpacked, process, manifest, progress)
    except Violation:
        report.write_json(args.out, checklist.result | about)
        faults = [f"VIOLATION {name}: {detail}" for name, detail in checklist.failed.items()]
        print(*faults, f"no score: {checklist.result['verdict']}", sep="\n")
        sys.exit(1)
    finally:
        unpacked.unlink(missing_ok=True)
    summary, neighbours = evaluate(manifest, emb_ND)
    score = {**summary, **costs, "budget": estimate, **checklist.result, **about}
    listed = args.out.with_suffix(".neighbours.csv")
    report.write_text(listed, neighbours.assign(submission=digest).to_csv(index=False))
    report.write_json(args.out, score)
    unfinished.unlink()
    print(f"{report.format_table(score)}\nwrote {args.out} and {listed}")


def check_paths(args: argparse.Namespace) -> None:
    """Raise UserError for a wrong path before hours are spent on the images; make the folder."""
    if args.out.suffix != ".json" or ":/" in str(args.out) or args.out.is_dir():
        raise UserError(f"--out {args.out}: must be the name of a .json file on a local disk")
    for path in (args.submission, args.manifest):
        if ":/" not in str(path) and not os.path.isfile(path):  # a manifest may be in a bucket
            raise UserError(f"{path}: no such file")
    args.out.parent.mkdir(parents=True, exist_ok=True)


def evaluate(manifest: Manifest, emb_ND: np.ndarray) -> tuple[dict[str, Any], pd.DataFrame]:
    """Search the merged index for every query; return the score and the table of neighbours."""
    from scorer import report
    from scorer.retrieval import judge, nearest, own_rows

    queries, index = manifest.part("query"), manifest.part("index")
    place = {image_path: i for i, image_path in enumerate(manifest.images)}
    query_QD, index_ND = (emb_ND[rows["image_path"].map(place)] for rows in (queries, index))
    rows_QK, distances_QK = nearest(query_QD, index_ND, own_rows(queries, index))
    judged, relevant_QK = judge(queries, index, rows_QK)
    table = report.neighbour_table(judged, index, rows_QK, distances_QK, relevant_QK)
    return report.summarise(judged), table


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:  # OSError: a full disk, a removed folder
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
