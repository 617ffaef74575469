"""What a reading of a dataset holds, as tuples and lists to compare with."""

from __future__ import annotations


def rows(reading, *columns):
    """Rows without the prefix of the label, as tuples."""
    table = reading.table
    prefix = table["domain"] + "/" + table["dataset"] + "/"
    label = [text.replace(start, "") for text, start in zip(table["label"], prefix, strict=True)]
    return list(table.assign(label=label)[list(columns)].itertuples(index=False, name=None))


def splits(reading):
    """{split: labels in order, each once}."""
    return {
        split: list(
            dict.fromkeys(
                label for label, which in rows(reading, "label", "split") if which == split
            )
        )
        for split in reading.table["split"].unique()
    }
