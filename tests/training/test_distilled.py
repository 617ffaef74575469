"""Students and their teachers in the loop: what each sees, what is kept, what a resume finds."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from toy_configs import sets

import train
from class_weights import with_class_weights
from composing import composition
from guie.base.errors import UserError
from guie.config import RunConfig, config_from
from guie.config.distillation import TeacherConfig
from guie.config.sampling import AugmentConfig
from guie.data.augmentation import Augment
from guie.data.dataset import Batch, Classes, TrainDataset, classes_of, training_rows
from guie.data.manifest import load_manifest
from guie.data.preprocess import Preprocess
from guie.data.sampling.streams import key
from guie.models import open_model
from guie.models.embedder import build_embedder
from guie.models.weights import read_tensors, save_model, save_weights
from guie.rows.embedding import raise_fault
from guie.rows.store import Store
from guie.training.run_folder import CLASS_WEIGHTS, read_class_weights, read_metrics
from guie.training.stage_data import StageData, ViewEmbedder, teacher_views
from guie.training.tasks import build_task
from guie.training.tasks.distillation import DistillationTask
from guie.training.teachers import open_teachers, outputs_of
from tiny_runs import (
    TINY_CLIP,
    assert_same_bits,
    cut_and_resumed,
    interrupted_after,
    logged_losses,
    tiny_config,
    tiny_run,
    weights,
)

THREE = ["apparel", "cars", "dishes"]
CRITERIA = [
    {"loss": {"name": "arcface"}, "weight": 0.5},
    {"relation": {"name": "snd", "sigma": {"perplexity": 4}, "queue": 64}},
    {"relation": {"name": "rkd", "angle": 1.0}, "domains": THREE},
    {"relation": {"name": "matching", "standardise": {"name": "phi_s", "steps": 2}, "drop": 0.5}},
    {"relation": {"name": "logits"}},
]
RATES = {"backbone": 1e-4, "head": 1e-3, "classes": 1e-2, "matching": 1e-3}
TAME = "task.criteria.1.relation.sigma=0.5"  # whose gradients are tame


@pytest.fixture(scope="module")
def teachers(mix: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One for three domains, at another size, mean and std than the student; one for all."""
    labels = sorted(set(load_manifest(mix).table["label"]))
    folder = tmp_path_factory.mktemp("teachers")
    image = {"size_px": 40, "mean": [0.4, 0.5, 0.6], "std": [0.3, 0.2, 0.1]}
    some = tiny_run(folder / "some", start=1, image=image, size_px=40)
    every = tiny_run(folder / "every", start=2)
    for folder in (some, every):
        with_class_weights(folder, labels)
    return [{"model": str(some), "domains": THREE}, {"model": str(every)}]


@pytest.fixture(scope="module")
def words(teachers: list, written: Callable) -> list[str]:
    return written(
        model={"backbone": TINY_CLIP, "image": {"size_px": 32}, "head": {"dim": 16, "norm": "bn"}},
        task={"name": "distillation", "teachers": teachers, "criteria": CRITERIA},
        stages=[{"epochs": 1, "lr": RATES, "validate_every": "3 steps"}],
    )


@pytest.fixture(scope="module")
def run(words: list[str]) -> Path:
    return train.main(words)


@pytest.mark.slow
def test_every_teacher_contributes_and_none_is_saved(run: Path) -> None:
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    keys = {key for line in lines for key in line}
    names = ("snd", "rkd", "matching", "logits")
    assert {f"{name}/{teacher}" for name in names for teacher in ("some", "every")} <= keys
    assert "labels" in keys and lines[-1]["loss"] < lines[2]["loss"]
    saved = set(load_file(run / "model.safetensors"))
    assert {name.split(".")[0] for name in saved} == {"backbone", "head"}
    labels = (run / "classes.txt").read_text(encoding="utf-8").splitlines()
    assert read_class_weights(run, labels)[1].shape == (len(labels), 1, 16)
    open_model(run)


def test_a_teacher_sees_the_students_view_at_its_own_size(teachers: list) -> None:
    opened = open_teachers([TeacherConfig(model=teachers[0]["model"], domains=["b"])], ["a", "b"])
    preprocess = Preprocess(32, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    grey = torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    label, shapes = torch.tensor([1, 0, 1, 1, 0]), torch.ones(5, 3)
    batch = Batch(label, label, shapes, preprocess.normalised(grey.float()))
    (taught,) = outputs_of(opened, batch, preprocess)
    model = open_model(teachers[0]["model"])
    with torch.no_grad():
        expected = model.embedder(model.preprocess(grey.to(torch.uint8)), shapes)
    own = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(taught[own], expected[own], atol=1e-5, rtol=0)
    assert not taught[~own].any() and not opened[0].model.embedder.training


@pytest.mark.slow
def test_another_teacher_is_refused_on_resume(
    words: list[str], teachers: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    shutil.copytree(teachers[1]["model"], own)
    words = [*words, *sets(f"out={tmp_path}", f"task.teachers.1.model={own}")]
    with monkeypatch.context() as patched:
        interrupted_after(patched, steps=3)
        with pytest.raises(KeyboardInterrupt):
            train.main(words)
    changed = r"task\.teachers\.1\.model: the weights of .* changed"
    classes = read_tensors(own / CLASS_WEIGHTS)
    save_weights({name: weight + 1 for name, weight in classes.items()}, own / CLASS_WEIGHTS)
    with pytest.raises(UserError, match=changed):
        train.main([*words, "--resume"])
    save_weights(classes, own / CLASS_WEIGHTS)
    save_model(build_embedder(tiny_config(own).model), own / "model.safetensors")
    with pytest.raises(UserError, match=changed):
        train.main([*words, "--resume"])


REFUSALS = [
    (["task.teachers.0.domains=[moon]"], r"task\.teachers\.0\.domains: moon: not among the train"),
    (["task.criteria.1.domains=[moon]"], r"task\.criteria\.1\.domains: moon: not among the train"),
    (["task.teachers.0.model=runs/t", "out=runs"], "is the run itself; name another model"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_impossible_settings_are_refused(
    changes: list[str], message: str, words: list[str], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        train.main([*words, *sets(f"out={tmp_path}", *changes)])
    assert len(str(caught.value).splitlines()) <= 2


def test_overwriting_keeps_a_teacher(words: list[str], tmp_path: Path) -> None:
    teacher = tiny_run(tmp_path / "t")
    words = [*words, *sets(f"out={tmp_path}", f"task.teachers.0.model={teacher}")]
    with pytest.raises(UserError, match="teachers.0.model: --overwrite would delete"):
        train.main([*words, "--overwrite"])
    assert (teacher / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_teachers_see_fixed_views_once(
    frozen: bool, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And teach as if they looked at them at each step, but for what float16 rounds away."""
    kind = "cached_views" if frozen else "repeated_views"
    words = [*words, *sets(f"stages.0.{kind}=2", f"out={tmp_path}", TAME)]
    words += sets("stages.0.lr.backbone=0") if frozen else []
    computed: list[int] = []
    add = Store.add

    def counted(store, states, rows):
        computed.extend([len(states)] if ", view " in states.variant else [])
        add(store, states, rows)

    monkeypatch.setattr(Store, "add", counted)
    first = train.main([*words, *sets("name=first")])
    assert len(computed) == (6 if frozen else 4) and 0 < computed[0] < max(computed)
    computed.clear()
    again = cut_and_resumed(monkeypatch, [*words, *sets("name=again")], steps=5)
    assert not computed
    assert_same_bits(again, first)
    if not frozen:
        monkeypatch.setattr(StageData, "_teacher_features", lambda *_: None)
        live = train.main([*words, *sets("name=live")])
        assert logged_losses(live) == pytest.approx(logged_losses(first), rel=1e-2)


@pytest.mark.parametrize(
    ("size_px", "views", "seen_px"), [(24, "whole", 32), (40, "whole", 40), (40, "five_crops", 46)]
)
def test_a_larger_teacher_sees_more_pixels_of_the_same_view(
    size_px: int, views: str, seen_px: int, mix: Path, toy_manifest: Path, tmp_path: Path
) -> None:
    alone = tiny_run(tmp_path / "run", image={"size_px": size_px}, size_px=size_px)
    model = composition(tmp_path / "shown", [alone], views=views)
    manifest = load_manifest(mix, toy_manifest.parent)
    rows = training_rows(manifest)
    classes, augment = classes_of(rows), Augment(AugmentConfig(flip=0.5))
    network = Preprocess(32, [0.5] * 3, [0.5] * 3, "pad")
    pixels = TrainDataset(rows, classes.labels, manifest.root, augment, network, (0, 0))
    teachers = open_teachers([TeacherConfig(model=str(model))], classes.domains)
    run = SimpleNamespace(
        accelerator=Accelerator(),
        config=SimpleNamespace(data=SimpleNamespace(workers=0)),
        folder=tmp_path / "t",
        guard=SimpleNamespace(check=raise_fault),
    )
    ((_, found),) = teacher_views(run, teachers, pixels, 2)
    larger = copy.copy(pixels)
    larger.preprocess = Preprocess(**network.recipe() | {"size_px": seen_px})
    teacher = teachers[0].model
    embedder = ViewEmbedder(teacher.embedder, teacher.preprocess)
    for row in (0, 50):
        sample = larger[1, key(pixels.paths[row]), row]
        assert sample["image"].shape == (3, seen_px, seen_px)
        with torch.no_grad():
            expected_1D = embedder(sample["image"][None], sample["shape"][None])
        seen_1D = torch.tensor(found[1][row : row + 1]).float()
        torch.testing.assert_close(seen_1D, expected_1D, rtol=2e-3, atol=2e-3)


# ---------------------------------------------------------------- logits of teachers: classes by name

KNOWN = ["a/1", "a/2", "b/1", "b/2", "b/3"]
OURS = Classes(["a/0", "b/1", "b/2", "b/3"], [1] * 4, ["a", "b", "b", "b"])


def student(folder: Path, teachers: list[dict[str, Any]]) -> DistillationTask:
    """With a classifier of two centres beside the logits."""
    criteria = [{"loss": {"name": "arcface", "centers": 2}}, {"relation": {"name": "logits"}}]
    task = {"name": "distillation", "teachers": teachers, "criteria": criteria}
    config = tiny_config(folder).model_dump() | {"task": task}
    built = build_task(config_from(config, RunConfig), OURS)
    assert isinstance(built, DistillationTask)
    built.begin_stage(0, range(4))
    return built.eval()


def said(task: DistillationTask) -> dict[str, Tensor]:
    torch.manual_seed(0)
    label = torch.tensor([0, 1, 2, 3, 3])
    grey = torch.randint(0, 256, (5, 3, 32, 32)).float()
    return task(Batch(label, label, torch.ones(5, 3), task.preprocess.normalised(grey)))[1]


def test_a_student_that_is_its_teacher_has_its_logits_also_by_other_ids(tmp_path: Path) -> None:
    teacher = with_class_weights(tiny_run(tmp_path / "teacher"), KNOWN)
    task = student(tmp_path / "student", [{"model": str(teacher)}])
    assert said(task)["logits/teacher"] > 1e-3
    task.embedder.load_state_dict(weights(teacher))
    places, weight_CkT = read_class_weights(teacher, OURS.labels)
    assert places.tolist() == [1, 2, 3]
    assert task.classifier is not None
    with torch.no_grad():
        task.classifier.weight_CD.view(4, 2, -1)[places] = weight_CkT
    assert abs(said(task)["logits/teacher"]) < 1e-6


def test_what_has_no_classes_in_common_is_refused_by_name(tmp_path: Path) -> None:
    teacher = tiny_run(tmp_path / "teacher")
    with pytest.raises(UserError, match=f"teacher: has no {CLASS_WEIGHTS}, which relation logits"):
        student(tmp_path / "student", [{"model": str(teacher)}])
    with_class_weights(teacher, KNOWN)
    with pytest.raises(UserError, match="teacher: knows 0 of the classes that it must teach"):
        student(tmp_path / "student", [{"model": str(teacher), "domains": ["a"]}])
    stranger = with_class_weights(tiny_run(tmp_path / "stranger"), ["c/1", "c/2"])
    with pytest.raises(UserError, match="stranger: knows 0 of the classes that it must teach"):
        student(tmp_path / "student", [{"model": str(stranger)}])
