"""Write a mix with a coarse domain and a fine one inside it, of one manifest's images.

python tests/bench/coarse_fine.py --manifest $GUIE_REAL/data/mini-uned/manifest.csv --fine cars \
    --out input/coarse_fine.csv

--fine names the domain whose classes stay. The coarse domain's classes are the manifest's domains; every
other image of the fine domain is in it, as one class of many, and the rest are the fine domain, with their
own classes: other photographs of the same things, as ImageNet's birds are beside CUB's (Feng et al.,
section 5.3). Train it with `data.root` set to the folder of the first manifest.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from common import arguments

from guie.base.files import write_text
from guie.data.manifest import load_manifest


def main() -> None:
    args = arguments(__doc__, manifest=Path, fine=str, out=Path)
    table = coarse_and_fine(load_manifest(args.manifest).table, args.fine)
    write_text(args.out, table.to_csv(index=False))
    # train and test have the same coarse classes, and other photographs of them
    write_text(args.out.with_suffix(".sidecar.yaml"), "domains: {coarse: {shared_classes: true}}\n")
    sizes = {"images": ("label", "size"), "classes": ("label", "nunique")}
    print(table.groupby(["domain", "split"]).agg(**sizes))


def coarse_and_fine(table: pd.DataFrame, fine: str) -> pd.DataFrame:
    if fine not in set(table["domain"]):
        raise SystemExit(f"--fine {fine}: no such domain among {sorted(set(table['domain']))}")
    number_in_class = table.groupby("label").cumcount()
    stays = (table["domain"] == fine) & (number_in_class % 2 == 1)
    coarse = table[~stays].assign(label=lambda rows: "coarse/" + rows["domain"], domain="coarse")
    own = table[stays].assign(label=lambda rows: "fine/" + rows["label"], domain="fine")
    return pd.concat([coarse, own])


if __name__ == "__main__":
    main()
