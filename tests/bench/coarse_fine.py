"""Write a mix with a coarse domain and a fine one inside it, of one manifest's images.

python tests/bench/coarse_fine.py --manifest $GUIE_REAL/data/mini-uned/manifest.csv --fine cars \
    --out input/coarse_fine.csv

The classes of the coarse domain are the manifest's domains. Of the domain --fine, every other image has its
own class, in the fine domain; the rest are one coarse class. So both have photographs of the same things,
as ImageNet's birds and CUB's (Feng et al., section 5.3). To train it, set `data.root` to the folder of the
first manifest.
"""

from pathlib import Path

import pandas as pd
from common import arguments

from guie.base.files import write_text
from guie.data.manifest import load_manifest


def main() -> None:
    args = arguments(__doc__, manifest=Path, fine=str, out=Path)
    table = load_manifest(args.manifest).table
    if args.fine not in set(table["domain"]):
        raise SystemExit(f"--fine {args.fine}: no such domain among {sorted(set(table['domain']))}")
    fine = (table["domain"] == args.fine) & (table.groupby("label").cumcount() % 2 == 1)
    coarse = table[~fine].assign(label=lambda rows: "coarse/" + rows["domain"], domain="coarse")
    own = table[fine].assign(label=lambda rows: "fine/" + rows["label"], domain="fine")
    both = pd.concat([coarse, own])
    write_text(args.out, both.to_csv(index=False))
    # Train and test have the same coarse classes, and other photographs of them
    write_text(args.out.with_suffix(".sidecar.yaml"), "domains: {coarse: {shared_classes: true}}\n")
    sizes = {"images": ("label", "size"), "classes": ("label", "nunique")}
    print(both.groupby(["domain", "split"]).agg(**sizes))


if __name__ == "__main__":
    main()
