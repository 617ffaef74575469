"""The recipes: names that exist, records on top."""

import itertools
import re
from pathlib import Path

import open_clip
import pytest
import timm
from recipe_configs import CONFIGS, RECIPES, mix_configs, recipe_config

from guie.config import RunConfig, load_config
from guie.data.datasets import DATASETS

DREML = CONFIGS / "recipes/dreml_cars.yaml"
STAGED = ["one_gpu", "one_gpu_lora", "vit_h14", "vit_l14_336"]  # to start from
FIELDS = ("who", "score", "departs", "command", "needs")
all_recipes = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def header(recipe: Path) -> str:
    """The comment on top."""
    return re.match(r"(#.*\n)+", recipe.read_text(encoding="utf-8"))[0]


@all_recipes
def test_a_recipe_has_its_record_on_top(recipe: Path) -> None:
    text = header(recipe)
    lines = text.splitlines()
    fields = [line.split()[1] for line in lines if re.match(r"# [a-z]+ {2,}\S", line)]
    assert tuple(fields) == FIELDS
    assert is_record(lines[-1])
    assert all(len(line) <= 110 for line in lines)
    assert re.search(r"# score +.*?\d\.?\d+.*?theirs|# score +none is published", text, re.DOTALL)


def is_record(line: str) -> bool:
    """Whether a header's last line says that nothing was run, or what, with where it is told."""
    if line == "# Not run here: no score of ours":
        return True
    message = re.fullmatch(r"# Ours +[01]?\.\d+ \S.*\((.+)\)", line)
    return bool(message and re.search(r"EXPERIMENTS\.md|\bsrc/\w+\.py", message[1]))


def test_recipes_name_weights_that_exist() -> None:
    timms, clips = set(timm.list_pretrained()), set(open_clip.list_pretrained())
    configs = {path.stem: recipe_config(path.stem) for path in RECIPES}
    configs |= {name: load_config(CONFIGS / f"{name}.yaml", RunConfig) for name in STAGED}
    for recipe, config in configs.items():
        backbone = config.model.backbone
        if backbone.pretrained is None:
            assert recipe == "layers_net_c"  # all of it begins anew
        elif backbone.library == "timm":
            assert f"{backbone.name}.{backbone.pretrained}" in timms
        else:
            assert (backbone.name, backbone.pretrained) in clips


@all_recipes
def test_a_recipe_trains_on_a_mix_of_the_project(recipe: Path) -> None:
    """Its manifest is what a config in mixes/ gives out, and its domains are that mix's."""
    config = recipe_config(recipe.stem)
    if config.data.manifest == "input/mix.csv":
        return  # the reader's own
    domain = re.fullmatch(r"input/uned_(\w+)\.parquet", config.data.manifest)
    if domain:  # a specialist: of uned.yaml, one domain
        assert "--set out=input/uned_DOMAIN.parquet" in header(
            CONFIGS / "recipes/uned_in_specialist.yaml"
        )
        assert domain[1] in UNED_TRAIN_IMAGES
        return
    (mix,) = [mix for mix in mix_configs() if mix.out == config.data.manifest]
    if any(stage.domains for stage in config.stages):
        present = {source.domain or DATASETS[source.kind].domain for source in mix.sources}
        assert {name for stage in config.stages for name in stage.domains} == present


@all_recipes
def test_commands_name_the_recipe_and_files_that_exist(recipe: Path) -> None:
    text = header(recipe)
    for path in re.findall(r"\b(?:configs|src)/[\w./]+\.(?:yaml|py)", text):
        if path != "configs/mix.yaml":  # the reader's own
            assert (CONFIGS.parent / path).is_file(), path
    assert f"configs/recipes/{recipe.name}" in text


# ---------------------------------------------------------------- UnED (Ypsilantis et al. 2023, 4.1)

# Table 2: images of the train splits.
UNED_TRAIN_IMAGES = {
    **{"food2k": 472_349, "cars": 6_346, "sop": 48_942, "inshop": 20_897},
    **{"inat": 273_929, "met": 397_121, "gldv2": 1_422_914, "rp2k": 188_724},
}


def test_each_member_of_an_ensemble_has_a_seed_of_its_own() -> None:
    """By the command of its recipe: with one seed, all begin with the same weights and batches."""
    (command,) = re.findall(r"--set task\.metaclasses\.member=MEMBER.*", header(DREML))
    assert "--set seed=MEMBER" in command
    for recipe in RECIPES:
        if getattr(recipe_config(recipe.stem).task, "metaclasses", None):
            assert recipe == DREML or f"# command  as {DREML.name}" in header(recipe)


def test_the_steps_of_uneds_specialists_are_whole_epochs() -> None:
    stage = recipe_config("uned_in_uscss").stages[0]
    assert stage.sampler.steps.keys() == UNED_TRAIN_IMAGES.keys()
    epochs = [n / (UNED_TRAIN_IMAGES[d] // 128) for d, n in stage.sampler.steps.items()]
    assert epochs == [3, 11, 28, 28, 4, 8, 6, 4]
    text = header(CONFIGS / "recipes/uned_in_specialist.yaml")
    for domain in UNED_TRAIN_IMAGES:
        assert re.search(rf"\b{domain}\b", text), domain
    steps = sum(round(images / 128) for images in UNED_TRAIN_IMAGES.values())
    assert f"{steps:,} steps an epoch" in header(CONFIGS / "recipes/uned_in_ujcds.yaml")


@pytest.mark.parametrize("name", STAGED)
def test_configs_to_start_from_have_the_rates_of_the_study(name: str) -> None:
    stages = load_config(CONFIGS / f"{name}.yaml", RunConfig).stages
    assert {stage.lr.of("classes") for stage in stages[:2]} == {0.1}
    for stage, images in itertools.product(stages, (140, 1050, 13_357, 100_000)):
        steps_per_epoch = images / stage.batch_size
        warmup = round(stage.warmup.steps(steps_per_epoch))  # on few images it may be no step
        assert warmup <= stage.epochs * steps_per_epoch / 10, stage.name
