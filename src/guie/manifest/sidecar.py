"""The sidecar: what a manifest's author declares of its domains, which the checks then allow."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from guie.config.base import Config, read_yaml
from guie.errors import UserError


class DomainDeclaration(Config):
    """What a sidecar may declare of one domain."""

    shared_classes: bool = False
    index_is_train: bool = False


class Sidecar(Config):
    """`<manifest name>.yaml`: declared overlaps, which the checks then allow."""

    domains: dict[str, DomainDeclaration] = {}


def sidecar_path(path: Path) -> Path:
    """`mix/manifest.csv` -> `mix/manifest.yaml`."""
    return path.with_suffix(".yaml")


def read_sidecar(path: Path) -> Sidecar:
    """What the sidecar of the manifest `path` declares; nothing where there is none."""
    beside = sidecar_path(path)
    if not beside.is_file():
        return Sidecar()
    try:
        return Sidecar.model_validate(read_yaml(beside) or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{beside}: stands where {path.name} has its sidecar, and is none ({key}:"
            f" {first['msg']}); mend it or rename one of them"
        ) from None
