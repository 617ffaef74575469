"""Add to a scored submission's card what it finds and what it cannot do: bars, galleries, tables.

python src/describe.py --submission submissions/demo --manifest input/mix_demo.csv
python src/describe.py --submission submissions/demo --manifest mix.parquet --root input --no-images

Reads export.json, score.json and score.neighbours.csv in the folder, as export.py and score.py left them, and
writes card.md anew, and domains.png, answers.png and mistakes.png in card/, which submit.py's upload leaves
out. A query of each domain is drawn at random; --no-images shows none, for data that must not be shown.
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
    add("--submission", type=Path, required=True, help="folder of export.py and score.py")
    add("--manifest", type=Path, required=True, help="that it was scored on")
    add("--split", choices=("val", "test"), default="test", help="default: test")
    add("--root", type=Path, help="folder of the images (default: the manifest's)")
    add("--no-images", action="store_true", help="of the data set, show none")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Read, draw, write. Raises UserError where the folder has no answers of these images."""
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
