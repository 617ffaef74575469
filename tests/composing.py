"""Compositions of tiny runs, made by compose.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import compose
from guie.config.loading import to_yaml
from guie.config.model import BackboneConfig
from guie.models.backbones.open_clip import create_clip


def composition(out: Path, members: Sequence[Any], **keys: Any) -> Path:
    """`compose.py` on a config of these members and keys; the folder `out`, which it made."""
    members = [str(member) if isinstance(member, Path) else member for member in members]
    config = {"name": out.name, "out": str(out.parent), "members": members, "workers": 0, **keys}
    file = out.parent / f"{out.name}.yaml"
    file.write_text(to_yaml(config))
    return compose.main(["--config", str(file)])


def filled(value: Any, values: dict[str, Any]) -> Any:
    """A composition whose placeholders, at any depth, are replaced."""
    if isinstance(value, dict):
        return {key: filled(part, values) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, values) for part in value]
    return values.get(value, value) if isinstance(value, str) else value


def random_clip(folder: Path) -> str:
    """The name of a library's model, of random weights in this folder."""
    torch.manual_seed(0)
    clip = create_clip(BackboneConfig(library="open_clip", name="guie-tiny"))
    torch.save(clip.state_dict(), folder / "clip.pt")
    return f"open_clip:guie-tiny:{folder / 'clip.pt'}"


def record(folder: Path) -> dict[str, Any]:
    """How it was made."""
    return json.loads((folder / "record.json").read_text())["composition"]
