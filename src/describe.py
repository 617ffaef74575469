"""Add search results and limits of a scored submission to its model card: charts, galleries, tables.

python src/describe.py --submission submissions/demo --manifest input/mix_demo.csv
python src/describe.py --submission submissions/demo --manifest mix.parquet --root input --no-images

Reads export.json, score.json and score.neighbours.csv in the folder, which export.py and score.py wrote.
Rewrites card.md, and writes domains.png, answers.png and mistakes.png into card/, which submit.py does not
upload. One query of each domain is drawn at random. --no-images shows no images, for data that must not be
published.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from guie.base import errors
from guie.base.files import read_json, write_text
from guie.data.manifest import load_manifest
from guie.export.answers import draw, read_answers, sections
from guie.export.card import model_card


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--submission", type=Path, required=True, help="folder written by export.py and score.py")
    add("--manifest", type=Path, required=True, help="manifest that it was scored on")
    add("--split", choices=("val", "test"), default="test", help="default: test")
    add("--root", type=Path, help="folder of the images (default: the manifest's)")
    add("--no-images", action="store_true", help="show no image of the data set")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the results, draw figures, write card.md. Raises UserError if the folder has no such results."""
    args = parse_args(argv)
    manifest = load_manifest(args.manifest, args.root)
    answers = read_answers(args.submission, manifest, args.split)
    pictures = draw(answers, args.submission, None if args.no_images else manifest.root)
    facts = read_json(args.submission / "export.json", "export.py writes it")
    card = args.submission / "card.md"
    write_text(card, model_card(facts, sections(answers, pictures)))
    print(f"wrote {card}, with {', '.join(pictures)}")


if __name__ == "__main__":
    errors.run(main)
