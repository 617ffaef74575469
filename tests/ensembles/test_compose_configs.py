"""configs/compose: each loads; a twin of each, of tiny runs, is made and saved as its original would be."""

import re
from pathlib import Path
from typing import Any

import pytest

from composing import composition, random_clip
from guie.config import RunConfig, load_config
from guie.config.ensemble import ComposeConfig
from guie.config.loading import read_values
from guie.export.operators import check_operators
from guie.export.parity import parity
from guie.export.torchscript import downgrade, package
from guie.models import open_model
from tiny_runs import tiny_run

FOLDER = Path(__file__).parents[2] / "configs/compose"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
FIELDS = ["who", "score", "departs", "command"]
# What others do too: a soup, PCA of one run, one view
AS_OTHERS = ("best_start", "soup", "winner_3", "winner_6")


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_it_loads_and_says_how_it_is_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIE_REAL", "anywhere")
    load_config(file, ComposeConfig)
    text = re.match(r"(#.*\n)+", file.read_text(encoding="utf-8"))[0]
    assert f"python src/compose.py --config configs/compose/{file.name}" in text
    if file.stem.startswith("winner_"):
        assert re.findall(r"# ([a-z]+) {2,}\S", text) == FIELDS
        assert re.search(r"# score +.*?\d\.\d+.*?theirs", text, re.DOTALL)
        assert text.endswith("# Not run here: no score of ours\n")


def test_the_5th_places_passes_are_its_own() -> None:
    """make_torchscript_wcls.py: 137-143 a square, 146-168 the rest; :84 black, :161 a raw mean."""
    config = load_config(FOLDER / "winner_5.yaml", ComposeConfig)
    views = [view.model_dump(exclude_defaults=True) for view in config.views]
    others = {"aspect": {"above": 1.0}}
    padded = {"fit": "pad", "pad_color": "black", **others}
    assert views == [
        {"part": 0.9, "aspect": {"max": 1.0}},
        others,
        {"part": 0.9, **padded},
        {"domains": ["clothing", "products"], **padded},
    ]
    assert config.average == "raw"
    head = load_config(FOLDER.parent / "recipes/winner_5.yaml", RunConfig).model
    assert head.image.fit == "squash" and head.head.image_shape


def twin(key: str, value: Any, folder: Path, data: dict[str, Any]) -> Any:
    """A config's value with tiny runs, all of one start, in place of its models, and with toy data."""
    if key in ("model", "members") and isinstance(value, str):
        if value.startswith("open_clip:"):
            return random_clip(folder)
        run = folder / Path(value).name
        return str(run if run.is_dir() else tiny_run(run, head={"dim": 16}))
    if key == "texts":
        (folder / "words.txt").write_text("\n".join(f"word {n}" for n in range(30)))
        return str(folder / "words.txt")
    small = {"images": data, "classifier": data, "size_px": 48, "stride_px": 8, "dim": 8}
    small["domains"] = data["domains"][:2]
    if key in small:
        return small[key]
    if isinstance(value, dict):
        return {name: twin(name, part, folder, data) for name, part in value.items()}
    if isinstance(value, list):
        return [twin(key, part, folder, data) for part in value]
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [file for file in CONFIGS if file.stem not in AS_OTHERS], ids=lambda file: file.stem
)
def test_its_twin_is_made_and_saved(
    file: Path, data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where texts are kept
    sample = data | {"domains": ["apparel", "cars", "packages", "storefronts"]}
    config = twin("", read_values(file).plain, tmp_path, sample) | {"val": data}
    keys = {key: value for key, value in config.items() if key not in ("name", "out")}
    model = open_model(composition(tmp_path / "twin", **keys))
    saved = tmp_path / "saved_model.pt"
    package(model.embedder, model.preprocess, saved, half=file.stem == "side_by_side")
    downgrade(saved)
    assert check_operators(saved) == [] and model.embedder.dim <= 64
    for row in parity(model.scored, saved, [(1, 2000), (32, 32), (50, 31)]):
        assert row["difference"] <= 1e-5, row
