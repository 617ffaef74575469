"""Embed the images of a manifest with a run, a submission, or any open_clip or timm model.

accelerate launch src/embed.py --model runs/demo --manifest input/mix_demo.csv --out E.npz
accelerate launch src/embed.py --model submissions/demo/submission.zip --manifest M --out E.npz
accelerate launch src/embed.py --model open_clip:ViT-B-32:openai --split test --manifest M --out E.npz
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from guie import errors
from guie.devices import make_accelerator
from guie.embedding import embed_files
from guie.errors import UserError
from guie.files import replacing, save_arrays
from guie.manifest import load_manifest
from guie.model import open_model
from scorer.archive import Violation, load, read_model_bytes


class Submission(nn.Module):
    """A submission's model as an embedder of raw images, one at a time."""

    def __init__(self, path: Path, device: torch.device):
        super().__init__()
        self.model = load(read_model_bytes(path), device)
        probe = torch.zeros(1, 3, 8, 8, dtype=torch.uint8, device=device)
        self.dim = self.model(probe)[0].numel()

    def forward(self, images_BCHW: Tensor, shapes_B3: Tensor | None = None) -> Tensor:
        """(1, 3, H, W) uint8 -> (1, D). It sees the image's shape itself."""
        return self.model(images_BCHW)[0].reshape(1, -1)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", required=True, help="run folder, submission.zip or LIBRARY:NAME:TAG"
    )
    parser.add_argument("--manifest", required=True, help="CSV or Parquet")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument("--split", help="train, val or test; default: every image of the manifest")
    parser.add_argument("--out", required=True, help="E.npz: arrays image_path and embedding")
    parser.add_argument("--size-px", type=int, help="image size of a library's model")
    parser.add_argument("--fit", choices=("squash", "pad", "crop"), default="squash")
    parser.add_argument("--batch-size", type=int, default=128, help="images per process and step")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Embed; returns the path written."""
    args = parse_args(argv)
    manifest = load_manifest(args.manifest, args.root)
    table = manifest.split(args.split) if args.split else manifest.table
    paths = table["image_path"].drop_duplicates().to_numpy(str)
    accelerator = make_accelerator()
    if args.model.endswith(".zip"):
        # Raw images differ in size: no preprocessing here, batches of one.
        embedder, preprocess, batch_size = _submission(args.model, accelerator), nn.Identity(), 1
    else:
        model = open_model(args.model, args.size_px, args.fit)
        embedder, preprocess = model.embedder.to(accelerator.device), model.preprocess
        batch_size = args.batch_size
    files = [manifest.file(path) for path in paths]
    emb_ND = embed_files(
        accelerator, embedder, preprocess, files, batch_size=batch_size, workers=args.workers
    )
    if accelerator.is_main_process:
        with replacing(args.out) as temporary:
            save_arrays(temporary, image_path=paths, embedding=emb_ND)
        print(f"{args.out}: {emb_ND.shape[0]} images, {emb_ND.shape[1]} dimensions")
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return Path(args.out)


def _submission(path: str, accelerator: Accelerator) -> Submission:
    try:
        return Submission(Path(path), accelerator.device).eval()
    except Violation as violation:
        raise UserError(f"{path}: {violation}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


if __name__ == "__main__":
    errors.run(main)
