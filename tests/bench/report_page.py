"""The page of a report of 100,000 queries: its size, the seconds to write it, and to open it.

python tests/bench/report_page.py [--queries 100000] [--models 2] [--keep PAGE.html]

Synthetic: ten domains, classes of ten, 64-D vectors around centres of classes and domains; pictures of
600 x 400 px drawn of noise and shapes, 2,000 files for all rows together (as many as a page ever opens,
and more than it keeps). The page is opened by Chromium where `make browser` has put its driver.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from common import arguments, peak_gb, seconds_of, show
from PIL import Image
from tqdm import tqdm

from guie.evaluation.protocols.catalogue import protocol_of
from guie.evaluation.protocols.evaluating import run_models
from guie.report.pages.evaluation import write_evaluation

DOMAINS, CLASS_SIZE, DIM, FILES = 10, 10, 64, 2_000
SPREAD = 1.1  # of a class about its centre, against 1 of the centres: R@1 near .8


def table_of(queries: int, root: Path) -> pd.DataFrame:
    """Rows of a test split; rows share picture files by hard links, a name each."""
    files = [root / f"{number}.jpg" for number in range(FILES)]
    for number, file in enumerate(tqdm(files, "pictures")):
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (8, 12, 3)).astype(np.uint8)
        Image.fromarray(coarse).resize((600, 400), Image.Resampling.BICUBIC).save(file, quality=90)
    row = np.arange(queries)
    domain = np.array([f"domain_{number}" for number in range(DOMAINS)])[row % DOMAINS]
    label = [
        f"{d}/class_{i:05d}" for d, i in zip(domain, row // (DOMAINS * CLASS_SIZE), strict=True)
    ]
    names = []
    for number in row:
        name = f"row_{number}.jpg"
        (root / name).hardlink_to(files[number % FILES])
        names.append(name)
    return pd.DataFrame({"image_path": names, "label": label, "domain": domain, "role": "both"})


def embedded(table: pd.DataFrame, seed: int) -> np.ndarray:
    """Vectors [T, DIM] about centres of classes, which lie about centres of domains."""
    rng = np.random.default_rng(seed)
    classes, names = pd.factorize(table["label"])
    of_class = pd.factorize(pd.Series(names).str.partition("/")[0])[0]
    centre_CD = rng.normal(size=(DOMAINS, DIM))[of_class] + rng.normal(size=(len(names), DIM))
    noise_TD = rng.normal(size=(len(table), DIM))
    return (centre_CD[classes] + SPREAD * noise_TD).astype(np.float32)


def opened(page: Path) -> tuple[float | str, float | str]:
    """Seconds until the page is loaded and laid out, and until a table is sorted."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None or find_spec("playwright") is None:
        return "no browser", "no browser"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, chromium_sandbox=os.geteuid() != 0
        )
        seconds = []
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            begun = time.perf_counter()
            tab.goto(page.as_uri())
            tab.evaluate("document.body.offsetHeight")
            seconds.append(time.perf_counter() - begun)
            sorted_in = seconds_of(tab.locator("#classes table thead button").first.click)
            tab.close()
        browser.close()
    return float(np.median(seconds)), sorted_in


def main() -> None:
    args = arguments(__doc__, queries=100_000, models=2, draws=2000, keep=Path | None)
    protocol = protocol_of("merged")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        table = table_of(args.queries, root)
        models = {f"model_{seed}": embedded(table, seed) for seed in range(args.models)}
        begun = time.perf_counter()
        reports, _ = run_models(
            [protocol], models, table, draws=args.draws, draws_of_others=args.draws
        )
        scored = time.perf_counter() - begun
        print(f"R@1 {reports['model_0'][0]['headline']['R@1']:.3f}, {args.queries:,} queries")
        print(f"scored with intervals, {args.models} models: {scored:.1f} s")
        rows = []
        for name, pictures in (("with pictures", root), ("--no-images", None)):
            page = (args.keep or root / "page.html").with_stem(f"page_{name[:4].strip('-')}")
            wrote = seconds_of(
                partial(write_evaluation, page, models, reports, [protocol], table, pictures)
            )
            rows.append((name, page.stat().st_size / 1e6, wrote, *opened(page), peak_gb()))
        heads = ["page", "MB", "written, s", "opened, s", "a table of classes sorted, s", "peak GB"]
        show(heads, rows)


if __name__ == "__main__":
    main()
