"""Tables and embeddings that the tests of evaluation share."""

import numpy as np
import pandas as pd


def table_of(*rows):
    """(image, label, role) -> table; the domain precedes the slash of the label."""
    table = pd.DataFrame(rows, columns=["image_path", "label", "role"])
    return table.assign(domain=table["label"].str.split("/").str[0])


def mixed_table(seed=0):
    """Two domains; classes of 1, 2, 3 and 50 images; queries apart from the index; two labels."""
    rng = np.random.default_rng(seed)
    rows = []
    for domain in ("cars", "food"):
        for name, size in {"one": 1, "two": 2, "three": 3, "fifty": 50, "more": 7}.items():
            for i in range(size):
                label = f"{domain}/{name}"
                if i % 5 == 4:
                    label += f"|{domain}/{rng.choice(['two', 'three', 'more'])}"
                role = rng.choice(["query", "index", "both"], p=[0.2, 0.2, 0.6])
                rows.append((f"{domain}/{name}/{i}.jpg", label, role))
    return table_of(*(rows[i] for i in rng.permutation(len(rows))))


def tied_embeddings(count, seed=0):
    """Half of the entries +-1 of 4 in 8: unit vectors and products exact, so ties abound."""
    rng = np.random.default_rng(seed)
    signs = rng.choice([-1, 1], (count, 4))
    return np.concatenate([signs, np.zeros((count, 4))], axis=1).astype(np.float32)


def gaussian_embeddings(count, seed=0):
    """No ties but for bit-equal twins, of several lengths of vector."""
    rng = np.random.default_rng(seed)
    embeddings_TD = rng.normal(size=(count, 16)).astype(np.float32)
    embeddings_TD[rng.permutation(count)[:30]] = embeddings_TD[:30]
    return embeddings_TD
