"""Keep what curation found out about each image, so that another mix or job need not decode it again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from guie.base.files import cache_folder, replacing
from guie.data.image_checks.decoding import (
    KEY,
    SAVE_EVERY_S,
    TYPES,
    Check,
    OpenImage,
    absolute,
    file_states,
    look_at_all,
)
from guie.data.images import decoder_key

THUMBNAIL = "thumbnail"  # stays on disk until it is asked for


class CheckCache:
    """The rows of a check, by path, size, modification time and decoder of the file, in `GUIE_CACHE`.

    What is computed goes to disk every minute as one more Parquet file, so jobs can run at the same time. Bad
    images are not kept: they are checked again until they are repaired.

    Args:
        root: the folder that all images of the mix are in.
    """

    def __init__(self, check: Check, root: str | Path):
        of_root = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]
        self.check, self.folder = check, cache_folder() / check.name / of_root
        self.columns = [name for name in check.columns if name != THUMBNAIL]
        self.text = dict.fromkeys(self.columns[2:], str)

    def rows(
        self, paths: Sequence[str], root: Path, open_image: OpenImage, workers: int, name: str
    ) -> pd.DataFrame:
        """Return the check's rows by path, without thumbnails; compute those that are not kept.

        `name` labels the progress bar. Raises UserError if the cache cannot be written.
        """
        # Before the files are opened, so that one that changes meanwhile is checked again next time.
        states = self._states(paths, root, open_image)
        kept = [name for name in self.columns if name != "reason"]
        known = pd.concat([pd.DataFrame(columns=[*KEY, *kept]), *self._read(kept)])
        known = known.astype(TYPES).drop_duplicates(KEY)
        found = states.merge(known, "left", on=KEY).set_axis(states.index)
        absent = found["width"].isna()
        new = self._compute(states[absent], root, open_image, workers, name)
        rows = pd.concat([found[~absent].assign(reason="")[self.columns], *new])
        return rows.loc[states.index].astype({"width": int, "height": int, **self.text})

    def thumbnails(
        self, paths: Sequence[str], root: Path, open_image: OpenImage
    ) -> dict[str, bytes]:
        """Return the kept thumbnails of those of the paths that have one."""
        states = self._states(paths, root, open_image)
        found = [*self._read([THUMBNAIL], states["file"].tolist())]
        if not found:
            return {}
        known = pd.concat(found).drop_duplicates(KEY)
        known = states.rename_axis("path").reset_index().merge(known, on=KEY)
        return dict(zip(known["path"], known[THUMBNAIL], strict=True))

    def _states(self, paths: Sequence[str], root: Path, open_image: OpenImage) -> pd.DataFrame:
        states = file_states(absolute(root, paths), decoder_key(open_image))
        return states.assign(version=self.check.version).set_axis(pd.Index(paths, dtype=object))

    def _read(self, columns: list[str], files: list[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield KEY and columns of each Parquet file, of some images or of all."""
        asked = None if files is None else [("file", "in", files)]
        for path in sorted(self.folder.glob("[0-9a-f]*.parquet")):
            with suppress(OSError, ValueError):  # deleted meanwhile, or damaged
                yield pd.read_parquet(path, columns=[*KEY, *columns], filters=asked)

    def _compute(
        self, states: pd.DataFrame, root: Path, open_image: OpenImage, workers: int, name: str
    ) -> list[pd.DataFrame]:
        """Return the rows of files that are not kept, in pieces of one minute, and keep the good ones."""
        paths = states.index.tolist()
        done: list[pd.DataFrame] = []
        piece: list[tuple[Any, ...]] = []
        began = time.monotonic()

        def keep() -> None:
            first = sum(map(len, done))
            here = states.index[first : first + len(piece)]
            rows = pd.DataFrame(piece, index=here, columns=list(self.check.columns))
            self._write(states.loc[here].join(rows)[rows["reason"] == ""].drop(columns="reason"))
            done.append(rows[self.columns])

        try:
            for row in look_at_all(paths, root, open_image, workers, name, self.check.look):
                piece.append(row)
                if time.monotonic() - began > SAVE_EVERY_S:
                    keep()
                    piece, began = [], time.monotonic()
        finally:  # after Ctrl-C too, so that the next run goes on from here
            keep()
        return done

    def _write(self, rows: pd.DataFrame) -> None:
        if rows.empty:
            return
        name = hashlib.sha256(rows[KEY].to_csv(index=False).encode()).hexdigest()
        with replacing(self.folder / f"{name}.parquet") as temporary:
            rows.to_parquet(temporary, index=False)
