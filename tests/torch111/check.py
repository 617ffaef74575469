"""Compare exported models in PyTorch 1.11 itself with current PyTorch.

    python tests/torch111/check.py --cache ~/.cache/guie/torch-1.11
    python tests/torch111/check.py --cache ... submissions/demo/submission.zip

It downloads the 1.11 wheel once (750 MB), compiles load.cpp against its libtorch, and compares the
scorer's operator list with the runtime's. Then it exports every architecture in architectures.py, in fp32
and in fp16, and every ensemble in compositions.py. It prints a table with the largest differences of
embeddings. With submissions, it compares those instead.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import compositions
import torch
from architectures import ARCHITECTURES, build
from compact import compact
from runtime import compiled, fetched, runtime_embeddings
from torch import Tensor, nn

from guie.data.preprocess import AnyPreprocess, Preprocess
from guie.export.operators import check_operators
from guie.export.parity import odd_sizes
from guie.export.torchscript import downgrade, package
from guie.models.opening import ExportModule
from scorer.runtime import OPERATORS

TOLERANCE = 1e-5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder outside the repository")
    parser.add_argument("submissions", type=Path, nargs="*", help="submission.zip")
    args = parser.parse_args()
    loader = compiled(fetched(args.cache.expanduser()))
    ours = OPERATORS.read_text()
    schemas = subprocess.run([loader, "--operators"], capture_output=True, text=True, check=True)
    failed = compact(schemas.stdout.splitlines()) != ours
    print(f"operator list {'DIFFERS from' if failed else 'equals'} that of the runtime")
    with tempfile.TemporaryDirectory(dir=args.cache.expanduser()) as folder:
        pairs = submitted(args.submissions, folder) if args.submissions else exported(folder)
        print("| model | image | weights | bytes | loads | largest difference |")
        print("|---|---|---|---|---|---|")
        for words, model, path, size_px in pairs:
            difference = compare(loader, model, path, size_px)
            failed |= not difference <= TOLERANCE
            loads = "yes" if difference < float("inf") else "NO"
            message = f"{difference:.1e}" + ("" if difference <= TOLERANCE else " FAIL")
            print(f"| {words} | {path.stat().st_size:,} | {loads} | {message} |", flush=True)
    sys.exit(int(failed))


def exported(folder: str) -> Iterator[tuple[str, nn.Module, Path, int]]:
    """Yield every architecture twice, and every ensemble: words, eager model, file, image side in px."""
    for name, fit in zip(ARCHITECTURES, cycle(("squash", "pad", "crop")), strict=False):
        encoder, size_px = build(name)
        preprocess = Preprocess(size_px, [0.5] * 3, [0.25] * 3, fit)
        for half in (False, True):  # which rounds the encoder's own weights, so it comes last
            path = written(encoder, preprocess, folder, half)
            words = f"{name} | {fit} | {'fp16' if half else 'fp32'}"
            yield words, ExportModule(preprocess, encoder), path, size_px
    for number, name in enumerate(compositions.KINDS):
        model, half = compositions.build(name), number % 2 > 0
        path = written(model.embedder, model.preprocess, folder, half)
        words = f"ensemble: {name} | its own | {'fp16' if half else 'fp32'}"
        yield words, model.scored, path, model.preprocess.size_px


def written(encoder: nn.Module, preprocess: AnyPreprocess, folder: str, half: bool) -> Path:
    """Export the model for 1.11; print what the operator check finds."""
    path = Path(folder, "saved_model.pt")
    package(encoder, preprocess, path, half)
    downgrade(path)
    for problem in check_operators(path):
        print(f"      {problem}")
    return path


def submitted(submissions: list[Path], folder: str) -> Iterator[tuple[str, nn.Module, Path, int]]:
    """Yield each submission: words, the model in current PyTorch, its file, an image side in px."""
    for submission in submissions:
        with zipfile.ZipFile(submission) as archive:
            path = Path(archive.extract("saved_model.pt", folder))
        yield f"{submission} | its own | its own", torch.jit.load(path).eval(), path, 224


def compare(loader: Path, model: nn.Module, path: Path, size_px: int) -> float:
    """Return the largest difference of embeddings over noise of odd sizes; infinite if 1.11 fails."""
    images = noise(size_px)
    return difference_to(answers(model, images), loader, path, images)


def noise(size_px: int) -> list[Tensor]:
    """Return uint8 images (H, W, 3) of odd sizes."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
        for height, width in odd_sizes(size_px)
    ]


def answers(model: nn.Module, images: list[Tensor]) -> Tensor:
    """Return the embeddings by current PyTorch, (N, D)."""
    with torch.inference_mode():
        return torch.cat([model(image.permute(2, 0, 1).unsqueeze(0)) for image in images])


def difference_to(expected_ND: Tensor, loader: Path, path: Path, images: list[Tensor]) -> float:
    """Return the largest difference to the embeddings by 1.11; infinite if it fails."""
    try:
        found_ND = runtime_embeddings(loader, path, images)
    except subprocess.CalledProcessError as error:
        print(error.stderr.strip().splitlines()[-1])
        return float("inf")
    return (expected_ND - found_ND).abs().max().item()


if __name__ == "__main__":
    main()
