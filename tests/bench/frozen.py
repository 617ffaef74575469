"""How fast train.py trains a frozen stage from cached features, against running the backbone.

python tests/bench/frozen.py [--images 512]

Draws JPEGs as heavy as photographs into a temporary folder, each of a class of its own. A ViT-Ti/16 of random
weights at 112 px, batches of 256, two views an image, two loader processes. Prints images per second of the
steps; computing the features, once a stage, is not in them.
"""

import tempfile
import time
from pathlib import Path
from unittest import mock

import pandas as pd
from common import arguments, in_own_process, photographs, show, timm_model

import train
from guie.config.loading import to_yaml
from guie.training import loop

BATCH, VIEWS, SIZE_PX, WARM_UP = 256, 2, 112, 1
STEPS = {"through the backbone": 5, "from cached features": 200}


def images_per_second(folder: Path, images: int, way: str) -> float:
    """Of a training, without its first steps."""
    cached, steps = way == "from cached features", STEPS[way]
    config = {
        "name": "frozen",
        "out": str(folder),
        "data": {"manifest": str(folder / "mix.csv"), "workers": 2},
        "model": timm_model("vit_tiny_patch16_224", SIZE_PX),
        "train": {
            "epochs": (steps + 1) * BATCH / images,
            "batch_size": BATCH,
            "cached_views": VIEWS if cached else None,
            "lr": {"head": 1e-3, "classes": 1e-2},
            "augment": {"flip": 0.5, "color": 0.2},
        },
    }
    path = folder / "timed.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    begun, train_mode = [], loop.train_mode

    def timed(*given: object) -> None:
        begun.append(time.perf_counter())
        train_mode(*given)

    with mock.patch.object(loop, "train_mode", timed):
        train.main(["--config", str(path), "--overwrite"])
    return (steps - WARM_UP - 1) * BATCH / (begun[steps - 1] - begun[WARM_UP])


def main() -> None:
    args = arguments(__doc__, images=512)
    with tempfile.TemporaryDirectory() as name, mock.patch.dict("os.environ", GUIE_CACHE=name):
        folder = Path(name)
        names = [file.name for file in photographs(folder, args.images, 375)]
        rows = pd.DataFrame({"image_path": names, "domain": "d", "split": "train", "role": "train"})
        rows["label"] = [f"d/{number:06d}" for number in range(args.images)]
        rows.to_csv(folder / "mix.csv", index=False)
        rates = {way: in_own_process(images_per_second, folder, args.images, way) for way in STEPS}
    slow = rates["through the backbone"]
    show(["", "images/s", "ratio"], ((way, rate, rate / slow) for way, rate in rates.items()))


if __name__ == "__main__":
    main()
