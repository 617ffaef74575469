"""Cache the checks of images on disk, so that another mix or job need not decode them again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from guie.data.image_checks.decoding import (
    KEY,
    TYPES,
    Check,
    OpenImage,
    absolute,
    check_all,
    file_states,
)
from guie.data.image_checks.stored import StoredTable, save_in_pieces, stored_folder

THUMBNAIL = "thumbnail"  # stays on disk until it is needed


class CheckCache:
    """The rows of a check, by path, size, modification time and decoder of the file.

    Bad images are cached too, but `rows` checks them again: they may have been repaired.

    Args:
        root: the folder that all images of the mix are in.
    """

    def __init__(self, check: Check, root: str | Path):
        self.check, self.stored = check, StoredTable(stored_folder(check.name, root))
        self.columns = [name for name in check.columns if name != THUMBNAIL]
        self.text = dict.fromkeys(self.columns[2:], str)

    def rows(
        self,
        paths: Sequence[str],
        root: Path,
        open_image: OpenImage,
        workers: int,
        name: str,
        states: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Return the check's rows by path, without thumbnails; compute those that are not cached.

        Args:
            name: of the progress bar.
            states: `file_states` of the paths, taken before; None: they are read here.

        Raises UserError if the cache cannot be written.
        """
        # Before the files are opened, so that one that changes meanwhile is checked again next time.
        states = (
            self._states(paths, root, open_image) if states is None else self._own(states, paths)
        )
        known = self._known(states)
        known = known[known["reason"] == ""]
        absent = states[~states.index.isin(known.index)]
        checked = [known]

        def save(piece: list[tuple[Any, ...]]) -> None:
            first = sum(map(len, checked)) - len(known)
            here = absent.index[first : first + len(piece)]
            rows = pd.DataFrame(piece, index=here, columns=list(self.check.columns))
            full = absent.loc[here].join(rows)
            # A file that appeared only now would count as good whenever it is missing again
            self.stored.add(full[(full["size_bytes"] >= 0) | (full["reason"] != "")])
            checked.append(rows[self.columns])

        paths = absent.index.tolist()
        save_in_pieces(
            check_all(paths, root, open_image, workers, name, self.check.check_image), save
        )
        rows = pd.concat(checked).loc[states.index]
        return rows.astype({"width": int, "height": int, **self.text})

    def are_cached(self, paths: Sequence[str], root: Path, open_image: OpenImage) -> bool:
        """Return whether all images were checked since they changed."""
        return len(self._known(self._states(paths, root, open_image))) == len(paths)

    def thumbnails(
        self, paths: Sequence[str], root: Path, open_image: OpenImage
    ) -> dict[str, bytes]:
        """Return the cached thumbnails, of those paths that have one."""
        states = self._states(paths, root, open_image)
        found = [*self.stored.read([*KEY, THUMBNAIL], states["file"].tolist())]
        if not found:
            return {}
        known = pd.concat(found)
        known = known[known[THUMBNAIL] != b""].drop_duplicates(KEY)
        known = states.rename_axis("path").reset_index().merge(known, on=KEY)
        return dict(zip(known["path"], known[THUMBNAIL], strict=True))

    def _states(self, paths: Sequence[str], root: Path, open_image: OpenImage) -> pd.DataFrame:
        return self._own(file_states(absolute(root, paths), open_image.__name__), paths)

    def _own(self, states: pd.DataFrame, paths: Sequence[str]) -> pd.DataFrame:
        return states.assign(version=self.check.version).set_axis(pd.Index(paths, dtype=object))

    def _known(self, states: pd.DataFrame) -> pd.DataFrame:
        columns = [*KEY, *self.columns]
        found = pd.concat([pd.DataFrame(columns=columns), *self.stored.read(columns)])
        good = found["reason"] == ""  # a file may have been bad at first
        found = pd.concat([found[good], found[~good]]).astype(TYPES).drop_duplicates(KEY)
        found = states.merge(found, "left", on=KEY).set_axis(states.index)
        return found.loc[found["reason"].notna(), self.columns]
