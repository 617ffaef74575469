"""Find or download pretrained weights as one local file, check them, and load them by path.

Only tensors are loaded: safetensors, or torch.load with `weights_only`.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import huggingface_hub
import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from torch import Tensor

from guie.base.errors import UserError, why_unreadable
from guie.base.files import replacing
from guie.base.network import ANSWER_S, answered, stream
from guie.config.model import SUFFIXES, BackboneConfig
from guie.models.backbones.base import BACKBONES

# A repository's pickled weights, and the usual name of the same weights as safetensors.
SAFE_NAMES = {
    "pytorch_model.bin": "model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_model.safetensors",
}


@dataclass(frozen=True)
class WeightsFile:
    """A weights file and its source: a hub repository at a commit, a URL, or a path."""

    file: Path
    source: str


def find_weights(config: BackboneConfig) -> WeightsFile | None:
    """Return the weights file of `pretrained`, downloaded if needed; None without `pretrained`.

    Raises UserError if there is no such file or tag, or the file's hash is not `sha256`.
    """
    if config.pretrained is None:
        return None
    if config.file:
        if config.tag:
            BACKBONES[config.library].hub_source(config)  # raises for an unknown tag
        weights = _local(config, Path(config.file))
    else:
        repository, name, url = BACKBONES[config.library].hub_source(config)
        if config.revision and not repository:
            where = f"{config.tag!r} is not on the hub, but at {url}"
            raise UserError(f"model.backbone.revision: {where}; remove it")
        weights = _from_hub(repository, name, config.revision) if repository else _from_url(url)
    if config.sha256 and not sha256_of(weights.file).startswith(config.sha256.lower()):
        raise UserError(
            f"model.backbone.sha256: {weights.file} has {sha256_of(weights.file)}, not"
            f" {config.sha256}; the file is damaged, or not the one the config was written for"
        )
    return weights


def weights_record(config: BackboneConfig) -> dict[str, str] | None:
    """Return a run's record of its pretrained weights: file name, sha256, source."""
    if not (weights := find_weights(config)):
        return None
    file = weights.file
    return {"file": file.name, "sha256": sha256_of(file), "from": weights.source}


def sha256_of(file: Path) -> str:
    """Return the hash of a file's content, cached until the file's size or time changes."""
    known = file.stat()
    return _hash(file, known.st_size, known.st_mtime_ns)


@lru_cache
def _hash(file: Path, size_bytes: int, modified_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def state_hash(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of weights and buffers with their names; it differs between trainings."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _local(config: BackboneConfig, file: Path) -> WeightsFile:
    if file.is_dir():
        raise UserError(
            f"model.backbone.pretrained: {file} is a folder; name a weights file, or set pretrained to null"
            " and start_from to a run"
        )
    if why := why_unreadable(file, "weights file"):
        raise UserError(f"model.backbone.pretrained: {why}")
    if file.suffix not in SUFFIXES:
        raise UserError(
            f"model.backbone.pretrained: {file}: not a weights file ({', '.join(SUFFIXES)});"
            " convert it to .safetensors"
        )
    if config.revision:
        why = "applies to a hub's file, but pretrained names a file"
        raise UserError(f"model.backbone.revision: {why}")
    return WeightsFile(file, str(file))


def _from_hub(repository: str, name: str, revision: str | None) -> WeightsFile:
    """Download a file from the hub, or use the cache; prefer safetensors."""
    safe = SAFE_NAMES.get(name, Path(name).with_suffix(".safetensors").name)
    absent = _no_answer(huggingface_hub.hf_hub_url(repository, safe, revision=revision))
    get = partial(huggingface_hub.hf_hub_download, revision=revision)
    try:
        try:
            file = get(repository, safe, local_files_only=bool(absent))
        except EntryNotFoundError as error:  # a second download would wait for the hub again
            local = isinstance(error, LocalEntryNotFoundError)
            file = get(repository, name, local_files_only=local)
    except Exception as error:  # network failure, hub failure, gated repository
        reason = absent or (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"model.backbone.pretrained: cannot download {repository}: {reason}; download it elsewhere"
            " and set pretrained: {tag: <tag>, file: <file>}"
        ) from error
    # The cache keeps a file as .../snapshots/<commit>/<name>.
    parts = Path(file).parts
    commit = parts[parts.index("snapshots") + 1] if "snapshots" in parts else revision or "main"
    return WeightsFile(Path(file), f"https://huggingface.co/{repository}/tree/{commit}")


@lru_cache
def _no_answer(url: str) -> str:
    """Return why the hub does not answer, which its client would retry for a minute; else nothing."""
    reason = ""
    for wait_s in (1, 0):  # a flaky network fails once
        try:
            # The client's own limit is longer, so that a silent hub is a TimeoutError
            answered(partial(huggingface_hub.get_hf_file_metadata, url, timeout=2 * ANSWER_S))
            return ""
        except HfHubHTTPError:  # an answer
            return ""
        except Exception as error:  # of the client's own library, or TimeoutError
            reason = f"{huggingface_hub.constants.ENDPOINT} does not answer ({error})"
            if isinstance(error, TimeoutError | OfflineModeIsEnabled):
                break
            time.sleep(wait_s)
    return reason


def _from_url(url: str) -> WeightsFile:
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    try:
        if not file.is_file():
            with replacing(file) as temporary:
                stream(url, temporary)
    except OSError as error:
        raise UserError(f"model.backbone.pretrained: cannot download {url}: {error}") from error
    return WeightsFile(file, url)
