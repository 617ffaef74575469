"""Training and validation show the same pictures, decoded as the manifest's sidecar states."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_configs import FROZEN

import train
from guie.base.errors import UserError
from guie.training.run_folder import METRICS_FILE, read_metrics
from tiny_runs import interrupted_after

STAGES = [
    {"name": "head", "epochs": 1, "cached_views": 1, "lr": FROZEN},
    {"name": "full", "epochs": 1, "lr": {"backbone": 1e-3, **FROZEN}},
]


def drawn(folder: Path, bits: int) -> Path:
    """A mix of six classes of grey patterns, for training and for val."""
    rng, rows = np.random.default_rng(0), ["image_path,label,domain,split,role"]
    folder.mkdir()
    for split, role in (("train", "train"), ("val", "both")):
        for label in range(6):
            pattern = np.kron(rng.integers(40, 216, (4, 4)), np.ones((8, 8), int))
            for n in range(6):
                grey = np.clip(pattern + rng.integers(-20, 20, (32, 32)), 0, 255).astype(np.uint8)
                pixels = grey if bits == 8 else grey.astype(np.uint16) * 257
                name = f"{split}{label}_{n}.png"
                Image.fromarray(pixels).save(folder / name)
                rows.append(f"{name},d/{split}{label},d,{split},{role}")
    path = folder / "m.csv"
    path.write_text("\n".join([*rows, ""]))
    return path


def test_the_decoder_of_the_sidecar_is_used_and_kept(
    written: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen bits train and score as the eight that they hold; another decoder is another run."""

    def trained(mix: Path, *words: str) -> list[dict]:
        """Return the numbers of metrics.jsonl; all runs share one cache of features."""
        command = written(f"out={tmp_path}", manifest=mix, root=mix.parent, stages=STAGES)
        run = train.main([*command, "--set", f"name={mix.parent.name}_run", *words])
        lines = read_metrics(run / METRICS_FILE)
        return [{k: v for k, v in line.items() if k.startswith(("loss", "val_"))} for line in lines]

    mix = drawn(tmp_path / "deep", 16)
    sidecar = mix.with_name("m.sidecar.yaml")
    with monkeypatch.context() as patched:
        interrupted_after(patched, 1)
        with pytest.raises(KeyboardInterrupt):
            trained(mix)
    sidecar.write_text("decode: host\n")
    with pytest.raises(UserError, match="the sidecar's decode changed"):
        trained(mix, "--resume")
    host = trained(mix, "--overwrite")
    sidecar.unlink()
    seen = trained(mix, "--overwrite")
    assert seen == trained(drawn(tmp_path / "eight", 8))
    assert any("val_r_at_1" in line for line in seen) and seen != host
    sidecar.write_text("decode: host\n")
    assert trained(mix, "--overwrite") == host  # from the cache
