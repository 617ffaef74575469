"""Check a manifest's table: report all errors by row at once, and what is legal but unusual."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from guie.base.files import CONTROL
from guie.data.manifest.reading import ROLES, Fault, Sidecar, one_class_each
from guie.data.names import alike, difference

WEIGHTS = (1e-9, 1000)  # of an image; the length of an epoch is their sum, and must fit into memory


def notes(table: pd.DataFrame) -> Iterator[list[Fault]]:
    """Yield, for each kind of note, a list of (row, message) for legal but unusual rows."""
    for split in ("val", "test"):
        alone = queries_without_positive(table[table["split"] == split])
        yield [
            (row, f"{split} query without a positive in the index; metrics leave it out")
            for row in alone.index[alone]
        ]
    yield list(_foreign_prefixes(table))
    yield list(_alike(table))


def queries_without_positive(rows: pd.DataFrame) -> pd.Series:
    """Return a boolean per query row of one split: no other index image shares a label with it."""
    rows = rows[["image_path", "label", "role"]]
    queries = rows[rows["role"].isin(("query", "both"))]
    index = one_class_each(rows[rows["role"].isin(("index", "both"))])
    index = index[["label", "image_path"]].drop_duplicates()
    images = index["label"].value_counts().to_dict()
    searched = one_class_each(queries).rename_axis(index="row").reset_index()
    itself = searched.merge(index, "left", on=["label", "image_path"], indicator="itself")["itself"]
    others = searched["label"].map(images).fillna(0).astype(int) - (itself == "both").astype(int)
    positive = (others > 0).groupby(searched["row"]).any()
    return ~positive.reindex(queries.index).astype(bool)


def _foreign_prefixes(table: pd.DataFrame) -> Iterator[Fault]:
    """Yield (row, message) for labels `x/class` outside domain x; the convention is `domain/class`."""
    labels = table[["label", "domain"]].drop_duplicates()
    classes = one_class_each(labels)
    prefix = classes["label"].str.partition("/")[0]
    odd = classes[classes["label"].str.contains("/", regex=False) & (prefix != classes["domain"])]
    if odd.empty:
        return
    strange = labels.loc[odd.index.unique()]
    rows = table.reset_index(names="row").merge(strange, on=["label", "domain"])
    for row, label, domain in zip(rows["row"], rows["label"], rows["domain"], strict=True):
        yield row, f"label {label!r} in domain {domain!r}; by convention a label is domain/class"


def _alike(table: pd.DataFrame) -> Iterator[Fault]:
    """Yield (row, message) for two labels that look the same, at the first row of the second."""
    classes = one_class_each(table[["label"]].drop_duplicates())["label"]
    rows = dict(zip(classes[::-1], classes.index[::-1], strict=True))  # the first row of each
    for first, second in alike(rows):
        yield rows[second], f"the classes {difference(first, second)}, and are not one class"


def check(
    table: pd.DataFrame,
    sidecar: Sidecar,
    places: Sequence[int] | np.ndarray | None = None,
    unit: str = "line",
) -> list[Fault]:
    """Return (place, message) of every error of a table of texts, indexed from 0; sorted by place.

    Args:
        sidecar: the declared, and so allowed, overlaps.
        places: place of each row in its file; default: its line in a CSV without blank lines.
        unit: name of a place ("line" or "row") in messages that point to another row.
    """
    places = range(2, len(table) + 2) if places is None else places
    faults = [*_row_faults(table), *_label_faults(table), *_overlap_faults(table, sidecar)]
    located = [(int(places[row]), what) for row, what in faults]
    for row, first, how in _repeat_faults(table, sidecar):
        what = f"image {table['image_path'][row]!r} is already in {unit} {places[first]}; {how}"
        located.append((int(places[row]), what))
    return sorted(located)


def _row_faults(table: pd.DataFrame) -> Iterator[Fault]:
    """Yield (row, message) for errors within a single row."""
    for column in ("image_path", "domain"):
        for row in table.index[table[column].str.strip() == ""]:
            yield row, f"{column} is empty"
    for row in table.index[~table["split"].isin(ROLES)]:
        yield row, f"split {table['split'][row]!r}: allowed are {', '.join(ROLES)}"
    for split, roles in ROLES.items():
        rows = table[table["split"] == split]
        for row in rows.index[~rows["role"].isin(roles)]:
            yield row, f"role {rows['role'][row]!r} in {split}: allowed are {', '.join(roles)}"
    parts = table["image_path"].str.replace("\\", "/", regex=False)
    outside = parts.str.match(r"^(?:/|[A-Za-z]:)") | parts.str.contains(r"(?:^|/)\.\.(?:/|$)")
    for row in table.index[outside]:
        yield row, f"image_path {table['image_path'][row]!r} leaves the root"
    # a/b.jpg and a/./b.jpg are one image: it could be in two splits under two names
    for row in table.index[~outside & parts.str.contains(r"(?:^|/)\.?/|/\.?$")]:
        yield row, f"image_path {table['image_path'][row]!r}: write it without './' and '//'"
    if "weight" in table.columns:
        weight = pd.to_numeric(table["weight"], errors="coerce").to_numpy(float, na_value=np.nan)
        positive = (weight > 0) & (weight < np.inf)
        for row in table.index[~positive]:
            yield row, f"weight {table['weight'][row]!r} is not a positive number"
        least, most = WEIGHTS
        for row in table.index[positive & ((weight < least) | (weight > most))]:
            limits = f"an epoch draws an image {least:g} to {most:,} times"
            yield row, f"weight {table['weight'][row]!r}: {limits}"


def _label_faults(table: pd.DataFrame) -> Iterator[Fault]:
    """Yield (row, message) for control characters, empty labels, and classes in several domains."""
    labels = table[["label", "domain"]].drop_duplicates()  # far fewer than rows
    for column in ("label", "domain"):
        broken = labels.loc[labels[column].str.contains(CONTROL), column]
        for row in table.index[table[column].isin(broken)] if len(broken) else ():
            value = table[column][row]
            yield row, f"{column} {value!r} has a line break or a control character; remove it"
    empty = labels["label"].str.contains(r"(?:^|\|)\s*(?:\||$)")
    if empty.any():
        for row in table.index[table["label"].isin(labels.loc[empty, "label"])]:
            yield row, f"label {table['label'][row]!r} is empty or has an empty part"
    classes = one_class_each(labels[~empty & (labels["domain"] != "")]).drop_duplicates()
    several = set(classes.loc[classes.duplicated("label"), "label"])
    for row, label in _rows_of(table, several):
        yield row, f"class {label!r} is in several domains; labels are global"


def _overlap_faults(table: pd.DataFrame, sidecar: Sidecar) -> Iterator[Fault]:
    """Yield (row, message) for classes in both train and a held-out split, unless declared."""
    classes = one_class_each(table[["label", "domain", "split"]].drop_duplicates())
    trained = set(classes.loc[classes["split"] == "train", "label"])
    shared = [d for d, v in sidecar.domains.items() if v.shared_classes or v.index_is_train]
    for split in ("val", "test"):
        held = classes[(classes["split"] == split) & ~classes["domain"].isin(shared)]
        both = trained & set(held["label"])
        rows = table[(table["split"] == split) & ~table["domain"].isin(shared)]
        for row, label in _rows_of(rows, both):
            yield row, f"class {label!r} is in train and in {split}: a leak"


def _rows_of(table: pd.DataFrame, classes: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (row, class) for every row in one of the classes."""
    if classes:
        labels = one_class_each(table)["label"]
        yield from labels[labels.isin(classes)].items()


def _repeat_faults(table: pd.DataFrame, sidecar: Sidecar) -> Iterator[tuple[int, int, str]]:
    """Yield (row, first row of that image, their difference) for images in two rows.

    Train rows repeated by a declared index (`index_is_train`, as in Met) are allowed.
    """
    rows = table[table.duplicated("image_path", keep=False) & (table["image_path"] != "")]
    image = rows["image_path"]
    declared = sidecar.whole()
    train = rows["split"] == "train"
    fitting = rows["domain"].isin(declared) & (train | (rows["role"] == "index"))
    fitting &= ~rows.duplicated(["image_path", "split"], keep=False)
    legal = (
        fitting.groupby(image).transform("all")
        & train.groupby(image).transform("any")
        & (rows.groupby("image_path")["label"].transform("nunique") == 1)
    )
    first = pd.Series(rows.index, rows.index).groupby(image).transform("first")
    words = {"label": "conflicting labels:", "split": "a leak: split"}
    for row in rows.index[~legal & (first != rows.index)]:
        one, again = rows.loc[first[row]], rows.loc[row]
        how = [
            f"{what} {one[column]!r} there, {again[column]!r} here"
            for column, what in words.items()
            if one[column] != again[column]
        ]
        yield row, first[row], "; ".join(how) or "delete one of the two"
