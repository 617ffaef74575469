"""The sidecar: what a manifest's author declares of its domains, which the checks then allow."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from guie.base.errors import UserError
from guie.config.base import Config
from guie.config.reading import read_yaml


class DomainDeclaration(Config):
    """What a sidecar may declare of one domain."""

    shared_classes: bool = False
    index_is_train: bool = False


class Sidecar(Config):
    """`<manifest name>.sidecar.yaml`: declared overlaps, which the checks then allow."""

    domains: dict[str, DomainDeclaration] = {}


def sidecar_path(path: Path) -> Path:
    """`mix/manifest.csv` -> `mix/manifest.sidecar.yaml`."""
    return path.with_suffix(".sidecar.yaml")


def sidecars(path: Path) -> list[Path]:
    """Those that a manifest has: the one that counts stands first."""
    named, old = sidecar_path(path), path.with_suffix(".yaml")
    return [file for file in (named,) if file.is_file()] + [old] * _is_old_sidecar(old)


def read_sidecar(path: Path) -> Sidecar:
    """What the sidecar of the manifest `path` declares; nothing where there is none.

    Raises UserError for one that cannot be understood.
    """
    for file in sidecars(path)[:1]:
        try:
            return Sidecar.model_validate(read_yaml(file) or {})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "the file"
            raise UserError(
                f"{file}: declares what {path.name} may overlap in, and {key}: {first['msg']};"
                " it holds `domains: {<domain>: {shared_classes: true}}` or index_is_train"
            ) from None
    return Sidecar()


def _is_old_sidecar(file: Path) -> bool:
    """Named as until 2026-11, when a config of that name could stand in its place."""
    try:
        return file.is_file() and set(read_yaml(file)) == {"domains"}
    except (UserError, TypeError):
        return False
