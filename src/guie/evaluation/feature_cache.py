"""Features of images under a model: computed once by all processes, kept on disk in verified shards."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from PIL import Image
from pydantic import BaseModel
from torch import Tensor, nn

from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.base.files import replacing, write_json
from guie.config.data import CleaningConfig
from guie.data.dataset import EvalDataset, as_batch
from guie.data.image_checks.boxes import Box
from guie.data.image_checks.comparison import VIEWS
from guie.data.image_checks.decoding import KEY, TYPES, absolute, file_states
from guie.data.image_checks.hashes import thumbnails
from guie.data.images import decoder_key, open_as_host
from guie.evaluation.embedding import Embeds, embed_blocks
from guie.models import LoadedModel, open_model
from guie.models.pretrained import state_hash
from guie.models.views import AnyPreprocess

INDEX_TYPES = {**TYPES, "shard": str, "row": int}
# A shard's files, and what a killed process leaves of a file (see `replacing`)
OWN_FILE = re.compile(r"[0-9a-f]{64}\.(npy|parquet)|\.([0-9a-f]{64}|model)\.\d+\.tmp\.\w+")

logger = logging.getLogger(__name__)


class Features:
    """(N, D) rows over several shards; `features[rows]` reads those rows, as float32.

    What computes with them wants float32, and what is on disk need not all be in memory: shards are
    mapped, once each, so processes of one machine share what the system keeps of them.
    """

    def __init__(self, shards: Sequence[Path], shard_N: np.ndarray, row_N: np.ndarray, dim: int):
        self._shards, self._shard_N, self._row_N = shards, shard_N, row_N
        self._mapped = lru_cache(maxsize=None)(self._map)
        self.shape, self.ndim, self.dtype = (len(row_N), dim), 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        shard_N, row_N = self._shard_N[rows], self._row_N[rows]
        shape, shard_N, row_N = np.shape(row_N), np.reshape(shard_N, -1), np.reshape(row_N, -1)
        found_ND = np.empty((len(row_N), self.shape[1]), np.float32)
        order = np.argsort(shard_N, kind="stable")
        numbers, first = np.unique(shard_N[order], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(order, first)[1:], strict=True):
            found_ND[here] = self._mapped(number)[row_N[here]]
        return found_ND.reshape(*shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)

    def _map(self, number: int) -> np.ndarray:
        return np.asarray(np.load(self._shards[number], mmap_mode="r"))


class FeatureCache:
    """The shards of one key.

    Args:
        folder: where caches of all keys lie.
        recipe: all that a feature depends on but the file: model, preprocessing, view.
        dtype: what rows are kept as; float16 halves the disk they take.
    """

    def __init__(
        self, folder: str | Path, recipe: dict[str, Any], dtype: type[np.floating] = np.float16
    ):
        self.folder = Path(folder) / _key(recipe)
        self.recipe, self.dtype = recipe, np.dtype(dtype)

    def missing(self, states: pd.DataFrame) -> np.ndarray:
        """Positions in `states` whose features are yet to be computed, each file once.

        Every shard that has some of the others is verified; a damaged one is said and removed.
        """
        index = self._index()
        used = set(states.merge(index, on=KEY)["shard"])
        for name in sorted(used):
            if not self._is_whole(name):
                self._forget(name)
                index = index[index["shard"] != name]
        place = states.merge(index, "left", on=KEY)["shard"]
        absent = states.reset_index(drop=True)[place.isna()].drop_duplicates("file")
        return absent.index.to_numpy()

    def begin(self) -> None:
        """Write down what the features are of. Raises UserError where nothing can be written."""
        if not (self.folder / "model.json").exists():
            write_json(self.folder / "model.json", self.recipe)

    def add(self, states: pd.DataFrame, features_ND: np.ndarray) -> None:
        """Write one shard. Raises UserError if it cannot be written, or the dtype cannot hold it."""
        reach, most = np.abs(features_ND).max(axis=1), float(np.finfo(self.dtype).max)
        if not (reach <= most).all():  # NaN is not either
            worst = int(np.argmin(reach <= most))
            raise UserError(
                f"{states['file'].iloc[worst]}: a feature of it is {reach[worst]:,.0f}; features are"
                f" kept as {self.dtype}, which ends at {most:,.0f}, so this model's cannot be"
            )
        rows_ND = np.ascontiguousarray(features_ND, self.dtype)
        name = _shard_hash(states, rows_ND)
        with replacing(self._file(name)) as temporary:
            np.save(temporary, rows_ND)
        # Last: a shard without it does not count.
        with replacing(self._file(name, "parquet")) as temporary:
            states.reset_index(drop=True).to_parquet(temporary, index=False)

    def open(self, states: pd.DataFrame, dim: int) -> Features:
        """The features of files that are all there."""
        index = self._index()
        found = states.merge(index, "left", on=KEY)
        names, shards = pd.factorize(found["shard"])
        files = [self._file(name) for name in shards]
        return Features(files, names, found["row"].to_numpy(np.int64), dim)

    def _index(self) -> pd.DataFrame:
        """The KEY of every file that has features, their shard, and their row in it."""
        tables = [pd.DataFrame(columns=list(INDEX_TYPES)).astype(INDEX_TYPES)]
        for path in sorted(self.folder.glob("[0-9a-f]*.parquet")):
            try:
                states = pd.read_parquet(path, columns=KEY)
            except (OSError, ValueError):
                self._forget(path.stem)
                continue
            tables.append(states.assign(shard=path.stem, row=np.arange(len(states))))
        index = pd.concat(tables, ignore_index=True).astype(INDEX_TYPES)
        return index.drop_duplicates(KEY)

    def _is_whole(self, name: str) -> bool:
        try:
            rows_ND = np.load(self._file(name))
            states = pd.read_parquet(self._file(name, "parquet"), columns=KEY)
        except (OSError, ValueError, EOFError):
            return False
        return _shard_hash(states, rows_ND) == name

    def _forget(self, name: str) -> None:
        logger.warning(f"{self._file(name)}: damaged; its images are computed again")
        self._file(name, "parquet").unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str, suffix: str = "npy") -> Path:
        return self.folder / f"{name}.{suffix}"


def caches_in(folder: Path) -> list[Path]:
    """The caches of any key in a folder, each proved by its `model.json`; never a link's."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if not path.is_symlink() and _is_cache(path)]


def remove_caches(folder: Path) -> None:
    """Delete the caches of any key in a folder, and the folder if nothing else lies in it."""
    for cache in caches_in(folder):
        for path in cache.iterdir():
            if OWN_FILE.fullmatch(path.name):
                path.unlink()
        (cache / "model.json").unlink()  # last: until then the proof is there
        with suppress(OSError):  # somebody else's files lie in it
            cache.rmdir()
    with suppress(OSError):
        folder.rmdir()


def _is_cache(folder: Path) -> bool:
    """Does its name follow from the recipe in it?"""
    try:
        recipe = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return folder.name == _key(recipe)


def _key(recipe: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def _shard_hash(states: pd.DataFrame, rows_ND: np.ndarray) -> str:
    """SHA-256 of what the rows are of, and the rows."""
    files = states[KEY].to_csv(index=False, header=False)
    return hashlib.sha256(files.encode() + rows_ND.tobytes()).hexdigest()


DECODER = decoder_key(open_as_host)  # of EvalDataset, if by no other


class Embedding(Embeds, Protocol):
    """One whose embeddings can be kept: by its weights they are known."""

    cache_key: str

    def to(self, device: torch.device) -> Any: ...

    def state_dict(self) -> Mapping[str, Tensor]: ...


class Model(Protocol):
    """What features are computed by and known by: of a `LoadedModel`, or of a stage's tower."""

    @property
    def embedder(self) -> Embedding: ...

    @property
    def preprocess(self) -> AnyPreprocess: ...

    @property
    def config(self) -> BaseModel: ...


class Viewed(nn.Module):
    """A preprocessing behind a view: what it sees of a picture first."""

    def __init__(self, view: Callable[[Image.Image], Image.Image], preprocess: nn.Module):
        super().__init__()
        self.view, self.preprocess = view, preprocess

    def forward(self, images_1CHW: Tensor) -> Tensor:
        """(1, 3, H, W) uint8 -> as `preprocess`."""
        image = Image.fromarray(images_1CHW[0].permute(1, 2, 0).numpy())
        return self.preprocess(as_batch(np.asarray(self.view(image))))


# Paths and the name of a view -> (N, D) features of unit length.
Embed = Callable[[Sequence[str], str], np.ndarray | Features]


def cached_features(
    accelerator: Accelerator,
    model: Model,
    paths: Sequence[str],
    root: str | Path,
    folder: str | Path,
    *,
    view: str = "whole",
    **settings: Any,
) -> Features:
    """Features of `root / path` for each path, computed where the cache has none.

    Every process must call it, with the same paths, and gets all rows; the main one alone writes,
    to a folder that all can read.

    Args:
        view: `whole`, or a name of `guie.data.looks.views.VIEWS`.
        settings: of `embed_blocks`.

    Raises:
        UserError: an image cannot be read, or the cache cannot be written.
    """
    model.embedder.to(accelerator.device)
    preprocess = model.preprocess if view == "whole" else Viewed(VIEWS[view], model.preprocess)
    cache = FeatureCache(folder, recipe(model, accelerator.mixed_precision) | {"view": view})
    files, title = absolute(root, paths), f"features ({view})"
    made_by = (accelerator, model.embedder, preprocess)
    states = embed_into(cache, *made_by, files, title=title, **settings)
    return cache.open(states, model.embedder.dim)


def embed_into(
    cache: FeatureCache,
    accelerator: Accelerator,
    embedder: Embeds,
    preprocess: Callable[[Tensor], Tensor],
    files: Sequence[str],
    boxes: Sequence[Box | None] | None = None,
    open_image: Callable[[Path], Image.Image] = open_as_host,
    **settings: Any,
) -> pd.DataFrame:
    """Compute what the cache has none of, in all processes; returns what `FeatureCache.open` takes.

    Args:
        boxes: what each image is cropped to, None for the whole; the cache keeps them apart.
        open_image: how they are decoded; the cache keeps that apart too.
        settings: of `embed_blocks`.

    Raises UserError as `cached_features`.
    """
    boxes = boxes or [None] * len(files)
    decoder = decoder_key(open_image)
    states = from_main(accelerator, lambda: readable_states(files, decoder))
    decoders = [f"{decoder} {tuple(box)}" if box else decoder for box in boxes]
    states = states.assign(decoder=pd.Series(decoders, states.index, dtype=str))
    missing = from_main(accelerator, lambda: cache.missing(states))
    wanted, crops = [Path(files[row]) for row in missing], [boxes[row] for row in missing]
    dataset = EvalDataset(wanted, preprocess, crops, open_image)
    blocks = embed_blocks(accelerator, embedder, dataset, **settings)
    fill(accelerator, cache, states, missing, blocks)
    return states


def fill(
    accelerator: Accelerator,
    cache: FeatureCache,
    states: pd.DataFrame,
    missing: np.ndarray,
    blocks: Iterable[np.ndarray],
) -> None:
    """Keep what was missing, block by block: what a killed run computes again at the most.

    Args:
        states, missing: what `FeatureCache.missing` takes and gives.
        blocks: features of what is missing, in its order, in every process alike.
    """
    if len(missing):  # where no file can be written, that is known before hours of computing
        from_main(accelerator, cache.begin)
    done = 0
    for features_ND in blocks:
        rows = missing[done : done + len(features_ND)]
        from_main(accelerator, partial(cache.add, states.iloc[rows], features_ND))
        done += len(rows)


def embed_for(config: CleaningConfig, root: Path, folder: Path, workers: int) -> Embed:
    """The features that cleaning compares by: cached ones of its model, or thumbnails.

    The model is opened when features are first asked for: most mixes have no near-duplicates to
    confirm. Raises UserError where there is no such model.
    """
    word = config.model
    if word is None:
        return partial(thumbnails, root=root, workers=workers)

    @lru_cache(maxsize=1)
    def opened() -> tuple[Accelerator, LoadedModel]:
        return make_accelerator(), open_model(word, config.size_px)

    return lambda paths, view: cached_features(
        *opened(), paths, root, folder, workers=workers, view=view
    )


def recipe(model: Model, mixed_precision: str) -> dict[str, Any]:
    """What a feature depends on but the image: architecture, weights, preprocessing, precision."""
    return {
        "gives": model.embedder.cache_key,  # a headless Embedder has the weights of a Tower
        "model": model.config.model_dump(mode="json"),
        "weights_sha256": state_hash(model.embedder.state_dict()),
        "preprocess": model.preprocess.recipe(),
        "mixed_precision": mixed_precision,
    }


def readable_states(files: Sequence[str], decoder: str) -> pd.DataFrame:
    """`file_states`. Raises UserError where a file cannot be read."""
    states = file_states(files, decoder)
    absent = states.loc[states["size_bytes"] < 0, "file"]
    if len(absent):
        raise UserError(
            f"{absent.iloc[0]}: no such image, or no permission to read it ({len(absent):,} of"
            f" {len(files):,}); is the root the folder that image_path starts from?"
        )
    return states
