"""A folder of small pictures: stripes by class, each a little different."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from PIL import Image

from guie.evaluation.opened import EmbeddingModel, load_embedding_model
from guie.rows.pictures import pictures_of
from guie.search.table import Facts, Index
from guie.search.updating import update

SEARCH = Path(__file__).parents[1] / "src/search.py"


def picture(kind: int, number: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """Stripes of a colour and width that a class has, with noise of its own."""
    rng = np.random.default_rng([kind, number])
    color = np.random.default_rng(kind).integers(40, 216, 3)
    width, height = size
    stripes = (np.arange(width) // (2 + kind % 5) % 2)[None, :, None] * color
    noise = rng.integers(-12, 13, (height, width, 3))
    return Image.fromarray(np.clip(stripes + 20 + noise, 0, 255).astype(np.uint8))


def folder_of(place: Path, classes: int = 6, each: int = 5) -> Path:
    """`<domain>/<class>_<n>.png`, two domains, and `m.csv` with labels."""
    rows = []
    for kind in range(classes):
        for number in range(each):
            path = Path("left" if kind % 2 else "right", f"{kind}_{number}.png")
            (place / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
            picture(kind, number).save(place / "pictures" / path)
            domain = path.parts[0]
            rows.append((f"pictures/{path}", f"{domain}/{kind}", domain, "test", "both"))
    names = ["image_path", "label", "domain", "split", "role"]
    pd.DataFrame(rows, columns=names).to_csv(place / "m.csv", index=False)
    return place / "pictures"


def opened(run: Path, folder: Path) -> EmbeddingModel:
    return load_embedding_model(str(run), Accelerator(), folder)


def indexed(run: Path, source: Path, out: Path, fewer: bool = False, **keys) -> tuple[Index, str]:
    """An index of a source by a run, and what has changed."""
    found = pictures_of(source)
    facts = Facts(str(run), str(source), str(found.root), **keys)
    store = out.with_name(f"{out.name}.rows")
    given = opened(run, out.parent), facts, found, Accelerator()
    words, _ = update(out, store, *given, workers=0, fewer=fewer)
    return Index(out), words


@contextmanager
def served(index: Path, *words: str) -> Iterator[tuple[str, int]]:
    """The address and port of the page of an index, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = ["serve", "--index", str(index), "--port", str(port), *words]
    with subprocess.Popen(
        [sys.executable, str(SEARCH), *given], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout and "Ctrl-C stops it" in process.stdout.readline()
            yield f"http://127.0.0.1:{port}/", port
        finally:
            process.terminate()
