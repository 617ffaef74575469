"""Average the weights of runs, or of the checkpoints of one: a model soup, a run like any other.

python src/soup.py --runs runs/a runs/b runs/c --out runs/soup
python src/soup.py --runs runs/a runs/b runs/c --out runs/soup --greedy --manifest input/mix.csv
python src/soup.py --runs runs/a --checkpoints --out runs/soup
python src/soup.py --runs runs/a --weights model last --out runs/soup

The members must have gone out from the same weights, their heads too: runs whose first stages are
the same up to a trained head, say, and which then train the backbone each in its own way under
`lr: {head: 0.0}`. Of a greedy soup (Wortsman et al., ICML 2022, recipe 1) a member becomes part if
R@1 on the manifest's val split does not fall; the best stands first. The test split is not looked at.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guie.base import errors
from guie.base.devices import from_main, make_accelerator
from guie.base.errors import UserError
from guie.compose.derived import refuse_existing, write_run
from guie.compose.soups import Member, Soup, find_members, likeness, refuse_unlike
from guie.config import RunConfig, load_config
from guie.data.manifest import load_manifest
from guie.evaluation.validation import validate_model
from guie.model import LoadedModel
from guie.model.weights import sha256_of

# Cosine; measured between heads: .97 and more from one start, .00 trained apart (EXPERIMENTS.md).
ALIKE = 0.5

Scores = dict[str, float] | None  # as `validate_model` returns them; None where nothing is scored
Score = Callable[[LoadedModel], Scores]


@dataclass(frozen=True)
class Taste:
    """A member, alone and in the soup."""

    member: Member
    sha256: str
    alike: dict[str, float]  # cosine with the first member, part by part
    alone: Scores
    joined: bool = True
    soup: Scores = None  # of a greedy soup with it

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "member": str(self.member.file)}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="folders of runs")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--weights",
        choices=("model", "last"),
        nargs="+",
        default=["model"],
        help="of each run: its best by val score (model), its last (default: model)",
    )
    what.add_argument("--checkpoints", action="store_true", help="of each run: all its checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new run")
    parser.add_argument("--greedy", action="store_true", help="keep out what lowers the val score")
    parser.add_argument("--manifest", help="whose val split scores members and soup")
    parser.add_argument("--root", help="folder of the images; default: the manifest's")
    parser.add_argument("--workers", type=int, default=2, help="loader processes per process")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> Path:
    """Average; returns the new run's folder. Raises UserError where the members do not fit."""
    args = parse_args(argv)
    if args.greedy and not args.manifest:
        raise UserError("--greedy: goes by a val split; give its --manifest")
    accelerator = make_accelerator()
    from_main(accelerator, lambda: refuse_existing(args.out))
    members = find_members(args.runs, args.weights, args.checkpoints)
    manifest = load_manifest(args.manifest, args.root) if args.manifest else None
    if manifest:
        manifest.split("val")  # refused where there is none

    def score(model: LoadedModel) -> Scores:
        if manifest is None:
            return None
        return validate_model(accelerator, model, manifest, args.workers)

    tastes = taste(members, score)
    if accelerator.is_main_process:
        warn_of_strangers(tastes)
    model, scores, tastes = cook(tastes, score, args.greedy)
    if accelerator.is_main_process:
        config = load_config(members[0].run / "config.yaml", RunConfig)
        record = {"greedy": args.greedy, "manifest": args.manifest}
        record["members"] = [taste.as_json() for taste in tastes]
        write_run(args.out, model, config, scores, soup=record)
        print(summary(args.out, tastes, scores))
    # All leave together: a process that outlives its group aborts on the way out.
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return args.out


def taste(members: Sequence[Member], score: Score) -> list[Taste]:
    """Look at each member alone. Raises UserError for one that differs from the first."""
    first = members[0].load()
    tastes = []
    for member in members:
        model = member.load()
        refuse_unlike(member, model, members[0], first)
        alike = likeness(model.embedder.state_dict(), first.embedder.state_dict())
        tastes.append(Taste(member, sha256_of(member.file), alike, score(model)))
    return tastes


def cook(
    tastes: Sequence[Taste], score: Score, greedy: bool
) -> tuple[LoadedModel, Scores, list[Taste]]:
    """The soup, its scores, and what became of each member, in the order of being tried."""
    if greedy:
        tastes = sorted(tastes, key=lambda taste: taste.alone["val_r_at_1"], reverse=True)
    model, soup, best, done = tastes[0].member.load(), Soup(), None, []
    for taste in tastes:
        with_it = soup.plus(taste.member.load().embedder.state_dict())
        if greedy:
            found = score(filled(model, with_it)) if soup.count else taste.alone
            taste = replace(taste, soup=found, joined=not best or rises(found, best))
            best = found if taste.joined else best
        soup = with_it if taste.joined else soup
        done.append(taste)
    model = filled(model, soup)
    return model, best or score(model), done


def filled(model: LoadedModel, soup: Soup) -> LoadedModel:
    """The model with the soup's weights."""
    model.embedder.load_state_dict(soup.state())
    return model


def rises(found: dict[str, float], best: dict[str, float]) -> bool:
    """Is it no worse?"""
    return found["val_r_at_1"] >= best["val_r_at_1"]


def warn_of_strangers(tastes: Sequence[Taste]) -> None:
    """Say on stderr whose parts were not trained from the first member's."""
    for taste in tastes:
        for part, cosine in taste.alike.items():
            if cosine < ALIKE:
                print(
                    f"warning: {taste.member.file}: its {part} was trained apart from that of"
                    f" {tastes[0].member.file} (cosine {cosine:.2f}); the mean of such weights is"
                    " seldom a model: look at its val score",
                    file=sys.stderr,
                )


def summary(out: Path, tastes: Sequence[Taste], scores: Scores) -> str:
    joined = sum(taste.joined for taste in tastes)
    lines = [f"{out}: {joined} of {len(tastes)} members{told(', val', scores)}"]
    for taste in tastes:
        sign = "+" if taste.joined else "-"
        alone, soup = told(", alone", taste.alone), told(", soup with it", taste.soup)
        lines.append(f"  {sign} {taste.member.file}{alone}{soup}")
    return "\n".join(lines)


def told(what: str, scores: Scores) -> str:
    return f"{what} R@1 {scores['val_r_at_1']:.4f}" if scores else ""


if __name__ == "__main__":
    errors.run(main)
