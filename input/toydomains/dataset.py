"""Draw the toy data set to disk with many processes: its classes, views per class, and splits."""

import csv
import json
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np
from tqdm import tqdm

from toydomains.domains import DOMAINS, PARTS, generator, label, subject

VERSION = "5"  # raise it whenever a drawing changes, so that old folders are drawn again

# Images per domain in a benchmark of 6,000: six times more storefronts than dishes.
SHARES = {
    "storefronts": 1900, "packages": 1400, "apparel": 950, "cars": 650,
    "landmarks": 470, "illustrations": 330, "dishes": 300,
}  # fmt: skip
VIEWS = {
    "benchmark": (6, 14),
    "pretrain": (2, 6),
}  # min and max images a class, if there are enough
SHARE_HELD_OUT = {"benchmark": 0.45, "pretrain": 0.08}  # fraction of classes in test, and in val
SMALLEST = 4 * len(DOMAINS) * 2  # two classes in each split, two images each


class DrawingError(ValueError):
    """The requested data set cannot be drawn. The message is one line that names the reason."""


@dataclass(frozen=True)
class ClassPlan:
    """One class to draw: its numbers, and the role of each view."""

    seed: int
    part: str
    domain: str
    index: int
    split: str
    roles: tuple[str, ...]


def draw(
    folder: str | Path,
    *,
    images: int = 6000,
    seed: int = 0,
    part: str = "benchmark",
    workers: int | None = None,
) -> Path:
    """Draw the toy data set into a folder, unless it is there already.

    Args:
        folder: receives `images/`, `manifest.csv` and, last of all, `toy.json`.
        images: approximate number of images, at least 56.
        seed: another seed gives other classes.
        part: `benchmark` (train and test) or `pretrain` (train and val, with other classes).
        workers: number of processes; the pixels do not depend on it. Default: one per processor.

    Returns:
        The path of the manifest.

    Raises:
        DrawingError: the arguments are out of range, or the folder is a file.
        OSError: a file cannot be written; it names the file if the system reports it.
    """
    folder = Path(folder)
    if part not in PARTS:
        raise DrawingError(f"part: {part!r} is none of {', '.join(PARTS)}")
    if images < SMALLEST:
        raise DrawingError(f"images: {images} is too few; ask for at least {SMALLEST}")
    if seed < 0:
        raise DrawingError(f"seed: {seed} is negative; use 0 or more")
    if workers is not None and workers < 1:
        raise DrawingError(f"workers: {workers} is too few; use 1 or more")
    if folder.exists() and not folder.is_dir():
        raise DrawingError(f"{folder}: is a file; name a folder to draw the toy data set into")
    manifest, stamp = folder / "manifest.csv", folder / "toy.json"
    recipe = {"version": VERSION, "images": images, "seed": seed, "part": part}
    with suppress(OSError, ValueError):  # no stamp, or half of one
        if json.loads(stamp.read_text(encoding="utf-8")) == recipe and manifest.exists():
            return manifest
    if not stamp.exists() and (manifest.exists() or (folder / "images").exists()):
        raise DrawingError(f"{folder}: holds a manifest.csv or images that are not ours")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text("{}\n", encoding="utf-8")  # first: the folder is ours, but the set unfinished
    for old in (folder / "images").glob("*/*/[0-9][0-9].*g"):  # a user's pictures stay
        old.unlink()
    rows = _draw_all(folder, plan(images, seed, part), workers or os.cpu_count() or 1)
    with manifest.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    stamp.write_text(json.dumps(recipe, indent=2) + "\n", encoding="utf-8")
    return manifest


def plan(images: int, seed: int, part: str) -> list[ClassPlan]:
    """Return every class of a part and the roles of its views: a pure function of the arguments.

    A domain has at least four classes, of two views or more.
    """
    shares = SHARES if part == "benchmark" else dict.fromkeys(SHARES, 6000 / len(SHARES))
    plans = []
    for domain in DOMAINS:
        rng = generator(seed, part, f"{domain} plan")
        few, many = VIEWS[part]
        total = round(images * shares[domain] / 6000)
        classes = max(4, round(2 * total / (few + many)))
        total = max(total, 2 * classes)
        counts = rng.integers(few, many + 1, classes)
        while counts.sum() < total:
            counts[np.argmin(counts)] += 1
        while counts.sum() > total:
            counts[np.argmax(counts)] -= 1
        pairs = (len(counts) + 1) // 2
        held_out = np.zeros(pairs, bool)  # sisters stay together
        held_out[rng.permutation(pairs)[: max(1, round(SHARE_HELD_OUT[part] * pairs))]] = True
        for index, views in enumerate(counts.tolist()):
            split = ("test" if part == "benchmark" else "val") if held_out[index // 2] else "train"
            roles = ["train" if split == "train" else "both"] * views
            if domain == "illustrations" and split == "test":
                roles = [("query", "index")[view % 2] for view in range(views)]
            plans.append(ClassPlan(seed, part, domain, index, split, tuple(roles)))
    return plans


def _draw_all(folder: Path, plans: list[ClassPlan], workers: int) -> list[dict]:
    """Draw every class, in worker processes if `workers` is above 1; return the manifest's rows."""
    rows: list[dict] = []
    count, draw_one = sum(len(p.roles) for p in plans), partial(draw_class, folder)
    # Spawned, not forked: the caller may have threads (torch, BLAS) running.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=end_with_parent)
    try:
        with tqdm(total=count, desc="toy", unit="img") as bar:
            # Workers inherit what is blocked. A terminal sends them Ctrl-C too: they end in silence.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            drawn = map(draw_one, plans) if workers == 1 else pool.map(draw_one, plans)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for new in drawn:
                bar.update(len(new))
                rows += new
    finally:
        pool.shutdown(cancel_futures=True)
    return rows


def end_with_parent() -> None:
    """End this worker with the process that started it, also if that is killed: it would wait for work."""

    def wait() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()


def draw_class(folder: Path, p: ClassPlan) -> list[dict]:
    """Draw the views of one class into the folder, and return their manifest rows."""
    what = subject(p.seed, p.part, p.domain, p.index)
    key = label(what, p.part, p.domain, p.index)
    (folder / "images" / key).mkdir(parents=True, exist_ok=True)
    rows = []
    for i, role in enumerate(p.roles):
        rng = generator(p.seed, p.part, p.domain, p.index, 1 + i)
        view = what.view(rng, role)
        # Prints have flat colours, which PNG preserves; photographs are JPEG.
        path = f"images/{key}/{i:02d}.{'png' if role == 'index' else 'jpg'}"
        view.image.save(folder / path, quality=90)
        rows.append(
            {"image_path": path, "label": key, "domain": p.domain, "split": p.split, "role": role,
             "caption": what.caption(rng, view)}
        )  # fmt: skip
    return rows
